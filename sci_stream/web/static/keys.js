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
import { t } from "./words.js";

const SHORTCUTS = [
  [[" "], t("space"), "k_pause", controls.togglePlaying],
  [["ArrowLeft"], "←", "k_before", () => { step(-1); judge(); }],
  [["ArrowRight"], "→", "k_next", () => { step(1); judge(); }],
  [["Home"], "Home", "k_first", () => { seek(0); judge(); }],
  [["End"], "End", "k_last", () => { seekEnd(); judge(); }],
  [[","], ",", "k_older", () => stepSnapshot(-1)],
  [["."], ".", "k_newer", () => stepSnapshot(1)],
  [["l"], "L", "k_loop", controls.toggleLoop],
  [["v"], "V", "k_view", controls.nextView],
  [["f"], "F", "k_full", controls.toggleFull],
  [["b"], "B", "k_panels", togglePanels],
  [["z"], "Z", "k_zoom", toggleZoom],
  [["g"], "G", "k_roi", () => setDrawing(!isDrawing())],
  [["c"], "C", "k_cut", toggleCut],
  [["x"], "X", "k_zebra", toggleZebra],
  [["t"], "T", "k_wipe", toggleWipe],
  [["e"], "E", "k_refine", refine],
  [["u"], "U", "k_uncertainty", toggleUncertainty],
  [["m"], "M", "k_more", toggleMore],
  [["r"], "R", "k_record", controls.toggleRecording],
  [["k"], "K", "keep_event", keep],
  [["s"], "S", "k_save", () => saveStill()],
  [["o"], "O", "k_files", openFiles],
  [["+", "="], "+", "k_brighter", () => controls.nudgeExposure(0.5)],
  [["-"], "−", "k_darker", () => controls.nudgeExposure(-0.5)],
  [["0"], "0", "k_reset", controls.resetTone],
  [["w"], "W", "k_auto", controls.autoWhite],
  [["p"], "P", "k_pick", () => controls.setPicking(!controls.isPicking())],
  [["d"], "D", "k_dark", toggleNight],
  [["?"], "?", "k_help", () => el("help").showModal()],
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
  el("shortcuts").replaceChildren(...SHORTCUTS.flatMap(([, shown, key]) => [make("dt", {}, make("kbd", {}, shown)), make("dd", {}, t(key))]));
  el("help-open").addEventListener("click", () => el("help").showModal());
}
