// Keyboard shortcuts, and their list.

import { el, make } from "./page.js";
import { seek, seekEnd, step } from "./player.js";
import * as controls from "./controls.js";
import { setLining, toggleCut } from "./cut.js";
import { toggleUncertainty } from "./uncertainty.js";
import { keep } from "./events.js";
import { openFiles, saveStill } from "./files.js";
import { isDrawing, setDrawing, toggleZebra } from "./inspect.js";
import { toggleMore, toggleNight, togglePanels } from "./layout.js";
import { refine } from "./refine.js";
import { stepSnapshot } from "./timeline.js";
import { judge } from "./verdict.js";
import { toggleZoom } from "./view.js";
import { toggleWipe } from "./wipe.js";

/** @type {[string[], string, string, () => void][]} */
const SHORTCUTS = [
  [[" "], "space", "pause or play", controls.togglePlaying],
  [["ArrowLeft"], "←", "frame before", () => { step(-1); judge(); }],
  [["ArrowRight"], "→", "next frame", () => { step(1); judge(); }],
  [["Home"], "Home", "first frame", () => { seek(0); judge(); }],
  [["End"], "End", "last frame", () => { seekEnd(); judge(); }],
  [[","], ",", "snapshot before", () => stepSnapshot(-1)],
  [["."], ".", "next snapshot", () => stepSnapshot(1)],
  [["l"], "L", "loop the newest snapshot", controls.toggleLoop],
  [["v"], "V", "both, video, coded snapshot", controls.nextView],
  [["f"], "F", "full screen: the picture alone", controls.toggleFull],
  [["b"], "B", "show or hide the panels", togglePanels],
  [["z"], "Z", "whole picture or 1:1", toggleZoom],
  [["g"], "G", "draw a region", () => setDrawing(!isDrawing())],
  [["c"], "C", "space-time cut", toggleCut],
  [["x"], "X", "clipping zebra", toggleZebra],
  [["t"], "T", "wipe to the coded snapshot or the other method", toggleWipe],
  [["e"], "E", "refine the paused snapshot", refine],
  [["u"], "U", "estimated error", toggleUncertainty],
  [["m"], "M", "all figures, or three", toggleMore],
  [["r"], "R", "start or stop recording", controls.toggleRecording],
  [["k"], "K", "keep an event", keep],
  [["s"], "S", "download this snapshot", () => saveStill()],
  [["o"], "O", "downloads", openFiles],
  [["+", "="], "+", "brighter", () => controls.nudgeExposure(0.5)],
  [["-"], "−", "darker", () => controls.nudgeExposure(-0.5)],
  [["0"], "0", "tone of the rig file", controls.resetTone],
  [["w"], "W", "automatic white balance on or off", controls.autoWhite],
  [["p"], "P", "pick white", () => controls.setPicking(!controls.isPicking())],
  [["d"], "D", "dark lab: red and dim", toggleNight],
  [["?"], "?", "this list", () => el("help").showModal()],
];

// Keys that operate the focused element belong to it: all of them in a field, where an operator types.
function isTaken(event) {
  const { tagName, type } = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return true;
  if (type === "range") return event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End";
  if (tagName === "BUTTON" || type === "checkbox") return event.key === " ";
  return ["INPUT", "SELECT", "TEXTAREA"].includes(tagName);
}

export function start() {
  const actions = new Map(SHORTCUTS.flatMap(([keys, , , action]) => keys.map((key) => [key, action])));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { controls.setPicking(false); setDrawing(false); setLining(false); return; }
    if (isTaken(event)) return;
    const action = actions.get(event.key.length === 1 ? event.key.toLowerCase() : event.key);
    if (!action || (event.repeat && !event.key.startsWith("Arrow") && !"+-=".includes(event.key))) return;
    event.preventDefault();
    action();
  });
  el("shortcuts").replaceChildren(...SHORTCUTS.flatMap(([, shown, what]) => [make("dt", {}, make("kbd", {}, shown)), make("dd", {}, what)]));
  el("help-open").addEventListener("click", () => el("help").showModal());
}
