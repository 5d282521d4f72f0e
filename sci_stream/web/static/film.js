// The B frames of one exposure, side by side: click one to see it.

import { el, make } from "./page.js";
import { seek, shownFrames } from "./player.js";

const HEIGHT_PX = 56, LEAST_PX = 36, EDGES_PX = 7;  // those of a frame and the gap after it

let step = 1;  // every frame is in the strip, or every other one, …

export function show() {
  const frames = shownFrames(), node = el("film");
  if (!frames.length || !node.clientWidth) return;
  const aspect = frames[0].width / frames[0].height, room = node.clientWidth / frames.length - EDGES_PX;
  const wide = Math.max(Math.min(HEIGHT_PX * aspect, room), LEAST_PX), high = wide / aspect;
  step = Math.ceil((frames.length * (wide + EDGES_PX)) / (node.clientWidth + EDGES_PX));
  const shown = Math.ceil(frames.length / step);
  while (node.children.length > shown) node.lastChild.remove();
  while (node.children.length < shown) node.append(frame(node.children.length));
  [...node.children].forEach((button, i) => {
    const canvas = button.firstChild, image = frames[i * step], ratio = devicePixelRatio;
    const [width, height] = [Math.round(wide * ratio), Math.round(high * ratio)];
    canvas.style.height = `${high}px`;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    canvas.getContext("2d").drawImage(image, 0, 0, width, height);
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
