// A wipe over the video: to its left the coded snapshot, or the same snapshot by another method.

import { el, state } from "./page.js";
import { codedImage, otherFrame, redraw } from "./player.js";
import { toned } from "./tone.js";
import { place } from "./view.js";

let on = false, share = 0.5;  // of the picture's width

const method = ({ iterations, method: name }) => [name, `${iterations} iterations`].filter(Boolean).join(", ");

function source() {
  const other = otherFrame();
  if (other) return { image: other.image, isVideo: true, left: method(other.header), right: method(state.shown) };
  const coded = codedImage();
  return coded && { image: coded, left: "Coded snapshot", right: "Video" };
}

// Draw the left part over a frame that was just drawn.
export function draw(context) {
  const beside = on && source();
  if (!beside) return;
  const { width, height } = context.canvas, at = Math.round(share * width);
  context.save();
  context.beginPath();
  context.rect(0, 0, at, height);
  context.clip();
  const drawBeside = () => context.drawImage(beside.image, 0, 0, width, height);
  if (beside.isVideo) toned(context, drawBeside);
  else drawBeside();
  context.restore();
}

// Place the handle and the names of both sides over the picture.
export function arrange() {
  const at = place("video"), beside = on && source();
  el("wipe-handle").hidden = !at || !beside;
  if (!at || !beside) return;
  el("wipe-handle").style.left = `${Math.min(Math.max(at.left + share * at.sensor.width * at.scale, 0), at.width)}px`;
  el("wipe-handle").setAttribute("aria-valuenow", String(Math.round(100 * share)));
  el("wipe-left").textContent = beside.left;
  el("wipe-right").textContent = beside.right;
}

function move(to) {
  share = Math.min(Math.max(to, 0), 1);
  redraw();
  arrange();
}

export function toggleWipe() {
  on = !on;
  el("wipe").setAttribute("aria-pressed", String(on));
  redraw();
  arrange();
}

export function start() {
  const handle = el("wipe-handle");
  el("wipe").addEventListener("click", toggleWipe);
  handle.addEventListener("pointerdown", (event) => { handle.setPointerCapture(event.pointerId); event.stopPropagation(); event.preventDefault(); });
  handle.addEventListener("pointermove", (event) => {
    const at = place("video");
    if (!at || !handle.hasPointerCapture(event.pointerId)) return;
    event.stopPropagation();
    move((event.clientX - handle.parentElement.getBoundingClientRect().left - at.left) / (at.sensor.width * at.scale));
  });
  handle.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -0.02, ArrowRight: 0.02 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    move(share + by);
  });
}
