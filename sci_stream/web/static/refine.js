// Refine the paused snapshot: solve it again with more iterations or another method, on the host of the sink node.

import { attempt, el, put, state, toast } from "./page.js";
import { decode } from "./decode.js";
import { get } from "./link.js";
import { isPaused, lookBeside } from "./player.js";
import { judge } from "./verdict.js";
import { count } from "./format.js";

const ITERATIONS = 40;

let busy = false, listed = "";

// The series that a snapshot was filmed in; see web/recordings.py.
export const seriesOf = ({ series }) => series.replace(/ refined$/, "");
const refinable = () => isPaused() && state.shown?.counts && !state.recorded && seriesOf(state.shown) === state.status.series;

// Offer it for a paused snapshot of the running series.
export function offer() {
  el("refining").hidden = !(busy || refinable());
  el("refine").disabled = busy;
}

// The methods: that of the snapshot, and those that the reconstruct nodes can change to.
export function follow() {
  const nodes = (state.status.controls ?? []).filter(({ kind }) => kind === "reconstruct");
  const choices = nodes[0]?.parameters.find(({ name }) => name === "solver")?.choices ?? [];
  if (listed === choices.join()) return;
  listed = choices.join();
  el("refine-with").replaceChildren(new Option("same method", ""), ...choices.map((name) => new Option(name, name)));
}

export const refine = () => attempt(async () => {
  if (busy || !refinable()) return;
  busy = true;
  offer();
  try {
    const { seq } = state.shown, series = seriesOf(state.shown), denoiser = el("refine-with").value;
    put("refine", `refining #${count(seq)} …`);
    const made = await decode(await (await get("refined", { series, seq, iterations: ITERATIONS, denoiser })).arrayBuffer());
    if (!isPaused() || state.shown.seq !== seq) { toast(`#${count(seq)} is refined, but no longer on the screen: pause on it and refine again`); return; }
    state.lookingBack = true;
    lookBeside(made);
    el("to-live").hidden = false;
    judge();
  } finally {
    busy = false;
    put("refine", "Refine");
    offer();
  }
});

export function start() {
  el("refine").addEventListener("click", refine);
}
