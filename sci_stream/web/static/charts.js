// Histograms and the chart of minutes, an hour or a day, at screen resolution.

import { el } from "./page.js";
import { count, percent } from "./format.js";
import { shownTone, toned } from "./tone.js";

export const SPAN_S = 300;
const AT = 0, SLOWEST = 2, SOLVE = 3, DROPPED = 4;  // places in a sample; see web/archive.py
const history = new Map();
const MARKS = { 300: [4, 3, 2, 1], 3600: [45, 30, 15], 86400: [18, 12, 6] };  // minutes; of a day, hours
let trend = { span: SPAN_S, samples: [] };
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Clear a canvas at screen resolution; return its context in CSS pixels, and its size.
export function surface(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

function bars(context, bins, width, height, style) {
  if (!width) return;  // folded away
  const top = Math.sqrt(Math.max(1, ...bins));
  context.fillStyle = style;
  context.beginPath();
  context.moveTo(0, height);
  bins.forEach((n, i) => {
    const y = height - (Math.sqrt(n) / top) * (height - 3);
    context.lineTo((i / bins.length) * width, y);
    context.lineTo(((i + 1) / bins.length) * width, y);
  });
  context.lineTo(width, height);
  context.fill();
}

const BINS = 64, SAMPLE_PX = 128;
const sample = new OffscreenCanvas(SAMPLE_PX, SAMPLE_PX).getContext("2d", { willReadFrequently: true });

// The histogram of a frame on the screen: one for grey, or those of red, green and blue.
function levelsOf(frame, colour) {
  sample.imageSmoothingEnabled = false;  // a mean of pixels would hide those that are clipped
  toned(sample, () => sample.drawImage(frame, 0, 0, SAMPLE_PX, SAMPLE_PX));
  const { data } = sample.getImageData(0, 0, SAMPLE_PX, SAMPLE_PX);
  const levels = Array.from({ length: colour ? 3 : 1 }, () => new Array(BINS).fill(0));
  for (let i = 0; i < data.length; i += 4) levels.forEach((bins, channel) => { bins[(data[i + channel] * BINS) >> 8] += 1; });
  return levels;
}

export function histograms({ bayer, counts, saturated_fraction: saturated }, frame) {
  const screen = surface(el("levels"));
  const levels = levelsOf(frame, bayer || (shownTone().false_colour ?? "none") !== "none");
  const [r, g, b] = levels;
  screen.context.globalCompositeOperation = "lighter";
  if (g) {
    screen.context.globalAlpha = 0.6;
    [[r, "--chart-red"], [g, "--chart-green"], [b, "--chart-blue"]].forEach(([bins, name]) =>
      bars(screen.context, bins, screen.width, screen.height, colour(name)));
    screen.context.globalAlpha = 1;
  } else bars(screen.context, r, screen.width, screen.height, colour("--chart-grey"));
  screen.context.globalCompositeOperation = "source-over";
  const total = levels.flat().reduce((sum, n) => sum + n, 0);
  const clipped = levels.reduce((sum, bins) => sum + bins[bins.length - 1], 0) / Math.max(1, total);
  el("levels-given").textContent = `clipped ${percent(clipped)}`;
  const sensor = surface(el("counts"));
  if (!counts) { el("counts-given").textContent = "not sent"; return; }
  bars(sensor.context, counts.bins, sensor.width, sensor.height, colour("--chart-grey"));
  sensor.context.fillStyle = colour("--bad");
  sensor.context.fillRect(sensor.width - 1.5, 0, 1.5, sensor.height);
  el("counts-given").textContent = `max ${count(counts.max_dn)} of ${count(counts.top_dn)} DN` + (saturated > 0 ? `, saturated ${percent(saturated)}` : "");
}

export function remember(samples) {
  for (const sample of samples) history.set(sample[AT], sample);
  const oldest = Math.max(0, ...history.keys()) - SPAN_S;
  for (const at of history.keys()) if (at < oldest) history.delete(at);
}

// Show a longer time than the last five minutes, or these again; samples are those of the longer time.
export function setTrend(span, samples) {
  trend = { span, samples };
}

// The seconds in which snapshots were lost.
export const losses = () => [...history.values()].filter((sample) => sample[DROPPED] > 0).map((sample) => sample[AT]);

// A round number at or above `value`: 1, 2 or 5 times a power of ten.
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

export function strip(nowS) {
  const { context, width, height } = surface(el("strip"));
  const left = 46, bottom = 16, plot = { w: width - left - 4, h: height - bottom - 6, y: 6 };
  if (plot.w < 40 || plot.h < 30) return;
  const { span } = trend;
  const known = span === SPAN_S ? [...history.values()] : trend.samples;
  const samples = known.filter((s) => s[AT] > nowS - span).sort((a, b) => a[AT] - b[AT]);
  const top = ceiling(Math.max(50, ...samples.map((s) => s[SLOWEST] ?? 0)));
  const x = (at) => left + (1 - (nowS - at) / span) * plot.w;
  const y = (ms) => plot.y + (1 - ms / top) * plot.h;
  axes(context, { left, plot, top, y, height, span });
  context.fillStyle = colour("--bad");
  const most = Math.max(4, ...samples.map((s) => s[DROPPED]));
  for (const s of samples) {
    if (!s[DROPPED]) continue;
    const tall = Math.max(6, (s[DROPPED] / most) * plot.h * 0.6);
    context.fillRect(x(s[AT]) - 1, plot.y + plot.h - tall, 2.5, tall);
  }
  line(context, samples, SOLVE, x, y, colour("--second"));
  line(context, samples, SLOWEST, x, y, colour("--signal"));
}

function axes(context, { left, plot, top, y, height, span }) {
  context.font = "11px system-ui, sans-serif";
  context.strokeStyle = colour("--line");
  context.fillStyle = colour("--dim");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const ms of [0, top / 2, top]) {
    const at = Math.round(y(ms)) + 0.5;
    context.beginPath(); context.moveTo(left, at); context.lineTo(left + plot.w, at); context.stroke();
    context.fillText(ms < 1000 ? (ms ? `${ms} ms` : "0") : `${ms / 1000} s`, left - 6, at);
  }
  context.textBaseline = "alphabetic";
  const [unit, seconds] = span > 3600 ? ["h", 3600] : ["min", 60];
  for (const ago of MARKS[span]) {
    context.textAlign = "center";
    context.fillText(`−${ago} ${unit}`, left + (1 - (ago * seconds) / span) * plot.w, height - 3);
  }
  context.textAlign = "right";
  context.fillText("now", left + plot.w, height - 3);
}

// A line with gaps where there is no data: silence must not look like a steady value.
function line(context, samples, key, x, y, style) {
  context.strokeStyle = context.fillStyle = style;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  let before = null;
  for (const s of samples) {
    if (s[key] === null) continue;
    if (before !== null && s[AT] - before <= (3 * trend.span) / SPAN_S) context.lineTo(x(s[AT]), y(s[key]));
    else { context.moveTo(x(s[AT]) - 1, y(s[key])); context.lineTo(x(s[AT]), y(s[key])); }
    before = s[AT];
  }
  context.stroke();
}
