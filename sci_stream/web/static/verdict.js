// The state of the video: live, late, paused, stale or lost. A still picture must never look like a live one.

import { el, put, state, tag } from "./page.js";
import { duration, total } from "./format.js";
import { isPaused } from "./player.js";

const STARTING_MS = 60000;  // on a busy machine, a rig takes most of a minute to its first video
const SILENT_MS = 2000;     // the sink node sends a status at least once a second
const LIVE_MS = 1000;       // video is live if it was exposed within a second, or within two snapshot intervals
const LOSS_SPAN_MS = 10000;
const HEAVY_LOSS = 0.1;     // fraction of lost snapshots from which on the state is red

const counted = [];  // { atMs, acquired, dropped }, of the last ten seconds
let delivered = { atMs: 0, acquired: NaN, periodMs: 0 };  // when the camera delivered last

// Record the ledger of a status, for the losses of the last seconds and the time of the last snapshot.
export function countLosses(ledger, perSecond) {
  if (!ledger) { counted.length = 0; return; }
  const dropped = total(ledger.dropped) + (ledger.camera_missed ?? 0);
  const last = counted[counted.length - 1];
  if (last && (ledger.acquired < last.acquired || dropped < last.dropped)) counted.length = 0;  // another series
  if (ledger.acquired !== delivered.acquired) {
    // A viewer who joins sees one snapshot only: the rate of the camera says when the next is due.
    delivered = { atMs: performance.now(), acquired: ledger.acquired, periodMs: perSecond > 0 ? 1000 / perSecond : 0 };
  }
  counted.push({ atMs: performance.now(), acquired: ledger.acquired ?? 0, dropped });
  while (counted[0].atMs < performance.now() - LOSS_SPAN_MS) counted.shift();
}

// The share of the last seconds' snapshots that were lost.
function lostShare() {
  if (counted.length < 2) return 0;
  const first = counted[0];
  const last = counted[counted.length - 1];
  const acquired = last.acquired - first.acquired;
  return acquired > 0 ? Math.min((last.dropped - first.dropped) / acquired, 1) : 0;
}

// The period that the camera is set to, which may have become longer than the last ones; 0 without one.
function setPeriodMs() {
  const parameters = (state.status.controls ?? []).flatMap((owner) => owner.parameters);
  const hz = parameters.find(({ name }) => name === "snapshot_rate_hz")?.value;
  return hz > 0 ? 1000 / hz : 0;
}

// A picture is old because solves are slow, or because the camera or all solvers are silent: only silence is NO DATA.
function silence(limit) {
  const nodes = state.status.nodes ?? [];
  const up = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  if (!up("acquire")) return "camera";
  if (!up("reconstruct")) return "solver";
  return performance.now() - delivered.atMs > limit ? "camera" : "";
}

export const hostNowMs = () => (state.clockOffsetMs === null ? null : Date.now() + state.clockOffsetMs);

export function judge() {
  const hostNow = hostNowMs();
  const since = (ns) => (ns && hostNow !== null ? Math.max(0, hostNow - ns / 1e6) : NaN);
  const sinceArrival = state.arrivalMs === null ? Infinity : performance.now() - state.arrivalMs;
  // By the host's clock, so that an old picture sent to a new viewer is known to be old.
  const sincePublished = Math.max(sinceArrival, since(state.header?.published_ns) || 0);
  const behind = since(state.shown?.acquired_ns) || sincePublished;
  put("age", duration(behind));

  const perSecond = state.status.rates?.acquired_per_s;
  const interval = Math.min(state.intervalMs ?? Infinity, perSecond > 0 ? 1000 / perSecond : Infinity);
  const liveMs = Number.isFinite(interval) ? Math.max(LIVE_MS, 2 * interval) : LIVE_MS;
  const limit = Math.max((state.status.preview?.stale_s ?? 3) * 1000, 3 * Math.max(state.intervalMs ?? 0, delivered.periodMs, setPeriodMs()));
  const reachable = state.connected && performance.now() - state.heardMs <= SILENT_MS;
  const silent = reachable && sincePublished > limit ? silence(limit) : "";
  const slow = reachable && sincePublished > limit && !silent && state.header !== null && state.status.state === "running";
  const fresh = reachable && (sincePublished <= limit || slow);
  document.body.classList.toggle("slow", slow);
  for (const id of ["video-figure", "coded-figure", "age-cell"]) el(id).classList.toggle("stale", !fresh);
  document.body.classList.toggle("offline", !reachable);
  document.body.classList.toggle("example", reachable && isExample());
  document.body.classList.toggle("ended", state.status.state === "ended" && state.header !== null);

  let [title, why, pill, kind] = verdict({ reachable, fresh, slow, silent, limit, liveMs, sincePublished, behind });
  // A picture from the timeline is marked as such; the state above is still that of the instrument.
  document.body.classList.toggle("review", state.lookingBack);
  if (state.recorded) [title, why, pill, kind] = ["RECORDING", `${state.recorded.name}, ${state.recorded.index + 1} of ${state.recorded.total}`, "playback", "warn"];
  else if (state.lookingBack) {
    [title, why] = ["LOOKING BACK", `${duration(behind)} ago`];
    if (state.shown?.node === "replay") [title, why] = ["REFINED", `solved again with ${state.shown.iterations} iterations`];
  }
  el("overlay").classList.toggle("calm", kind !== "bad" || state.lookingBack);
  put("overlay-title", title);
  put("overlay-why", why);
  tag("state", pill, kind);
  speak([title, why, pill].filter(Boolean).join(", "));
}

// A demo plays a film that was solved before, until it has one of its own.
const isExample = () => state.header === null && state.status.rig === "demo" && state.status.state !== "ended";

let spoken = "";

// A screen reader reads a state when it begins: its figures change four times a second.
function speak(text) {
  const now = text.replace(/(\d[\d.]* \S+ ?)+/g, "");
  if (now !== spoken) put("spoken", text);
  spoken = now;
}

// Title and text of the overlay, text of the state, and its severity.
function verdict({ reachable, fresh, slow, silent, limit, liveMs, sincePublished, behind }) {
  const { nodes = [], state: phase } = state.status;
  const viewers = parseInt(state.refused, 10);
  const watch = viewers === 1 ? "1 viewer is watching" : `${viewers} viewers are watching`;
  if (state.refused) return ["FULL", `${watch}, the limit of this rig ([preview] max_viewers); trying again`, "full", "bad"];
  if (!reachable && !state.everConnected && state.retries < 2) return ["CONNECTING", "waiting for the sink node", "connecting", ""];
  if (!reachable && phase === "ended") return ["ENDED", "the instrument has stopped; this is its last video", "ended", ""];
  if (!reachable) return ["NO CONNECTION", "the sink node does not answer; trying again", "no connection", "bad"];
  if (phase === "ended") return ["ENDED", state.header ? "the series is over; this is its last video" : "the series is over", "ended", ""];
  const lost = lostShare();
  const late = `${duration(behind)} behind`;
  if (fresh && isPaused()) return ["", "", `paused, ${duration(behind)} behind`, "warn"];
  if (fresh && nodes.some((node) => node.state !== "up")) return ["", "", `${behind > liveMs ? late : "live"}, a node is lost`, "warn"];
  if (fresh && lost > HEAVY_LOSS) return ["", "", `losing ${Math.round(100 * lost)} %`, "bad"];
  if (slow) return ["SLOW", `the next picture takes longer: this one is ${duration(behind)} old`, late, "warn"];
  if (fresh && state.header?.start_reason === "raw_only") return ["", "", "raw, not reconstructed", "warn"];
  if (fresh && behind > liveMs) return ["", "", late, "warn"];
  if (fresh) return ["", "", "live", "good"];
  const up = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  const time = duration(sincePublished);
  if (state.header && silent === "camera" && up("acquire")) return ["NO DATA", `the camera has delivered nothing for ${time}`, "camera stopped", "bad"];
  if (state.header) return ["NO DATA", `no new video for ${time}`, "no data", "bad"];
  const missing = ["acquire", "reconstruct"].filter((kind) => !up(kind));
  const why = missing.length ? `no ${missing.join(" and no ")} node is connected yet` : "for the first video";
  const starts = performance.now() - state.connectedMs < Math.max(limit, STARTING_MS);
  if (starts && isExample()) return ["EXAMPLE", "solved before; this machine solves its first exposure now", "starting", "warn"];
  if (phase === "waiting" || starts) return ["WAITING", why, "waiting", "warn"];
  return ["NO DATA", missing.length ? why : "no video has arrived yet", "no data", "bad"];
}
