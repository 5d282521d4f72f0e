// Layout: two pictures side by side or stacked, folding panels, colours.

import { el, state } from "./page.js";

const GAP_PX = 10, CAPTION_PX = 26, REST_MS = 3000;
const DESK = matchMedia("(min-width: 1181px) and (min-height: 640px)");
const folded = new Set(JSON.parse(localStorage.getItem("folded") ?? '["inspect"]'));

// --- pictures

// Side by side or stacked, whichever makes the pictures larger.
export function arrange() {
  const node = el("pictures");
  const width = state.shown?.width_px ?? 1, height = state.shown?.height_px ?? 1;
  const fixedHeight = DESK.matches || document.fullscreenElement;
  const room = { w: node.clientWidth, h: fixedHeight ? node.clientHeight : innerHeight * 0.6 };
  const beside = Math.min((room.w - GAP_PX) / 2 / width, (room.h - CAPTION_PX) / height);
  const below = Math.min(room.w / width, ((room.h - GAP_PX) / 2 - CAPTION_PX) / height);
  node.style.setProperty("--aspect", String(height / width));
  node.dataset.stack = below > beside ? "rows" : "columns";
}

// Full screen without pointer and keys shows the pictures alone.
let rest = 0, before = "both";

// Full screen is one picture: the video, unless the coded snapshot alone was shown.
function fillScreen() {
  const { dataset } = el("pictures");
  if (document.fullscreenElement) before = dataset.view;
  dataset.view = document.fullscreenElement && before === "both" ? "video" : before;
  arrange();
}

function awake() {
  document.body.classList.remove("idle");
  clearTimeout(rest);
  rest = setTimeout(() => document.body.classList.add("idle"), REST_MS);
}

// --- panels

// All figures, the last minutes and the stages, or three figures alone.
export function toggleMore() {
  const more = document.body.classList.toggle("more");
  el("more").setAttribute("aria-pressed", String(more));
  localStorage.setItem("more", more ? "1" : "");
  dispatchEvent(new Event("resize"));
}

const panel = (name) => document.querySelector(`[data-panel="${name}"]`);
export const isOpen = (name) => !folded.has(name) && panel(name).offsetParent !== null;

function fold(name, on) {
  if (on) folded.add(name); else folded.delete(name);
  panel(name).classList.toggle("folded", on);
  panel(name).querySelector(".fold").setAttribute("aria-expanded", String(!on));
  localStorage.setItem("folded", JSON.stringify([...folded]));
}

export function open(name) {
  fold(name, false);
  if (document.body.classList.contains("plain")) togglePanels();
}

export function togglePanels() {
  const plain = document.body.classList.toggle("plain");
  el("panels").setAttribute("aria-pressed", String(!plain));
  arrange();
}

function foldable() {
  for (const section of document.querySelectorAll("[data-panel]")) {
    const name = section.dataset.panel;
    section.querySelector(".fold").addEventListener("click", () => fold(name, !folded.has(name)));
    fold(name, folded.has(name));
  }
}

// --- colours

const root = document.documentElement;

export function toggleNight() {
  const night = root.classList.toggle("night");
  el("night").setAttribute("aria-pressed", String(night));
  localStorage.setItem("night", night ? "1" : "");
}

const systemIsLight = matchMedia("(prefers-color-scheme: light)");

// Light, dark, or, while it is empty, that of the system.
function setTheme(theme) {
  root.classList.toggle("light", theme === "light" || (!theme && systemIsLight.matches));
  localStorage.setItem("theme", theme);
  el("theme").value = theme;
}

export function start() {
  foldable();
  setTheme(localStorage.getItem("theme") ?? "");
  el("theme").addEventListener("change", () => setTheme(el("theme").value));
  systemIsLight.addEventListener("change", () => setTheme(el("theme").value));
  if (localStorage.getItem("night")) toggleNight();
  el("night").addEventListener("click", toggleNight);
  el("panels").addEventListener("click", togglePanels);
  el("more").addEventListener("click", toggleMore);
  if (localStorage.getItem("more")) toggleMore();
  document.addEventListener("fullscreenchange", fillScreen);
  for (const kind of ["pointermove", "pointerdown", "keydown", "fullscreenchange"]) document.addEventListener(kind, awake);
  new ResizeObserver(arrange).observe(el("pictures"));
  addEventListener("resize", arrange);
}
