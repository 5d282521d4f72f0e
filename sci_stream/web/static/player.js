// Plays the B frames of the newest snapshot: live, in a loop, at a chosen rate or step by step; or of one from the timeline.

import { el, put, state } from "./page.js";
import { count } from "./format.js";
import { toned } from "./tone.js";

const MIN_DWELL_MS = 1000 / 60;
const FIRST_DWELL_MS = 1000 / 8;  // until the rate of the camera is known
const HURRY = 0.8;  // of the time of a frame, while the next snapshot waits
const ICON = { pause: "M4 3h3v10H4z M9 3h3v10H9z", play: "M4 3v10l9-5z" };

const video = el("video").getContext("2d");
const coded = el("coded").getContext("2d");

const player = {
  /** @type {import("./page.js").Made | null} */
  shown: null,    // { header, frames, coded } on the screen
  /** @type {import("./page.js").Made | null} */
  other: null,    // the same snapshot by another method, to compare
  /** @type {import("./page.js").Made | null} */
  waiting: null,  // a newer one, until the frames on the screen have been played once
  coded: null,    // { image, seq, series }: the newest coded snapshot; with H.264 not every video has one
  index: 0, nextAtMs: 0, played: false,
  /** @type {(header: any) => void} */
  onShow: () => {},   // called with the header of the picture on the screen
  /** @type {(context: CanvasRenderingContext2D) => void} */
  onDraw: () => {},   // called after each frame that was drawn
  onPause: () => {},
  onEnd: () => {},    // called once the frames of a recording's snapshot have been played
};

export const isPaused = () => !state.playing;

export const shownFrames = () => player.shown?.frames ?? [];

// What the wipe can show beside the frame on the screen: { image, seq, iterations } or null.
export const codedImage = () => player.coded?.image ?? null;
export const otherFrame = () => (player.other ? { image: player.other.frames[Math.max(player.index, 0)], header: player.other.header } : null);
export const frameIndex = () => Math.max(player.index, 0);

const fps = () => Number(el("rate").value);

// Show a new picture now, or once the one before has been played, or never while playback is paused.
export function take(made) {
  if (player.shown && player.shown.header.published_ns === made.header.published_ns) { replace(made); return; }
  if ((!state.playing || state.recorded) && player.shown) { release(made); return; }
  if (player.shown && !player.played) {
    release(player.waiting);
    player.waiting = made;
    return;
  }
  begin(made);
}

// Show a picture from the timeline or of a recording, until live video is wanted again.
export function look(made, playing = false) {
  setPlaying(playing);
  begin(made);
}

// Show another solution of the snapshot on the screen, at the same frame, and keep that one to compare.
export function lookBeside(made) {
  const [before, index] = [player.shown, frameIndex()];
  release(player.other);
  [player.shown, player.other] = [null, before];
  look(made);
  draw(index);
}

// Replace the picture by the same snapshot in another tone; the frame on the screen stays the same.
function replace(made) {
  if (player.shown !== made) release(player.shown);
  player.shown = made;
  takeCoded(made);
  draw(Math.min(Math.max(player.index, 0), made.frames.length - 1));
  player.onShow(made.header);
}

// Number, values and first frame change together, so that a pause never shows the frame of another snapshot.
function begin(made) {
  release(player.shown);
  if (player.other && (player.other.header.seq !== made.header.seq || state.recorded)) { release(player.other); player.other = null; }
  if (player.waiting !== made) release(player.waiting);
  player.shown = made;
  player.waiting = null;
  player.played = false;
  player.index = -1;
  takeCoded(made);
  el("scrub").max = String(made.frames.length - 1);
  ticks(made.frames.length);
  put("seq", `#${count(made.header.seq)}`);
  player.onShow(made.header);
  draw(0);
  player.nextAtMs = performance.now() + dwellMs();
}

function release(made) {
  if (!made) return;
  made.drawn?.close();
  made.coded?.close();
  for (const frame of made.frames) frame.close();
}

function takeCoded(made) {
  el("analysis-figure").hidden = made.drawn === null;
  if (made.drawn) {
    const canvas = el("analysis");
    fit(canvas, made.drawn.width, made.drawn.height);
    canvas.getContext("2d").drawImage(made.drawn, 0, 0);
  }
  if (made.coded) {
    showCoded(made.coded, made.header);
    made.coded = null;
  }
  captions(made);
}

// Show a coded snapshot; the caption names its number if it is not that of the video.
export function showCoded(image, { seq, series }) {
  player.coded?.image.close();
  player.coded = { image, seq, series };
  fit(coded.canvas, image.width, image.height);
  coded.drawImage(image, 0, 0);
  if (player.shown) captions(player.shown);
}

export const codedIsOf = ({ seq, series }) => player.coded !== null && player.coded.seq === seq && player.coded.series === series;

// The snapshot on the screen has no coded snapshot: show nothing rather than another one.
export function clearCoded() {
  player.coded?.image.close();
  player.coded = null;
  coded.clearRect(0, 0, coded.canvas.width, coded.canvas.height);
  if (player.shown) captions(player.shown);
}

function captions({ header, frames }) {
  const { n_frames: n, width_px: width, height_px: height, bayer, counts } = header;
  const { width: shownWidth, height: shownHeight } = frames[0];
  const reduced = shownWidth < width ? `, reduced to ${shownWidth}×${shownHeight}: pause and zoom for full resolution` : "";
  const given = video.canvas.width >= width && player.exact ? ", full resolution" : reduced;
  put("gain-to", `→ ${n} frames`);
  put("video-size", `${width}×${height}` + given);
  const of = player.coded && !codedIsOf(header) ? `, of #${count(player.coded.seq)}` : "";
  put("coded-size", player.coded ? `${width}×${height}${bayer ? `, ${bayer}` : ""}` + of : counts ? "not kept with this snapshot" : "not sent with the video");
}

function fit(canvas, width, height) {
  if (canvas.width === width && canvas.height === height) return;
  canvas.width = width;
  canvas.height = height;
}

function ticks(n) {
  const node = el("ticks");
  const wanted = n <= 64 ? n : 0;
  while (node.children.length > wanted) node.lastChild.remove();
  while (node.children.length < wanted) node.append(document.createElement("i"));
}

function draw(index) {
  const { frames } = player.shown;
  const frame = frames[index];
  fit(video.canvas, frame.width, frame.height);
  toned(video, () => video.drawImage(frame, 0, 0));
  player.exact = false;
  player.index = index;
  el("scrub").value = String(index);
  el("scrub").setAttribute("aria-valuetext", `frame ${index + 1} of ${frames.length}`);
  put("frame", `${index + 1}/${frames.length}`);
  [...el("ticks").children].forEach((tick, i) => tick.classList.toggle("on", i <= index));
  captions(player.shown);
  player.onDraw(video);
}

// Draw a frame without loss at sensor resolution, if it is still the one on the screen.
export function drawExact(image, { series, seq }, index) {
  const { header } = player.shown;
  if (header.series === series && header.seq === seq && player.index === index && isPaused()) {
    fit(video.canvas, image.width, image.height);
    toned(video, () => video.drawImage(image, 0, 0));
    player.exact = true;
    captions(player.shown);
    player.onDraw(video);
  }
  image.close();
}

export const redraw = () => { if (player.shown && player.index >= 0) draw(player.index); };

// The frames of a snapshot take the time until the next one: a film without bursts and pauses.
function dwellMs() {
  if (fps()) return 1000 / fps();
  const n = player.shown.frames.length;
  const { acquired_per_s: perSecond } = state.status.rates ?? {};
  const first = perSecond > 0 ? 1000 / perSecond : FIRST_DWELL_MS * n;
  const interval = (state.recorded ?? state).intervalMs ?? first;
  const hurry = player.waiting ? HURRY : 1;
  return Math.max((hurry * interval) / n, MIN_DWELL_MS);
}

function play(now) {
  requestAnimationFrame(play);
  if (!state.playing || !player.shown || now < player.nextAtMs) return;
  const last = player.shown.frames.length - 1;
  if (player.index >= last) {
    player.played = true;
    if (state.recorded) { player.nextAtMs = Infinity; player.onEnd(); return; }
    if (player.waiting) begin(player.waiting);
    else if (el("loop").checked) player.index = -1;
    if (player.index >= 0) return;
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
  if (!playing) player.onPause();
}

export function seek(index) {
  if (!player.shown) return;
  setPlaying(false);
  draw(Math.min(Math.max(index, 0), player.shown.frames.length - 1));
}

export const step = (by) => seek(player.index + by);
export const seekEnd = () => seek(Infinity);

export function start({ onShow, onDraw, onPause, onEnd }) {
  Object.assign(player, { onShow, onDraw, onPause, onEnd });
  el("scrub").addEventListener("input", () => seek(Number(el("scrub").value)));
  el("loop").addEventListener("change", () => { player.nextAtMs = performance.now(); });
  el("rate").addEventListener("change", () => { player.nextAtMs = performance.now(); });
  requestAnimationFrame(play);
}
