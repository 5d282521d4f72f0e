// Space-time cut and traces: the video along a line, and the mean of a region, frame by frame over the last snapshots.
// The values come from the sink node: those of the snapshots themselves, without tone.

import { el, put, state, toast } from "./page.js";
import { colour, surface } from "./charts.js";
import { get } from "./link.js";
import { duration, fixed, known } from "./format.js";
import { shownTone } from "./tone.js";
import { pixelAt } from "./view.js";

const MAX_FRAMES = 2400, FIRST_FRAMES = 600, PERIOD_MS = 300, MAX_SPECTRUM = 512;
const LEFT = 46, LINE = 14;  // room for labels: beside the cut and its trace, which share their time; of a line of text

let line = null;      // { x0, y0, x1, y1 } on the sensor
let from = null;      // the end where a line was begun
let frames = [];      // { seq, frame, timeMs, mean, along }, oldest first; along has a value or three colours per pixel
let colours = 1;
let source = "";      // series, line and region of the frames
let busy = false, spectral = false;
let region = () => null, redrawMarks = () => {};

export const isLining = () => document.body.classList.contains("lining");
const isOpen = () => document.body.classList.contains("cutting");

export function toggleCut() {
  const on = document.body.classList.toggle("cutting");
  el("cut").setAttribute("aria-pressed", String(on));
  if (on && !line) setLining(true);
  if (!on) setLining(false);
  redrawMarks();
  follow();
}

export function setLining(on) {
  document.body.classList.toggle("lining", on);
  el("cut-line").setAttribute("aria-pressed", String(on));
  if (on) toast("Draw a line on the video");
}

// --- values

async function fetchFrames() {
  const { series, seq, n_frames: n } = state.shown;
  const wanted = `${series} ${JSON.stringify([line, region()])}`;
  if (wanted !== source) { frames = []; source = wanted; }
  const after = frames.at(-1)?.seq ?? Math.max(seq - Math.ceil(FIRST_FRAMES / n), 0) - 1;
  const buffer = await (await get("traces", { series, after, ...(line ?? {}), ...(region() ?? {}) })).arrayBuffer();
  if (wanted !== source) return false;
  const length = new DataView(buffer).getUint32(0, true);
  const { n_points: points, n_colours, snapshots } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (snapshots.length) colours = n_colours;
  let offset = 4 + length;
  const take = (n) => { const part = new Float32Array(buffer, offset, n); offset += 4 * n; return part; };
  for (const { seq, acquired_ns: at, n_frames: n } of snapshots) {
    const size = points * colours, means = take(n), along = take(n * size);
    for (let i = 0; i < n; i += 1) frames.push({ seq, frame: i, timeMs: at / 1e6, mean: means[i], along: along.subarray(i * size, (i + 1) * size) });
  }
  if (frames.length > MAX_FRAMES) frames = frames.slice(-MAX_FRAMES);
  return snapshots.length > 0;
}

// A new picture has been shown: fetch the values of those since the last one.
export async function follow() {
  if (!isOpen() || !state.shown || busy || document.hidden) return;
  busy = true;
  try {
    while (await fetchFrames()) draw();
  } catch (error) {
    put("cut-is", error.message);
  }
  draw();
  setTimeout(() => { busy = false; }, PERIOD_MS);
}

// --- pictures

const screenLevel = (value, { exposure_ev: ev = 0, black = 0, gamma = 2.2 }, gain) =>
  255 * Math.min(Math.max(((value - black) / (1 - black)) * gain * 2 ** ev, 0), 1) ** (1 / gamma);

// Mean time between two frames: snapshots follow each other, and B frames share one. NaN with a single snapshot.
function frameMs() {
  const first = frames[0], last = frames.at(-1);
  const b = frames.filter(({ seq }) => seq === last?.seq).length;
  return last && last.seq > first.seq ? (last.timeMs - first.timeMs) / (last.seq - first.seq) / b : NaN;
}

function draw() {
  const shown = surface(el("cut-picture")), ms = frameMs();
  const recent = frames.slice(-Math.max(1, Math.floor((shown.width - LEFT) / 2)));
  const none = line ? "no video has arrived yet" : "Draw a line on the video";
  const each = known(ms) ? `, ${fixed(ms, ms < 10 ? 2 : 0)} ms each` : "";
  put("cut-is", frames.length ? `${frames.length} frames${each}; down: along the line, right: time` : none);
  drawCut(shown, recent);
  drawProfile(recent.at(-1));
  drawTrace(recent, ms);
}

function drawCut({ context, width, height }, recent) {
  const points = (recent.at(-1)?.along.length ?? 0) / colours;
  if (!points) {
    hint(context, width, height, ["Draw a line on the video.", "Its pixels stand here, one column a frame: edges that move are slanted."]);
    return;
  }
  const tone = shownTone(), gains = tone.white_balance === "fixed" ? tone.gains : [1, 1, 1];
  const image = new ImageData(recent.length, points);
  recent.forEach(({ along }, i) => {
    for (let j = 0; j < points; j += 1) {
      const at = 4 * (j * recent.length + i);
      for (let k = 0; k < 3; k += 1) image.data[at + k] = screenLevel(along[colours === 1 ? j : 3 * j + k], tone, colours === 1 ? 1 : gains[k]);
      image.data[at + 3] = 255;
    }
  });
  const small = new OffscreenCanvas(recent.length, points);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, LEFT, 0, width - LEFT, height);
  label(context, "0", LEFT - 5, 10, "right");
  label(context, lengthText(Math.hypot(line.x1 - line.x0, line.y1 - line.y0)), LEFT - 5, height - 3, "right");
  // Lost snapshots leave no frames: a mark shows where time is missing.
  context.fillStyle = colour("--bad");
  recent.forEach(({ seq }, i) => { if (i && seq > recent[i - 1].seq + 1) context.fillRect(LEFT + (i / recent.length) * (width - LEFT) - 1, 0, 2, height); });
}

// Draw curves on one scale into a box; return its ends.
function curves(context, all, { x, y, w, h }, styles = ["--signal"]) {
  const finite = all.flat().filter(known);
  const low = Math.min(...finite), high = Math.max(...finite), span = high - low || 1;
  all.forEach((values, k) => {
    Object.assign(context, { strokeStyle: colour(styles[k]), lineWidth: 1.2 });
    context.beginPath();
    values.forEach((value, i) => context.lineTo(x + ((i + 0.5) / values.length) * w, y + h - ((value - low) / span) * h));
    context.stroke();
  });
  return { low, high };
}

function label(context, text, x, y, align = "left") {
  Object.assign(context, { fillStyle: colour("--dim"), font: "10px system-ui, sans-serif", textAlign: align });
  context.fillText(text, x, y);
}

// What an empty chart will show.
function hint(context, width, height, lines) {
  Object.assign(context, { fillStyle: colour("--dim"), font: "13px system-ui, sans-serif", textAlign: "center" });
  lines.forEach((text, i) => context.fillText(text, width / 2, height / 2 + 18 * i - 9 * (lines.length - 1), width - 16));
}

function drawProfile(frame) {
  const { context, width, height } = surface(el("cut-profile"));
  if (!frame?.along.length) {
    hint(context, width, height, ["values along", "the line"]);
    return;
  }
  const planes = Array.from({ length: colours }, (_, k) => [...frame.along].filter((_, i) => i % colours === k));
  const styles = colours === 1 ? ["--signal"] : ["--chart-red", "--chart-green", "--chart-blue"];
  const { low, high } = curves(context, planes, { x: 4, y: LINE + 2, w: width - 8, h: height - 2 * LINE - 6 }, styles);
  label(context, fixed(high, 3), 4, 11);
  label(context, fixed(low, 3), 4, height - 4);
  label(context, lengthText(Math.hypot(line.x1 - line.x0, line.y1 - line.y0)), width - 4, height - 4, "right");
  label(context, "value, 0 to 1", width - 4, 11, "right");
}

function drawTrace(recent, ms) {
  const { context, width, height } = surface(el("cut-trace"));
  if (recent.length < 2) return;
  const means = recent.map(({ mean }) => mean), { amplitudes, hz } = spectral ? spectrum(means, ms) : {};
  const { low, high } = curves(context, [amplitudes ?? means], { x: LEFT, y: 4, w: width - LEFT, h: height - LINE - 8 });
  label(context, fixed(high, 3), LEFT - 5, 11, "right");
  label(context, fixed(low, 3), LEFT - 5, height - LINE - 3, "right");
  label(context, amplitudes ? "amplitude of the mean" : `mean of the ${region() ? "region" : "picture"}, 0 to 1`, LEFT + 4, 13);
  const last = amplitudes ? (amplitudes.length - 1) * hz : NaN;
  // The newest frame may be old: time counts from it.
  const begin = known(ms) ? `−${duration(recent.length * ms)}` : "";
  label(context, amplitudes ? "0 Hz" : begin, LEFT, height - 3);
  label(context, amplitudes ? `${fixed(last, 1)} Hz` : begin && "0 s", width - 3, height - 3, "right");
  if (amplitudes) put("cut-is", `strongest at ${fixed(amplitudes.indexOf(Math.max(...amplitudes.slice(1))) * hz, 2)} Hz, up to ${fixed(last, 1)} Hz`);
}

// Amplitudes of the last frames' means by frequency, without the mean itself; hz is the step between two.
function spectrum(means, ms) {
  const values = means.slice(-MAX_SPECTRUM), n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  const amplitudes = Array.from({ length: (n >> 1) + 1 }, (_, k) => {
    let re = 0, im = 0;
    values.forEach((value, i) => { const angle = (-2 * Math.PI * k * i) / n; re += (value - mean) * Math.cos(angle); im += (value - mean) * Math.sin(angle); });
    return (2 * Math.hypot(re, im)) / n;
  });
  return { amplitudes, hz: 1000 / (ms * n) };
}

// --- the line

function lengthText(px) {
  const um = state.status.preview?.pixel_um;
  return um ? `${fixed(px * um, px * um < 100 ? 1 : 0)} µm` : `${fixed(px, 0)} px`;
}

export function drawLine(context, at) {
  if (!line || !isOpen()) return;
  const [x0, y0, x1, y1] = [line.x0, line.y0, line.x1, line.y1].map((value, i) => (i % 2 ? at.top : at.left) + (value + 0.5) * at.scale);
  for (const [style, width] of [["#000", 3], ["#4adeff", 1.5]]) {
    Object.assign(context, { strokeStyle: style, lineWidth: width });
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }
  const size = state.shown?.width_px ?? 0, length = Math.hypot(line.x1 - line.x0, line.y1 - line.y0);
  if (!size) return;
  Object.assign(context, { fillStyle: "#4adeff", font: "11px system-ui, sans-serif", textAlign: x1 > x0 ? "right" : "left" });
  context.fillText(lengthText(length), x1, y1 - 7);
}

function pointers() {
  const stage = el("video").parentElement;
  const to = (event) => {
    const pixel = from && pixelAt("video", event);
    if (!pixel) return;
    line = { x0: from.x, y0: from.y, x1: pixel.x, y1: pixel.y };
    redrawMarks();
  };
  stage.addEventListener("pointerdown", (event) => {
    from = isLining() ? pixelAt("video", event) : null;
    if (!from) return;
    stage.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  stage.addEventListener("pointermove", to);
  stage.addEventListener("pointerup", (event) => {
    if (!from) return;
    to(event);
    from = null;
    setLining(false);
    follow();
  });
}

// --- files

function save() {
  if (!frames.length) return;
  const pixels = [...frames.at(-1).along.keys()].map((i) => (colours === 1 ? i : `${Math.floor(i / 3)}_${"rgb"[i % 3]}`));
  const head = ["seq", "frame", "acquired_unix_ms", "mean", ...pixels].join(",");
  const rows = frames.map(({ seq, frame, timeMs, mean, along }) => [seq, frame, timeMs.toFixed(3), mean, ...along].join(","));
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([[head, ...rows].join("\n")], { type: "text/csv" })), download: "space-time.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function start(options) {
  ({ region, redrawMarks } = options);
  pointers();
  el("cut").addEventListener("click", toggleCut);
  el("cut-line").addEventListener("click", () => setLining(!isLining()));
  el("cut-csv").addEventListener("click", save);
  el("cut-spectrum").addEventListener("click", () => { spectral = !spectral; el("cut-spectrum").setAttribute("aria-pressed", String(spectral)); draw(); });
  new ResizeObserver(() => { if (isOpen()) draw(); }).observe(el("cut-picture"));
}
