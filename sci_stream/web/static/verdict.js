// Is what we see true now? Never let a still picture pass for a live one.

import { el, put, state, tag } from "./page.js";
import { duration } from "./format.js";
import { isPaused } from "./player.js";

const SILENT_MS = 2000;     // the sink speaks at least once a second
const LIVE_MS = 1000;       // "live" is what was exposed within a second, or within two snapshot intervals
const LOSS_SPAN_MS = 10000;
const HEAVY_LOSS = 0.1;     // share of the last seconds' snapshots from which on the state is red

const counted = [];  // { atMs, acquired, dropped }, of the last ten seconds

// Take the ledger of a status, to know what was lost in the last seconds and whether the camera delivers.
export function countLosses(ledger) {
  if (!ledger) { counted.length = 0; return; }
  const dropped = Object.values(ledger.dropped ?? {}).reduce((sum, n) => sum + n, 0) + (ledger.camera_missed ?? 0);
  const last = counted[counted.length - 1];
  if (last && (ledger.acquired < last.acquired || dropped < last.dropped)) counted.length = 0;  // another series
  counted.push({ atMs: performance.now(), acquired: ledger.acquired ?? 0, dropped });
  while (counted[0].atMs < performance.now() - LOSS_SPAN_MS) counted.shift();
}

// The share of the last seconds' snapshots that were lost, and whether the camera delivered any.
function recently() {
  if (counted.length < 2) return { lost: 0, delivers: true };
  const [first, last] = [counted[0], counted[counted.length - 1]];
  const acquired = last.acquired - first.acquired, dropped = last.dropped - first.dropped;
  return { lost: acquired > 0 ? Math.min(dropped / acquired, 1) : 0, delivers: acquired > 0 };
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
  const limit = Math.max((state.status.preview?.stale_s ?? 3) * 1000, 3 * (state.intervalMs ?? 0));
  const reachable = state.connected && performance.now() - state.heardMs <= SILENT_MS;
  const fresh = reachable && sincePublished <= limit;
  for (const id of ["video-figure", "coded-figure", "age-cell"]) el(id).classList.toggle("stale", !fresh);
  document.body.classList.toggle("offline", !reachable);
  document.body.classList.toggle("ended", state.status.state === "ended" && state.header !== null);

  const [title, why, pill, kind] = verdict({ reachable, fresh, limit, liveMs, sincePublished, behind });
  el("overlay").classList.toggle("calm", kind !== "bad");
  put("overlay-title", title);
  put("overlay-why", why);
  tag("state", pill, kind);
}

// In a word over the picture, in a sentence below it, in a word at the top, and how bad it is.
function verdict({ reachable, fresh, limit, liveMs, sincePublished, behind }) {
  const { nodes = [], state: phase } = state.status;
  if (!reachable && !state.everConnected && state.retries < 2) return ["CONNECTING", "waiting for the sink node", "connecting", ""];
  if (!reachable && phase === "ended") return ["ENDED", "the instrument has stopped; this is its last video", "ended", ""];
  if (!reachable) return ["NO CONNECTION", "the sink node does not answer; trying again", "no connection", "bad"];
  if (phase === "ended") return ["ENDED", state.header ? "the series is over; this is its last video" : "the series is over", "ended", ""];
  const { lost, delivers } = recently();
  if (fresh && isPaused()) return ["", "", `paused, ${duration(behind)} behind`, "warn"];
  if (fresh && nodes.some((node) => node.state !== "up")) return ["", "", `${behind > liveMs ? `${duration(behind)} behind` : "live"}, a node is lost`, "warn"];
  if (fresh && lost > HEAVY_LOSS) return ["", "", `losing ${Math.round(100 * lost)} %`, "bad"];
  if (fresh && behind > liveMs) return ["", "", `${duration(behind)} behind`, "warn"];
  if (fresh) return ["", "", "live", "good"];
  const up = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  if (state.header && up("acquire") && !delivers) return ["NO DATA", `the camera has delivered nothing for ${duration(sincePublished)}`, "camera stopped", "bad"];
  if (state.header) return ["NO DATA", `no new video for ${duration(sincePublished)}`, "no data", "bad"];
  const missing = ["acquire", "reconstruct"].filter((kind) => !up(kind));
  const why = missing.length ? `no ${missing.join(" and no ")} node has come yet` : "for the first video";
  if (phase === "waiting" || performance.now() - state.connectedMs < limit) return ["WAITING", why, "waiting", "warn"];
  return ["NO DATA", missing.length ? why : "no video has come yet", "no data", "bad"];
}
