// Measured or filled in: the estimated error of each pixel of a paused frame, in red over the picture.

import { attempt, el, state } from "./page.js";
import { get } from "./link.js";
import { frameIndex, isPaused, redraw, setPlaying } from "./player.js";

const SMALL = 51;  // 2 % of full scale: measured; a tenth, 255, is filled in

let on = false, asked = "", layer = null;  // layer: { key, canvas }

const key = () => `${state.shown?.series} ${state.shown?.seq} ${frameIndex()}`;

// Draw the estimate over a frame that was just drawn; fetch it first where there is none yet.
export function draw(context) {
  if (!on || !isPaused() || !state.shown) return;
  if (layer?.key === key()) context.drawImage(layer.canvas, 0, 0, context.canvas.width, context.canvas.height);
  else fetchLayer();
}

const fetchLayer = () => attempt(async () => {
  const now = key();
  if (asked === now) return;
  asked = now;
  const { series, seq } = state.shown;
  const image = await createImageBitmap(await (await get("error.png", { series, seq, frame: frameIndex() })).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const picture = context.getImageData(0, 0, image.width, image.height), { data } = picture;
  for (let i = 0; i < data.length; i += 4) [data[i], data[i + 1], data[i + 2], data[i + 3]] = [255, 30, 60, 1.1 * Math.max(data[i] - SMALL, 0)];
  context.putImageData(picture, 0, 0);
  layer = { key: now, canvas };
  if (now === key()) redraw();
});

export function toggleUncertainty() {
  on = !on;
  asked = "";
  el("uncertainty").setAttribute("aria-pressed", String(on));
  el("error-legend").hidden = !on;
  if (on && !isPaused()) setPlaying(false);
  redraw();
}

export function start() {
  el("uncertainty").addEventListener("click", toggleUncertainty);
}
