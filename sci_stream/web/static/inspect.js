// Measurements on a picture: pixel values, statistics and focus of a region, clipped pixels.

import { el, put, showRows, state } from "./page.js";
import { surface } from "./charts.js";
import { get } from "./link.js";
import { fixed, known, percent } from "./format.js";
import { frameIndex, redraw } from "./player.js";
import { isZoomed, pixelAt, place } from "./view.js";
import { open as openPanel, isOpen } from "./layout.js";
import { drawLine } from "./cut.js";

const VALUES_FROM_PX = 34;  // CSS pixels per sensor pixel from which on its value fits in
const PERIOD_MS = 250;      // values change at most four times a second
const CLIPPED = 253, STRIPE_PX = 6;
const NAMES = ["video", "coded"];

let region = null;          // { x, y, width, height } on the sensor; null: the whole picture
let drawing = null;         // the corner where a region was begun, and the picture in which
let best = 0;
let pointer = null;         // { name, event }: where the pointer is over a picture
let values = null;          // { key, x, y, video, counts }: the pixels that were fetched last
let busy = false, again = false;

const key = () => `${state.shown?.series} ${state.shown?.seq} ${frameIndex()}`;
export const currentRegion = () => region;
export const isDrawing = () => document.body.classList.contains("drawing");

// --- zebra

export function toggleZebra() {
  const on = document.body.classList.toggle("zebra");
  el("zebra").setAttribute("aria-pressed", String(on));
  redraw();
}

const scratch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

// Draw stripes over clipped pixels.
export function stripe(context) {
  if (!document.body.classList.contains("zebra")) return;
  const { width, height } = context.canvas;
  Object.assign(scratch.canvas, { width, height });
  scratch.drawImage(context.canvas, 0, 0);
  const image = scratch.getImageData(0, 0, width, height);
  const { data } = image;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i] < CLIPPED && data[i + 1] < CLIPPED && data[i + 2] < CLIPPED) continue;
    const pixel = i / 4, diagonal = (pixel % width) + Math.floor(pixel / width);
    const dark = Math.floor(diagonal / STRIPE_PX) % 2 === 0;
    [data[i], data[i + 1], data[i + 2]] = dark ? [20, 20, 20] : [255, 60, 200];
  }
  scratch.putImageData(image, 0, 0);
  context.drawImage(scratch.canvas, 0, 0);
}

// --- the region

export function setDrawing(on) {
  document.body.classList.toggle("drawing", on);
  el("roi").setAttribute("aria-pressed", String(on));
  if (on) openPanel("inspect");
}

function clearRegion() {
  region = null;
  setDrawing(false);
  best = 0;
  changed();
}

function between(a, b) {
  return { x: Math.min(a.x, b.x), y: Math.min(a.y, b.y), width: Math.abs(a.x - b.x) + 1, height: Math.abs(a.y - b.y) + 1 };
}

function follow(name) {
  const stage = el(name).parentElement;
  stage.addEventListener("pointerdown", (event) => {
    const pixel = isDrawing() ? pixelAt(name, event) : null;
    if (!pixel) return;
    drawing = { name, from: pixel };
    stage.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  stage.addEventListener("pointermove", (event) => {
    pointer = { name, event };
    const pixel = drawing?.name === name ? pixelAt(name, event) : null;
    if (pixel) region = between(drawing.from, pixel);
    changed();
  });
  stage.addEventListener("pointerup", () => {
    if (drawing?.name !== name) return;
    drawing = null;
    best = 0;
    setDrawing(false);
    changed();
  });
  stage.addEventListener("pointerleave", () => { if (!drawing) { pointer = null; changed(); } });
}

// --- marks over the pictures: the region, and the values of large pixels

function marks(name) {
  const at = place(name);
  if (!at) return;
  const { context } = surface(el(`${name}-marks`));
  if (at.scale >= VALUES_FROM_PX && values?.key === key()) numbers(context, at, name);
  if (name === "video") { drawScale(context, at); drawLine(context, at); }
  if (!region) return;
  context.strokeStyle = "#000";
  context.lineWidth = 3;
  const box = [at.left + region.x * at.scale, at.top + region.y * at.scale, region.width * at.scale, region.height * at.scale];
  context.strokeRect(...box);
  context.strokeStyle = "#ffd54a";
  context.lineWidth = 1.5;
  context.strokeRect(...box);
}

// A bar of a round length, where the rig file has the size of a pixel.
function drawScale(context, { scale, left, top, width, height, sensor }) {
  const um = state.status.preview?.pixel_um;
  if (!um) return;
  const most = (Math.min(width, sensor.width * scale) / 4 / scale) * um, power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].map((n) => n * power).find((n) => n <= most), px = (length / um) * scale;
  const x = Math.min(left + sensor.width * scale, width) - px - 12, y = Math.min(top + sensor.height * scale, height) - 12;
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = "right";
  for (const [style, line] of [["rgb(0 0 0 / .8)", 5], ["#fff", 2.5]]) {
    Object.assign(context, { strokeStyle: style, lineWidth: line });
    context.beginPath();
    context.moveTo(x, y); context.lineTo(x + px, y);
    context.stroke();
  }
  Object.assign(context, { strokeStyle: "rgb(0 0 0 / .8)", lineWidth: 3, fillStyle: "#fff" });
  const text = length >= 1000 ? `${length / 1000} mm` : `${+length.toPrecision(1)} µm`;
  context.strokeText(text, x + px, y - 6);
  context.fillText(text, x + px, y - 6);
}

const short = (value) => fixed(value, 3).replace(/^0/, "");

function numbers(context, at, name) {
  const rows = name === "video" ? values.video : values.counts;
  if (!rows) return;
  const colours = name === "video" ? values.rgb : null;
  context.font = `${Math.min(13, at.scale / (colours ? 4 : 3))}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 3;
  context.strokeStyle = "rgb(0 0 0 / .8)";
  context.fillStyle = "#fff";
  rows.forEach((row, j) => row.forEach((value, i) => {
    const [x, y] = [at.left + (values.x + i + 0.5) * at.scale, at.top + (values.y + j + 0.5) * at.scale];
    const texts = colours ? colours.map((plane) => short(plane[j][i])) : [name === "video" ? short(value) : String(value)];
    texts.forEach((text, k) => {
      const below = y + (k - (texts.length - 1) / 2) * at.scale * 0.28;
      context.fillStyle = colours ? ["#ff9c94", "#9fe8ad", "#a9c4ff"][k] : "#fff";
      context.strokeText(text, x, below);
      context.fillText(text, x, below);
    });
  }));
}

// --- values from the sink node: those of the snapshot itself, not of the picture on the screen

// The pixels to fetch: all visible ones if their values fit in, else the one below the pointer.
function wantedPixels() {
  const name = pointer?.name ?? (place("video") ? "video" : "coded");
  const at = place(name);
  if (!at || !state.shown) return null;
  if (at.scale >= VALUES_FROM_PX) {
    const x = Math.max(0, Math.floor(-at.left / at.scale)), y = Math.max(0, Math.floor(-at.top / at.scale));
    const width = Math.min(64, at.sensor.width - x, Math.ceil(at.width / at.scale) + 1), height = Math.min(64, at.sensor.height - y, Math.ceil(at.height / at.scale) + 1);
    return { x, y, width, height };
  }
  const pixel = pointer && pixelAt(pointer.name, pointer.event);
  return pixel && { ...pixel, width: 1, height: 1 };
}

function showProbe() {
  const pixel = pointer && pixelAt(pointer.name, pointer.event);
  const [i, j] = pixel && values ? [pixel.x - values.x, pixel.y - values.y] : [-1, -1];
  const value = values?.video[j]?.[i], counts = values?.counts?.[j]?.[i];
  const shown = values?.rgb ? values.rgb.map((plane) => fixed(plane[j]?.[i], 3)).join(" ") : fixed(value, 4);
  const text = value === undefined || values.key !== key() ? "" : `x ${pixel.x}, y ${pixel.y}: ${shown}${known(counts) ? ` · ${counts} DN` : ""}`;
  for (const name of NAMES) put(`${name}-probe`, pointer?.name === name ? text : "");
}

async function fetchFigures() {
  const shown = state.shown;
  if (!shown || document.hidden) return;
  const parameters = { series: shown.series, seq: shown.seq, frame: frameIndex() };
  const now = key(), pixels = wantedPixels();
  try {
    if (pixels) {
      const found = await (await get("values", { ...parameters, ...pixels, pixels: 1 })).json();
      values = { key: now, ...found.pixels };
    }
    if (isOpen("inspect")) showRegion(await (await get("values", { ...parameters, ...(region ?? {}) })).json());
  } catch (error) {
    values = null;
    if (isOpen("inspect")) showRegion(null, error.message);
  }
  for (const name of NAMES) marks(name);
  showProbe();
}

function showRegion(found, why = "") {
  put("region-is", region ? `${region.width}×${region.height} at ${region.x}, ${region.y}` : "whole picture");
  const statistics = ["mean", "std", "min", "max"];
  const rows = statistics.map((name) => ({ cells: [name, fixed(found?.video[name], 4), fixed(found?.counts?.[name], 1)] }));
  if (known(found?.saturated)) rows.push({ cells: ["Saturated", "", percent(found.saturated)] });
  showRows("region", rows);
  el("region").title = why;
  best = Math.max(best, found?.focus ?? 0);
  put("focus", fixed(found?.focus, 2));
  el("focus-bar").value = best > 0 ? (found?.focus ?? 0) / best : 0;
  put("focus-best", best > 0 ? `best ${fixed(best, 2)}` : "");
}

// The screen or the pointer has changed: draw now, and fetch at most four times a second.
export function changed() {
  for (const name of NAMES) marks(name);
  showProbe();
  if (!isOpen("inspect") && !pointer && !(isZoomed() && (place("video")?.scale ?? 0) >= VALUES_FROM_PX)) return;
  again = true;
  if (!busy) run();
}

async function run() {
  busy = true;
  while (again) {
    again = false;
    await fetchFigures();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
  busy = false;
}

export function start() {
  for (const name of NAMES) follow(name);
  el("roi").addEventListener("click", () => setDrawing(!isDrawing()));
  el("zebra").addEventListener("click", toggleZebra);
  el("region-clear").addEventListener("click", clearRegion);
  el("focus-reset").addEventListener("click", () => { best = 0; changed(); });
}
