// Everything by keyboard, and a list of how.

import { el } from "./page.js";
import { seek, seekEnd, step } from "./player.js";
import * as controls from "./controls.js";
import { judge } from "./verdict.js";

const SHORTCUTS = [
  [[" "], ["space"], "pause or play", controls.togglePlaying],
  [["ArrowLeft"], ["←"], "frame before", () => { step(-1); judge(); }],
  [["ArrowRight"], ["→"], "next frame", () => { step(1); judge(); }],
  [["Home"], ["Home"], "first frame", () => { seek(0); judge(); }],
  [["End"], ["End"], "last frame", () => { seekEnd(); judge(); }],
  [["l"], ["L"], "loop the newest snapshot", controls.toggleLoop],
  [["v"], ["V"], "both, video, coded snapshot", controls.nextView],
  [["f"], ["F"], "full screen", controls.toggleFull],
  [["r"], ["R"], "start or stop recording", controls.toggleRecording],
  [["s"], ["S"], "save this snapshot to disk", controls.saveStill],
  [["+", "="], ["+"], "brighter", () => controls.nudgeExposure(0.5)],
  [["-"], ["−"], "darker", () => controls.nudgeExposure(-0.5)],
  [["0"], ["0"], "tone as the rig says", controls.resetTone],
  [["w"], ["W"], "automatic white balance on or off", controls.autoWhite],
  [["p"], ["P"], "pick white", () => controls.setPicking(!controls.isPicking())],
  [["d"], ["D"], "dark lab: red and dim", controls.toggleNight],
  [["?"], ["?"], "this list", () => el("help").showModal()],
];

// A key that moves what has the focus, or presses it, is its own.
function isTaken(event) {
  const { tagName, type } = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || el("help").open) return true;
  if (tagName === "SELECT") return true;
  if (type === "range") return event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  return event.key === " " && (tagName === "BUTTON" || type === "checkbox");
}

export function start() {
  const actions = new Map(SHORTCUTS.flatMap(([keys, , , action]) => keys.map((key) => [key, action])));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { controls.setPicking(false); return; }
    if (isTaken(event)) return;
    const action = actions.get(event.key.length === 1 ? event.key.toLowerCase() : event.key);
    if (!action || (event.repeat && !event.key.startsWith("Arrow") && !"+-=".includes(event.key))) return;
    event.preventDefault();
    action();
  });
  el("shortcuts").replaceChildren(...SHORTCUTS.flatMap(([, shown, text]) => {
    const name = document.createElement("dt");
    name.append(...shown.map((key) => Object.assign(document.createElement("kbd"), { textContent: key })));
    return [name, Object.assign(document.createElement("dd"), { textContent: text })];
  }));
  el("help-open").addEventListener("click", () => el("help").showModal());
}
