// The page of sci-stream calibrate: the newest frame and its figures, while the table is adjusted.

const POLL_MS = 300;
const TREND_MS = 30_000;
const query = location.search || "?";
/** @type {(id: string) => any} */
const el = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 2 : 0)} %`;

// Text, range of the bar and aim of each figure.
const FIGURES = {
  level: { text: ({ level }) => percent(level), most: () => 1, aim: () => [0.5, 0.9] },
  clipped: { text: ({ clipped }) => percent(clipped), most: () => 0.02, aim: () => [0, 0.0005] },
  focus: {
    text: ({ focus, best_focus: best }) => `${focus.toFixed(3)} <small>best ${best.toFixed(3)}</small>`,
    most: ({ best_focus: best }) => 1.1 * best,
    aim: ({ best_focus: best }) => [0.95 * best, 1.1 * best],
  },
  contrast: { text: ({ contrast }) => contrast.toFixed(2), most: () => 1.5, aim: () => [0.5, 1.5] },
};

// A dark field has no aims, and a white one shows neither focus nor masks.
const IN_WHITE = ["level", "clipped"];
function isJudged(name, { step, steps, at }) {
  const now = `${steps[at] ?? ""} ${step}`;
  return !/\bdark\b/i.test(now) && (!/\bwhite\b/i.test(now) || IN_WHITE.includes(name));
}

const trends = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, []]));
const zoom = { x: 0.5, y: 0.5 };

function showFigure(name, status, nowMs) {
  const { text, most, aim } = FIGURES[name];
  const value = status[name];
  const node = el(name);
  const [low, high] = aim(status);
  const place = (of) => `${Math.min(100, (100 * of) / most(status))}%`;
  node.querySelector(".value").innerHTML = text(status);
  node.className = !isJudged(name, status) ? "" : value >= low && value <= high ? "good" : "off";
  Object.assign(node.querySelector(".aim").style, { left: place(low), width: `calc(${place(high)} - ${place(low)})` });
  node.querySelector(".now").style.left = place(value);
  const trend = trends[name];
  trend.push({ atMs: nowMs, value });
  while (trend[0].atMs < nowMs - TREND_MS) trend.shift();
  draw(node.querySelector("canvas"), trend, nowMs);
}

// The last 30 s, from their least to their largest value.
function draw(canvas, trend, nowMs) {
  const { clientWidth: width, clientHeight: height } = canvas;
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const values = trend.map(({ value }) => value);
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--signal");
  context.lineWidth = 2;
  context.beginPath();
  for (const { atMs, value } of trend) {
    context.lineTo(width * (1 - (nowMs - atMs) / TREND_MS), 2 + (height - 4) * (1 - (value - low) / span));
  }
  context.stroke();
}

function box({ x, y, width, height }, name = "") {
  return `<rect class="${name}" x="${100 * x}%" y="${100 * y}%" width="${100 * width}%" height="${100 * height}%"/>`;
}

function showPoints({ points, zoomed }) {
  const texts = points.map(({ x, y, focus, contrast }) =>
    `<text x="${100 * x}%" y="${100 * y}%" dx="1" dy="4">F ${focus.toFixed(2)}</text><text x="${100 * x}%" y="${100 * y}%" dx="1" dy="8">C ${contrast.toFixed(2)}</text>`);
  const { clientWidth: width, clientHeight: height } = el("stage");
  el("points").setAttribute("viewBox", `0 0 100 ${(100 * height) / width}`);
  el("points").innerHTML = points.map((point) => box(point)).join("") + box(zoomed, "zoomed") + texts.join("");
}

function showSteps({ steps, at }) {
  el("steps").hidden = !steps.length;
  el("steps").replaceChildren(...steps.map((name, i) => {
    const item = document.createElement("li");
    item.textContent = name;
    item.className = i < at ? "done" : i === at ? "now" : "";
    if (i === at) item.setAttribute("aria-current", "step");
    return item;
  }));
}

async function next() {
  try {
    const status = await (await fetch(`status${query}&x=${zoom.x}&y=${zoom.y}`)).json();
    el("step").textContent = status.step;
    el("asks").hidden = !status.asks;
    if (status.points) {
      const nowMs = performance.now();
      for (const name of Object.keys(FIGURES)) showFigure(name, status, nowMs);
      el("frame").src = `frame.jpg${query}&${nowMs}`;
      el("zoom").src = `frame.jpg${query}&x=${zoom.x}&y=${zoom.y}&${nowMs}`;
      el("zoom-is").textContent = `1:1 at ${status.zoomed.x_px}, ${status.zoomed.y_px}`;
      showPoints(status);
      showSteps(status);
    }
  } catch {
    el("step").textContent = "finished: the terminal has the result";
    el("asks").hidden = true;
  }
  setTimeout(next, POLL_MS);
}

el("stage").addEventListener("click", (event) => {
  const { left, top, width, height } = el("stage").getBoundingClientRect();
  zoom.x = (event.clientX - left) / width;
  zoom.y = (event.clientY - top) / height;
});
next();
