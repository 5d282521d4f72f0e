// Buttons and sliders. Changes for all viewers are requested from the sink node; settings of this viewer stay here.

import { all, attempt, el, put, state, toast } from "./page.js";
import { ask, get } from "./link.js";
import { change, confirmed, name as operator } from "./operator.js";
import { frameIndex, isPaused, redraw, setPlaying, step } from "./player.js";
import { pixelAt } from "./view.js";
import { toLive } from "./timeline.js";
import { arrange } from "./layout.js";
import { dropOwn, isOwn, ownTone, showOwn, shownTone, takeOwn } from "./tone.js";
import { judge } from "./verdict.js";

const SHOWN = { exposure_ev: (v) => `${v > 0 ? "+" : ""}${v.toFixed(1)} EV`, black: (v) => v.toFixed(3), gamma: (v) => v.toFixed(2) };
const VIEWS = ["both", "video", "coded"];

const fields = all("[data-tone]");
const gains = [...el("gains").children];

// --- tone: one request at a time; changes made meanwhile are sent together in the next one

let wanted = {}, busy = false;

function setTone(changes) {
  const rest = takeOwn(changes);
  showTone(shownTone());
  redraw();
  return setForAll(rest);
}

async function setForAll(changes) {
  Object.assign(wanted, changes);
  if (busy) return;
  busy = true;
  try {
    while (Object.keys(wanted).length) {
      const now = wanted;
      wanted = {};
      const { tone } = await ask("tone", { ...now, who: operator() || "unknown" });
      if (!Object.keys(wanted).length) showTone({ ...tone, ...ownTone() });
    }
  } catch (error) {
    wanted = {};
    toast(error.message, true);
    showTone(shownTone(), true);
  } finally {
    busy = false;
  }
}

function showTone(tone, force = false) {
  for (const field of fields) {
    const value = tone[field.dataset.tone];
    if (value === undefined || (!force && document.activeElement === field && field.matches(":active"))) continue;
    field.value = String(value);
    showValue(field);
  }
  for (const name of ["none", "grey_world", "fixed"]) {
    el(`white-${name}`).setAttribute("aria-pressed", String(tone.white_balance === name));
  }
  el("gains").hidden = tone.white_balance !== "fixed";
  gains.forEach((field, i) => {
    if (tone.gains && document.activeElement !== field) field.value = tone.gains[i].toFixed(2);
  });
  showOwn();
}

// An empty field becomes null, which the sink node refuses with a message.
const setGains = () => setTone({ white_balance: "fixed", gains: gains.map((field) => (field.value ? Number(field.value) : null)) });

function showValue(field) {
  const output = document.querySelector(`output[for="${field.id}"]`);
  if (output) output.textContent = SHOWN[field.dataset.tone](Number(field.value));
}

export const nudgeExposure = (by) => {
  const field = el("exposure");
  field.value = String(Number(field.value) + by);
  showValue(field);
  setTone({ exposure_ev: Number(field.value) });
};

// Show the present values: other viewers may have changed them, or the sink node was restarted.
export function follow() {
  const { preview = {}, recording = {}, state: phase } = state.status;
  if (!busy && preview.tone) showTone(shownTone());
  const author = preview.tone_by ? `by ${preview.tone_by}` : "";
  put("tone-by", isOwn() ? "on this screen" : author);
  const recordable = Boolean(preview.can_record) && phase === "running" && recording.state !== "closing";
  el("record").disabled = !recordable || switching;
  const on = recording.state === "recording";
  el("record").setAttribute("aria-pressed", String(on));
  put("record-word", on ? "Stop" : "Record");
}

export function newPicture(header) {
  el("still").disabled = false;
  document.body.dataset.kind = header.bayer ? "colour" : "mono";
}

export const resetTone = () => setTone(state.status.preview?.rig_tone ?? {});

async function shareTone() {
  await setForAll(ownTone());
  dropOwn();
}
export const autoWhite = () => setTone({ white_balance: el("white-grey_world").getAttribute("aria-pressed") === "true" ? "none" : "grey_world" });

// --- picking white

export function setPicking(picking) {
  if (picking && document.body.dataset.kind === "mono") return;
  document.body.classList.toggle("picking", picking);
  el("white-pick").setAttribute("aria-pressed", String(picking));
  el("pick-hint").hidden = !picking;
  if (picking && el("pictures").dataset.view === "coded") setView("video");
}
export const isPicking = () => document.body.classList.contains("picking");

// A single pixel of a noisy reconstruction would give random gains. Darker, noise determines the ratio of the colours;
// brighter, the strongest colour is clipped.
const PICKED_PX = 10, DARKEST = 0.01, BRIGHTEST = 0.98, MAX_GAIN = 8;

// The gains that make the mean around a point grey, as by a spot meter.
async function pick(event) {
  const pixel = isPicking() ? pixelAt("video", event) : null;
  if (!pixel) return;
  await attempt(async () => {
    const { series, seq, width_px: width, height_px: height } = state.shown;
    const corner = (at, size) => Math.min(Math.max(at - PICKED_PX / 2, 0), Math.max(size - PICKED_PX, 0));
    const region = { x: corner(pixel.x, width), y: corner(pixel.y, height), width: PICKED_PX, height: PICKED_PX };
    const { pixels } = await (await get("values", { series, seq, frame: frameIndex(), ...region, pixels: 1 })).json();
    const [red, green, blue] = pixels.rgb.map((plane) => plane.flat().reduce((sum, value) => sum + value, 0) / plane.flat().length);
    const black = state.status.preview?.tone?.black ?? 0;
    if (Math.max(red, green, blue) > BRIGHTEST) throw new Error("That point is too bright for a white balance: pick a grey one");
    if (Math.min(red, green, blue) - black < DARKEST) throw new Error("That point is too dark for a white balance: pick something grey or white");
    const gain = (mean) => Math.min(Math.max((green - black) / (mean - black), 1 / MAX_GAIN), MAX_GAIN);
    await setTone({ white_balance: "fixed", gains: [gain(red), 1, gain(blue)] });
    setPicking(false);
  });
}

// --- recording and stills

let switching = false;

export async function toggleRecording() {
  if (el("record").disabled) return;
  const on = state.status.recording?.state !== "recording";
  if (!on && !(await confirmed("Stop the recording", "It stops for everybody. Snapshots from now on are not recorded until someone starts it again."))) return;
  switching = true;
  el("record").disabled = true;
  await attempt(async () => {
    const { text } = await change("set", { node: "sink", parameters: { recording: on } });
    toast(`${on ? "Recording" : "Recorded"} to ${text}`);
  });
  switching = false;
  follow();
}

// --- settings of this viewer

function setView(view) {
  el("pictures").dataset.view = view;
  for (const button of all("button[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
  arrange();
}
export const nextView = () => setView(VIEWS[(VIEWS.indexOf(el("pictures").dataset.view) + 1) % VIEWS.length]);

export function togglePlaying() {
  if (isPaused() && state.recorded) setPlaying(true);
  else if (isPaused()) toLive();
  else setPlaying(false);
  judge();
}
export function toggleLoop() { el("loop").click(); }

export function toggleFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen?.().catch(() => toast("The browser does not allow full screen here.", true));
}

export function start() {
  for (const field of fields) {
    field.addEventListener(field.tagName === "SELECT" ? "change" : "input", () => {
      showValue(field);
      setTone({ [field.dataset.tone]: field.tagName === "SELECT" ? field.value : Number(field.value) });
    });
  }
  for (const button of all("[data-white]")) {
    button.addEventListener("click", () => {
      if (button.dataset.white === "pick") setPicking(!isPicking());
      else { setPicking(false); setTone({ white_balance: button.dataset.white }); }
    });
  }
  for (const field of gains) field.addEventListener("change", setGains);
  for (const button of all("button[data-view]")) button.addEventListener("click", () => setView(button.dataset.view));
  const clicks = {
    "tone-reset": resetTone, "tone-share": shareTone, "pick-leave": () => setPicking(false), record: toggleRecording, pause: togglePlaying, full: toggleFull,
    back: () => { step(-1); judge(); }, forward: () => { step(1); judge(); },
  };
  for (const [id, action] of Object.entries(clicks)) el(id).addEventListener("click", action);
  el("scrub").addEventListener("input", judge);
  el("video").addEventListener("click", pick);
  el("full").hidden = !document.fullscreenEnabled;  // some phones have none
}
