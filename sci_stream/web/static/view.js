// Zoom and pan, the same for both pictures; and the sensor pixel below a point of the screen.

import { el, state } from "./page.js";
import { codedIsOf, clearCoded, drawExact, frameIndex, isPaused, showCoded } from "./player.js";
import { get } from "./link.js";

const MAX_ZOOM = 64;   // screen pixels per sensor pixel
const SQUARES_FROM = 2; // at this scale, a zoomed video and the coded snapshot show their pixels as squares
const DRAG_PX = 4;

const NAMES = ["video", "coded"];
// Scale in CSS pixels per sensor pixel (0: the whole picture), and the sensor point in the middle.
const view = { scale: 0, x: 0, y: 0 };
let onChange = () => {};
let exactTimer = 0;

const sensor = () => (state.shown ? { width: state.shown.width_px, height: state.shown.height_px } : null);

// The place of a picture in its stage: scale in CSS pixels per sensor pixel, and its upper left corner.
export function place(name) {
  const size = sensor();
  const stage = el(name).parentElement;
  if (!size || !stage.clientWidth || !stage.clientHeight) return null;
  const whole = Math.min(stage.clientWidth / size.width, stage.clientHeight / size.height);
  const scale = view.scale > whole ? view.scale : whole;
  const along = (middle, length, room) => {
    const shown = room / scale;
    const centre = shown >= length ? length / 2 : Math.min(Math.max(middle, shown / 2), length - shown / 2);
    return room / 2 - centre * scale;
  };
  const { clientWidth: w, clientHeight: h } = stage;
  return { scale, left: along(view.x, size.width, w), top: along(view.y, size.height, h), whole, width: w, height: h, sensor: size };
}

function apply() {
  for (const name of NAMES) {
    const at = place(name);
    const canvas = el(name);
    if (!at) continue;
    const zoomed = at.scale > at.whole * 1.001;
    canvas.classList.toggle("pixelated", at.scale >= SQUARES_FROM && (zoomed || name === "coded"));
    canvas.classList.toggle("zoomed", zoomed);
    canvas.style.width = `${at.sensor.width * at.scale}px`;
    canvas.style.height = `${at.sensor.height * at.scale}px`;
    canvas.style.transform = `translate(${at.left}px, ${at.top}px)`;
  }
  const at = place("video") ?? place("coded");
  if (at) {
    const one = 1 / devicePixelRatio;
    el("zoom-fit").setAttribute("aria-pressed", String(at.scale <= at.whole * 1.001));
    el("zoom-one").setAttribute("aria-pressed", String(Math.abs(at.scale / one - 1) < 0.001));
    el("zoom-one").textContent = at.scale <= at.whole * 1.001 || Math.abs(at.scale / one - 1) < 0.001 ? "1:1" : `${+(at.scale / one).toFixed(1)}:1`;
  }
  onChange();
  wantExact();
}

export const isZoomed = () => { const at = place("video") ?? place("coded"); return at !== null && at.scale > at.whole * 1.001; };

// For a paused picture, fetch its own coded snapshot and, once it is zoomed, the frame without loss at sensor resolution.
function wantExact() {
  clearTimeout(exactTimer);
  if (isPaused() && state.shown) exactTimer = setTimeout(fetchExact, 150);
}

async function fetchExact() {
  const shown = state.shown, frame = frameIndex();
  const parameters = { series: shown.series, seq: shown.seq };
  if (!codedIsOf(shown)) {
    try {
      const image = await createImageBitmap(await (await get("coded.jpg", parameters)).blob());
      if (state.shown === shown && isPaused()) showCoded(image, shown); else image.close();
    } catch {
      if (state.shown === shown && isPaused()) clearCoded();
    }
  }
  if (!isZoomed() || state.shown !== shown) return;
  try {
    drawExact(await createImageBitmap(await (await get("frame.png", { ...parameters, frame })).blob()), shown, frame);
  } catch { /* no longer in memory: the picture as it was sent remains, and its caption gives its size */ }
}

// The sensor pixel below a point of the screen; null outside the picture.
export function pixelAt(name, event) {
  const at = place(name);
  if (!at) return null;
  const box = el(name).parentElement.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left - at.left) / at.scale), y = Math.floor((event.clientY - box.top - at.top) / at.scale);
  return x >= 0 && y >= 0 && x < at.sensor.width && y < at.sensor.height ? { x, y } : null;
}

export function fit() { view.scale = 0; apply(); }

function oneToOne() {
  const size = sensor();
  if (!size) return;
  if (!isZoomed()) Object.assign(view, { x: size.width / 2, y: size.height / 2 });
  view.scale = 1 / devicePixelRatio;
  // A sensor smaller than its stage is shown larger than 1:1 as a whole.
  const at = place("video") ?? place("coded");
  if (at && at.whole > view.scale) view.scale = at.whole * 1.002;
  apply();
}

export const toggleZoom = () => (isZoomed() ? fit() : oneToOne());

// Zoom by a factor about a point of the screen, which stays where it is.
function zoomBy(factor, name, clientX, clientY) {
  const at = place(name);
  if (!at) return;
  const box = el(name).parentElement.getBoundingClientRect();
  const [px, py] = [clientX - box.left, clientY - box.top];
  const [sx, sy] = [(px - at.left) / at.scale, (py - at.top) / at.scale];
  const scale = Math.min(at.scale * factor, MAX_ZOOM / devicePixelRatio);
  view.scale = scale <= at.whole * 1.001 ? 0 : scale;
  Object.assign(view, { x: sx + (at.width / 2 - px) / scale, y: sy + (at.height / 2 - py) / scale });
  apply();
}

// Drag to pan, pinch to zoom. A pointer that hardly moves is a click, which other modules handle.
function pointers(name, captured) {
  const stage = el(name).parentElement;
  const down = new Map();
  stage.addEventListener("pointerdown", (event) => {
    if (captured() || event.button > 0 || event.target.closest("button")) return;
    down.set(event.pointerId, { x: event.clientX, y: event.clientY, moved: false });
  });
  stage.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before || captured()) return;
    const dx = event.clientX - before.x, dy = event.clientY - before.y;
    if (!before.moved && Math.hypot(dx, dy) < DRAG_PX) return;
    if (!before.moved) stage.setPointerCapture(event.pointerId);
    const others = [...down].filter(([id]) => id !== event.pointerId).map(([, other]) => other);
    if (others.length) {
      const [other] = others;
      const apart = (x, y) => Math.max(Math.hypot(x - other.x, y - other.y), 1);
      zoomBy(apart(event.clientX, event.clientY) / apart(before.x, before.y), name, (event.clientX + other.x) / 2, (event.clientY + other.y) / 2);
    } else if (isZoomed()) {
      const at = place(name);
      Object.assign(view, { x: (at.width / 2 - at.left - dx) / at.scale, y: (at.height / 2 - at.top - dy) / at.scale });
      apply();
    }
    down.set(event.pointerId, { x: event.clientX, y: event.clientY, moved: true });
  });
  for (const kind of ["pointerup", "pointercancel"]) stage.addEventListener(kind, (event) => down.delete(event.pointerId));
  stage.addEventListener("wheel", (event) => {
    if (!sensor() || (!event.ctrlKey && !isZoomed() && event.deltaY > 0)) return;  // let the page scroll past
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 300), name, event.clientX, event.clientY);
  }, { passive: false });
  stage.addEventListener("dblclick", (event) => {
    if (captured() || event.target.closest("button")) return;
    if (isZoomed()) fit();
    else zoomBy(8 / devicePixelRatio / place(name).scale, name, event.clientX, event.clientY);
  });
}

export const refresh = apply;

export function start(changed, captured) {
  onChange = changed;
  for (const name of NAMES) {
    pointers(name, captured);
    new ResizeObserver(apply).observe(el(name).parentElement);
  }
  el("zoom-fit").addEventListener("click", fit);
  el("zoom-one").addEventListener("click", oneToOne);
}
