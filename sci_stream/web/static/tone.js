// The tone of this viewer alone: exposure, black level and gamma on top of the tone for all, in which pictures arrive.
// White balance, false colours and demosaicing need the video itself; they are for all.

import { all, el, state } from "./page.js";

const OWN = ["exposure_ev", "black", "gamma"];
const LEVELS = 256;
const FILTER = "url(#own-tone)";
// Some browsers ignore filters of a canvas; false colours have no brightness that a curve could change.
const canFilter = "filter" in CanvasRenderingContext2D.prototype;

let own = {};
let made = "";  // the tones of the filter as it is

const forAll = () => state.status.preview?.tone ?? {};
export const isPossible = () => canFilter && (forAll().false_colour ?? "none") === "none";
export const ownTone = () => (isPossible() ? own : {});
export const isOwn = () => Object.keys(ownTone()).length > 0;

// The tone on this screen.
export const shownTone = () => ({ ...forAll(), ...ownTone() });

// Take the changes that stay with this viewer; return the others.
export function takeOwn(changes) {
  const now = forAll();
  const rest = {};
  for (const [name, value] of Object.entries(changes)) {
    if (!OWN.includes(name) || !isPossible()) rest[name] = value;
    else if (value === now[name]) delete own[name];
    else own[name] = value;
  }
  return rest;
}

export function dropOwn() { own = {}; }

// The level on this screen of a level, 0 to 1, that was made by `from`; gain is that of its colour.
function level(value, from, to, gain) {
  const light = from.black + ((1 - from.black) * value ** from.gamma) / (gain * 2 ** from.exposure_ev);
  const shown = ((light - to.black) / (1 - to.black)) * gain * 2 ** to.exposure_ev;
  return Math.min(Math.max(shown, 0), 1) ** (1 / to.gamma);
}

function makeFilter() {
  const from = forAll(), to = shownTone();
  const text = JSON.stringify([from, to]);
  if (text === made) return;
  made = text;
  const gains = from.white_balance === "fixed" ? from.gains : [1, 1, 1];
  all("#own-tone > * > *").forEach((curve, channel) => {
    const values = Array.from({ length: LEVELS }, (_, i) => level(i / (LEVELS - 1), from, to, gains[channel]).toFixed(4));
    curve.setAttribute("tableValues", values.join(" "));
  });
}

/**
 * Draw with the tone of this viewer.
 * @param {any} context
 * @param {() => void} work
 */
export function toned(context, work) {
  const filters = isOwn();
  if (filters) {
    makeFilter();
    context.filter = FILTER;
  }
  work();
  if (filters) context.filter = "none";
}

export function showOwn() {
  el("tone-share").hidden = !isOwn();
  el("tone-saved").hidden = !isOwn();
}
