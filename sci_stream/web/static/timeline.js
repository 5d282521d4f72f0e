// The timeline of the last five minutes: kept pictures, lost snapshots, looking back; or that of a recording being played.

import { attempt, el, state } from "./page.js";
import { bytes, duration } from "./format.js";
import { decode, wanted } from "./decode.js";
import { get } from "./link.js";
import { losses, surface, colour, SPAN_S } from "./charts.js";
import { look, setPlaying, isPaused } from "./player.js";
import { seriesOf } from "./refine.js";
import { hostNowMs, judge } from "./verdict.js";

const NUMBER = 0, SERIES = 1, SEQ = 2, ACQUIRED_NS = 3, LOST = 4;  // places in an entry; see web/archive.py
const POLL_MS = 1000;

let kept = [];        // entries, oldest first
let asked = null;     // fetches and shows the next picture, while another one is being fetched
let fetching = null;  // resolves when none is

async function poll() {
  try {
    const after = kept.length ? kept[kept.length - 1][NUMBER] : -1;
    const found = await (await get("timeline", { after })).json();
    // In another tone, a snapshot has another number.
    const isReplaced = (entry) => found.snapshots.some((one) => one[SEQ] === entry[SEQ] && one[SERIES] === entry[SERIES]);
    kept = [...kept.filter((entry) => entry[NUMBER] >= found.oldest && !isReplaced(entry)), ...found.snapshots];
    el("timeline").title = `Click or drag to look back; red: lost snapshots. Memory: ${bytes(found.bytes)} of ${bytes(found.max_bytes)}`;
  } catch { /* the state of the page shows a lost connection */ }
  draw();
}

// A restarted sink node counts from zero.
export function restart() { kept = []; poll(); }

const place = (width) => {
  const now = hostNowMs() ?? Date.now();
  return { x: (ns) => width * (1 - (now - ns / 1e6) / (SPAN_S * 1000)), at: (x) => (now - (1 - x / width) * SPAN_S * 1000) * 1e6, now };
};

export function draw() {
  const { context, width, height } = surface(el("timeline"));
  if (width < 20) return;
  if (state.recorded) { drawRecorded(context, width, height); return; }
  const { x, now } = place(width);
  context.fillStyle = colour("--raised");
  context.fillRect(0, 0, width, height);
  context.fillStyle = colour("--track");
  for (const minute of [1, 2, 3, 4]) context.fillRect(width * (1 - minute / 5), 0, 1, height);
  context.fillStyle = colour("--signal");
  context.globalAlpha = 0.55;
  for (const entry of kept) context.fillRect(x(entry[ACQUIRED_NS]) - 0.5, height * 0.35, Math.max(1.5, width / 900), height * 0.4);
  context.globalAlpha = 1;
  context.fillStyle = colour("--bad");
  for (const atS of losses()) context.fillRect(width * (1 - (now / 1000 - atS) / SPAN_S) - 1, 0, 2.5, height);
  context.fillStyle = colour("--ink");
  for (const { first_ns, time_ns, last_ns } of state.status.events ?? []) {
    context.fillRect(x(first_ns), height - 3, Math.max(2, x(last_ns) - x(first_ns)), 3);
    context.fillRect(x(time_ns) - 1, height * 0.75, 2, height);
  }
  context.fillStyle = colour("--bad");
  for (const entry of kept) if (entry[LOST] > 0) context.fillRect(x(entry[ACQUIRED_NS]) - 1, 0, 2, height);
  const shown = state.shown?.acquired_ns;
  if (!shown) return;
  const at = Math.min(Math.max(x(shown), 1), width - 2);
  context.fillStyle = colour("--ink");
  context.fillRect(at - 1.5, 0, 3, height);
  const behind = Math.max(0, now - shown / 1e6);
  el("timeline").setAttribute("aria-valuenow", String(-Math.round(behind / 1000)));
  el("timeline").setAttribute("aria-valuetext", `−${duration(behind)}`);
}

// Show one picture after the other: of those that are asked for while one is being fetched, the last.
function lastOnly(work) {
  asked = work;
  return (fetching ??= fetchAsked());
}

async function fetchAsked() {
  while (asked !== null) {
    const now = asked;
    asked = null;
    await attempt(now);
  }
  fetching = null;
}

const show = (number) => lastOnly(async () => {
  const made = await decode(await (await get(`picture/${number}`, { codec: wanted() })).arrayBuffer());
  state.lookingBack = true;
  look(made);
  el("to-live").hidden = false;
  judge();
});

// --- a recording

const MAX_STEP_MS = 2000;
let next = null;  // { index, made }: the snapshot after the one on the screen, being fetched

const fetchRecorded = async (name, index) => decode(await (await get(`recordings/${encodeURIComponent(name)}/${index}`)).arrayBuffer());

// Play a recording from one of its snapshots, or show that one.
export const playRecording = (name, index = 0, playing = true) => lastOnly(async () => {
  const before = state.recorded, acquired = state.shown?.acquired_ns;
  const fetched = next?.name === name && next.index === index ? next.made : fetchRecorded(name, index);
  next = null;
  const made = await fetched;
  if (before && !state.recorded) return;  // back to live meanwhile
  const stepMs = (made.header.acquired_ns - acquired) / 1e6;
  const intervalMs = before?.name === name && index === before.index + 1 && stepMs > 0 ? Math.min(stepMs, MAX_STEP_MS) : before?.intervalMs;
  state.recorded = { name, ...made.header.recorded, intervalMs };
  state.lookingBack = true;
  look(made, playing);
  el("to-live").hidden = false;
  draw();
  judge();
  const { total } = state.recorded;
  if (playing && index + 1 < total) {
    next = { name, index: index + 1, made: fetchRecorded(name, index + 1) };
    next.made.catch(() => {});  // reported when it is needed
  }
});

// The frames of the snapshot on the screen have been played.
export function playNext() {
  if (fetching) return;  // the viewer has moved along the recording
  const { name, index, total } = state.recorded;
  if (index + 1 < total || el("loop").checked) playRecording(name, (index + 1) % total);
  else setPlaying(false);
}

function drawRecorded(context, width, height) {
  const { index, total } = state.recorded;
  context.fillStyle = colour("--raised");
  context.fillRect(0, 0, width, height);
  context.fillStyle = colour("--signal");
  context.fillRect(0, height * 0.35, ((index + 1) / total) * width, height * 0.4);
  context.fillStyle = colour("--ink");
  context.fillRect(((index + 0.5) / total) * width - 1.5, 0, 3, height);
}

// --- moving along it

const nearest = (ns) => kept.reduce((found, entry) => (found === null || Math.abs(entry[ACQUIRED_NS] - ns) < Math.abs(found[ACQUIRED_NS] - ns) ? entry : found), null);

const isOfShown = (entry) => state.shown && entry[SERIES] === seriesOf(state.shown);

// Show the kept snapshot before or after the one on the screen.
export function stepSnapshot(by) {
  if (state.recorded) { playRecording(state.recorded.name, Math.min(Math.max(state.recorded.index + by, 0), state.recorded.total - 1), false); return; }
  const at = kept.findLastIndex((entry) => isOfShown(entry) && entry[SEQ] <= state.shown.seq);
  const entry = at < 0 ? null : kept[at + by];
  if (entry) show(entry[NUMBER]);
}

export const numberShown = () => kept.find((entry) => isOfShown(entry) && entry[SEQ] === state.shown.seq)?.[NUMBER] ?? -1;

export function toLive() {
  asked = null;
  state.lookingBack = false;
  state.recorded = null;
  el("to-live").hidden = true;
  if (isPaused()) setPlaying(true);
  judge();
  // If no new video can arrive, the last picture is the newest.
  const last = kept[kept.length - 1];
  if (last && (state.status.state === "ended" || document.body.classList.contains("offline"))) {
    show(last[NUMBER]).then(() => { state.lookingBack = false; el("to-live").hidden = true; setPlaying(true); judge(); });
  }
}

export function start() {
  const canvas = el("timeline");
  const scrub = (event) => {
    const box = canvas.getBoundingClientRect();
    if (state.recorded) {
      const { name, total } = state.recorded;
      playRecording(name, Math.min(Math.max(Math.floor(((event.clientX - box.left) / box.width) * total), 0), total - 1), false);
      return;
    }
    const entry = nearest(place(box.width).at(event.clientX - box.left));
    if (entry) show(entry[NUMBER]);
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); scrub(event); });
  canvas.addEventListener("pointermove", (event) => { if (canvas.hasPointerCapture(event.pointerId)) scrub(event); });
  canvas.addEventListener("keydown", (event) => {
    const action = { ArrowLeft: () => stepSnapshot(-1), ArrowRight: () => stepSnapshot(1), Home: toLive, End: toLive }[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  });
  el("to-live").addEventListener("click", toLive);
  setInterval(() => { if (state.connected && !document.hidden) poll(); }, POLL_MS);
}
