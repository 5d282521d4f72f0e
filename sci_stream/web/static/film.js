// The B frames of one exposure over the full width: click one to see it; the pointer shows what changed in each.

import { el, make } from "./page.js";
import { seek, shownFrames } from "./player.js";
import { toned } from "./tone.js";

const MAX_HEIGHT_PX = 84, LEAST_PX = 36, EDGES_PX = 7;  // those of a frame and the gap after it
const GAIN = 6;          // a change of a sixth of the range is white
const LEVEL = Math.round(255 * (1 - 1 / GAIN));
const SHADE = `rgb(${LEVEL} ${LEVEL} ${LEVEL})`;
const UNFOLD_MS = 900, STAGGER_MS = 90;

let step = 1;            // every frame is in the strip, or every other one, …
let compared = false;    // whether frames show their difference from the one before
let unfolded = false;

export function show() {
  const frames = shownFrames(), node = el("film");
  if (!frames.length || !node.clientWidth) return;
  const aspect = frames[0].height / frames[0].width;
  step = Math.ceil((frames.length * (LEAST_PX + EDGES_PX)) / (node.clientWidth + EDGES_PX));
  const shown = Math.ceil(frames.length / step);
  const wide = (node.clientWidth + EDGES_PX) / shown - EDGES_PX;
  const high = Math.min(wide * aspect, MAX_HEIGHT_PX);
  while (node.children.length > shown) node.lastChild.remove();
  while (node.children.length < shown) node.append(frame(node.children.length));
  [...node.children].forEach((button, i) => {
    const canvas = button.firstChild;
    const width = Math.round(wide * devicePixelRatio), height = Math.round(high * devicePixelRatio);
    canvas.style.height = `${high}px`;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    paint(canvas.getContext("2d"), frames[i * step], compared && i ? frames[(i - 1) * step] : null);
  });
  if (!unfolded) unfold(node);
}

// The middle of a frame, as wide as its place; or how it differs from the one before.
function paint(context, image, before) {
  const { width, height } = context.canvas;
  const rows = Math.min((image.width * height) / width, image.height);
  const top = (image.height - rows) / 2;
  const draw = (frame) => toned(context, () => context.drawImage(frame, 0, top, image.width, rows, 0, 0, width, height));
  context.globalCompositeOperation = "source-over";
  draw(image);
  if (!before) return;
  context.globalCompositeOperation = "difference";
  draw(before);
  context.globalCompositeOperation = "color-dodge";  // divides by 1 - 1/GAIN of the range
  context.fillStyle = SHADE;
  context.fillRect(0, 0, width, height);
}

// Once, the coded snapshot unfolds into its frames: what this camera does, before a word is read.
function unfold(node) {
  unfolded = true;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const from = el(el("coded").offsetParent ? "coded" : "video").getBoundingClientRect();
  [...node.children].forEach((button, i) => {
    const to = button.getBoundingClientRect();
    const x = from.left + from.width / 2 - to.left - to.width / 2;
    const y = from.top + from.height / 2 - to.top - to.height / 2;
    button.animate(
      [{ transform: `translate(${x}px, ${y}px) scale(${from.width / to.width})`, opacity: 0.1, zIndex: 3 }, { transform: "none" }],
      { duration: UNFOLD_MS, delay: i * STAGGER_MS, easing: "cubic-bezier(.2, .7, .2, 1)", fill: "backwards" },
    );
  });
}

function frame(i) {
  const button = make("button", { type: "button" }, make("canvas"));
  button.setAttribute("aria-label", `frame ${i * step + 1} of ${shownFrames().length}`);
  button.addEventListener("click", () => seek(i * step));
  return button;
}

export function mark(index) {
  [...el("film").children].forEach((button, i) => {
    const on = Math.floor(index / step) === i;
    if (on !== (button.getAttribute("aria-current") === "true")) button.setAttribute("aria-current", String(on));
  });
}

export function start() {
  const compare = (on) => () => { compared = on; show(); };
  el("film").addEventListener("pointerenter", compare(true));
  el("film").addEventListener("pointerleave", compare(false));
}
