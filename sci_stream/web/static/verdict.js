// The state of the video: live, late, paused, stale or lost. A still picture must never look like a live one.

import { el, put, state, tag } from "./page.js";
import { duration, total } from "./format.js";
import { t } from "./words.js";
import { isPaused } from "./player.js";

const SILENT_MS = 2000;     // the sink node sends a status at least once a second
const LIVE_MS = 1000;       // video is live if it was exposed within a second, or within two snapshot intervals
const LOSS_SPAN_MS = 10000;
const HEAVY_LOSS = 0.1;     // fraction of lost snapshots from which on the state is red

const counted = [];  // { atMs, acquired, dropped }, of the last ten seconds

// Record the ledger of a status, for the losses of the last seconds and whether the camera delivers.
export function countLosses(ledger) {
  if (!ledger) { counted.length = 0; return; }
  const dropped = total(ledger.dropped) + (ledger.camera_missed ?? 0);
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

  let [title, why, pill, kind] = verdict({ reachable, fresh, limit, liveMs, sincePublished, behind });
  // A picture from the timeline is marked as such; the state above is still that of the instrument.
  document.body.classList.toggle("review", state.lookingBack);
  if (state.recorded) [title, why, pill, kind] = [t("RECORDING"), t("recorded_at", { ...state.recorded, n: state.recorded.index + 1 }), t("s_recorded"), "warn"];
  else if (state.lookingBack) {
    [title, why] = [t("LOOKING_BACK"), t("looking_back", { time: duration(behind) })];
    if (state.shown?.node === "replay") [title, why] = [t("REFINED"), t("refined_why", state.shown)];
  }
  el("overlay").classList.toggle("calm", kind !== "bad" || state.lookingBack);
  put("overlay-title", title);
  put("overlay-why", why);
  tag("state", pill, kind);
  speak([title, why, pill].filter(Boolean).join(", "));
}

let spoken = "";

// A screen reader reads a state when it begins: its figures change four times a second.
function speak(text) {
  const now = text.replace(/(\d[\d.]* \S+ ?)+/g, "");
  if (now !== spoken) put("spoken", text);
  spoken = now;
}

// Title and text of the overlay, text of the state, and its severity.
function verdict({ reachable, fresh, limit, liveMs, sincePublished, behind }) {
  const { nodes = [], state: phase } = state.status;
  if (state.refused) return [t("FULL"), t(parseInt(state.refused, 10) === 1 ? "full_why_one" : "full_why", { n: parseInt(state.refused, 10) }), t("s_full"), "bad"];
  if (!reachable && !state.everConnected && state.retries < 2) return [t("CONNECTING"), t("waiting_for_sink"), t("s_connecting"), ""];
  if (!reachable && phase === "ended") return [t("ENDED"), t("instrument_stopped"), t("s_ended"), ""];
  if (!reachable) return [t("NO_CONNECTION"), t("trying_again"), t("s_no_connection"), "bad"];
  if (phase === "ended") return [t("ENDED"), t(state.header ? "series_over_video" : "series_over"), t("s_ended"), ""];
  const { lost, delivers } = recently();
  const late = t("s_behind", { time: duration(behind) });
  if (fresh && isPaused()) return ["", "", t("s_paused", { time: duration(behind) }), "warn"];
  if (fresh && nodes.some((node) => node.state !== "up")) return ["", "", t("s_node_lost", { state: behind > liveMs ? late : t("s_live") }), "warn"];
  if (fresh && lost > HEAVY_LOSS) return ["", "", t("s_losing", { share: Math.round(100 * lost) }), "bad"];
  if (fresh && behind > liveMs) return ["", "", late, "warn"];
  if (fresh) return ["", "", t("s_live"), "good"];
  const up = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  const silence = { time: duration(sincePublished) };
  if (state.header && up("acquire") && !delivers) return [t("NO_DATA"), t("delivered_nothing", silence), t("s_stopped"), "bad"];
  if (state.header) return [t("NO_DATA"), t("no_video_for", silence), t("s_no_data"), "bad"];
  const missing = ["acquire", "reconstruct"].filter((kind) => !up(kind));
  const why = missing.length ? t("no_node_yet", { nodes: missing.join(t("and_no")) }) : t("for_first_video");
  if (phase === "waiting" || performance.now() - state.connectedMs < limit) return [t("WAITING"), why, t("s_waiting"), "warn"];
  return [t("NO_DATA"), missing.length ? why : t("no_video_yet"), t("s_no_data"), "bad"];
}
