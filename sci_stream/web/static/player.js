// Plays the B frames of the newest snapshot: live, in a loop, at a rate of one's own, or by hand.

import { el, put, state } from "./page.js";
import { count } from "./format.js";

const DWELL_MS = { least: 1000 / 60, most: 1000 / 8 };
const WIDE = 1.8;  // times its height: from there on two pictures are larger one above the other than side by side
const ICON = { pause: "M4 3h3v10H4z M9 3h3v10H9z", play: "M4 3v10l9-5z" };

const video = el("video").getContext("2d");
const coded = el("coded").getContext("2d");

const player = {
  shown: null,    // { header, frames, coded }: what is on the screen
  waiting: null,  // the same, newer, until the frames on the screen have been played once at the viewer's own rate
  index: 0, nextAtMs: 0, played: false,
  onShow: () => {},  // called with the header of what is now on the screen
};

export const isPaused = () => !state.playing;
state.playing = true;

const fps = () => Number(el("rate").value);

// A picture has come: show it now, after the one before has been played, or never if the viewer looks at that one.
export function take(made) {
  if (player.shown && player.shown.header.published_ns === made.header.published_ns) { replace(made); return; }
  if (!state.playing && player.shown) { release(made); return; }
  if (fps() && player.shown && !player.played) {
    release(player.waiting);
    player.waiting = made;
    return;
  }
  begin(made);
}

// The same snapshot in another tone: the frame that is being looked at stays.
function replace(made) {
  release(player.shown);
  player.shown = made;
  draw(Math.min(Math.max(player.index, 0), made.frames.length - 1));
  drawCoded();
  player.onShow(made.header);
}

function begin(made) {
  release(player.shown);
  player.shown = made;
  player.waiting = null;
  player.played = false;
  player.nextAtMs = performance.now();
  player.index = -1;
  fit(video.canvas, made.frames[0]);
  el("pictures").dataset.shape = made.frames[0].width > WIDE * made.frames[0].height ? "wide" : "";
  if (made.coded) fit(coded.canvas, made.coded);
  drawCoded();
  el("scrub").max = String(made.frames.length - 1);
  ticks(made.frames.length);
  const { n_frames: n, width_px: width, height_px: height, bayer } = made.header;
  const shrunk = made.frames[0].width < width ? `, shown at ${made.frames[0].width}×${made.frames[0].height}` : "";
  put("video-size", `${n} frames, ${width}×${height}${shrunk}`);
  put("coded-size", made.coded ? `one exposure, ${width}×${height}${bayer ? `, ${bayer}` : ""}` : "not sent with the video");
  put("seq", `#${count(made.header.seq)}`);
  player.onShow(made.header);
}

function release(made) {
  if (!made) return;
  for (const frame of made.frames) frame.close();
  made.coded?.close();
}

function fit(canvas, bitmap) {
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    canvas.classList.toggle("pixelated", bitmap.width < 300);
  }
}

function ticks(n) {
  const node = el("ticks");
  const wanted = n <= 64 ? n : 0;
  while (node.children.length > wanted) node.lastChild.remove();
  while (node.children.length < wanted) node.append(document.createElement("i"));
}

function drawCoded() {
  if (player.shown?.coded) coded.drawImage(player.shown.coded, 0, 0);
}

function draw(index) {
  const { frames } = player.shown;
  video.drawImage(frames[index], 0, 0);
  player.index = index;
  el("scrub").value = String(index);
  el("scrub").setAttribute("aria-valuetext", `frame ${index + 1} of ${frames.length}`);
  put("frame", `${index + 1}/${frames.length}`);
  [...el("ticks").children].forEach((tick, i) => tick.classList.toggle("on", i <= index));
}

function dwellMs() {
  if (fps()) return 1000 / fps();
  const n = player.shown.frames.length;
  const interval = state.intervalMs ?? DWELL_MS.most * n;
  return Math.min(Math.max(interval / n, DWELL_MS.least), DWELL_MS.most);
}

function play(now) {
  requestAnimationFrame(play);
  if (!state.playing || !player.shown || now < player.nextAtMs) return;
  const last = player.shown.frames.length - 1;
  if (player.index >= last) {
    player.played = true;
    if (player.waiting) begin(player.waiting);
    else if (el("loop").checked) player.index = -1;
    else return;
  }
  // On a screen slower than the video, skip frames rather than fall behind.
  const dwell = dwellMs();
  const late = Math.min(Math.max(Math.floor((now - player.nextAtMs) / dwell), 0), last);
  draw(Math.min(player.index + 1 + late, player.shown.frames.length - 1));
  player.nextAtMs = Math.max(player.nextAtMs + (late + 1) * dwell, now);
}

export function setPlaying(playing) {
  state.playing = playing;
  el("pause-icon").setAttribute("d", playing ? ICON.pause : ICON.play);
  el("pause").setAttribute("aria-label", playing ? "Pause" : "Play");
  player.nextAtMs = performance.now();
}

export function seek(index) {
  if (!player.shown) return;
  setPlaying(false);
  draw(Math.min(Math.max(index, 0), player.shown.frames.length - 1));
}

export const step = (by) => seek(player.index + by);
export const seekEnd = () => seek(Infinity);

// Where a click on the video lies in the picture, as fractions of its width and height; null beside it.
export function pointIn(event) {
  const canvas = video.canvas;
  const box = canvas.getBoundingClientRect();
  const scale = Math.min(box.width / canvas.width, box.height / canvas.height);
  const x = (event.clientX - box.left - (box.width - canvas.width * scale) / 2) / (canvas.width * scale);
  const y = (event.clientY - box.top - (box.height - canvas.height * scale) / 2) / (canvas.height * scale);
  return x >= 0 && x <= 1 && y >= 0 && y <= 1 ? { x, y } : null;
}

export function start(onShow) {
  player.onShow = onShow;
  el("scrub").addEventListener("input", () => seek(Number(el("scrub").value)));
  el("loop").addEventListener("change", () => { player.nextAtMs = performance.now(); });
  el("rate").addEventListener("change", () => { player.nextAtMs = performance.now(); });
  requestAnimationFrame(play);
}
