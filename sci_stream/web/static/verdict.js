// Is what we see true now? Never let a still picture pass for a live one.

import { el, put, state, tag } from "./page.js";
import { duration } from "./format.js";
import { isPaused } from "./player.js";

const SILENT_MS = 2000;  // the sink speaks at least once a second
const BEHIND = 3;        // what moves but was exposed longer ago than so many times the limit for silence is not "live"

export const hostNowMs = () => (state.clockOffsetMs === null ? null : Date.now() + state.clockOffsetMs);

export function judge() {
  const hostNow = hostNowMs();
  const since = (ns) => (ns && hostNow !== null ? Math.max(0, hostNow - ns / 1e6) : NaN);
  const sinceArrival = state.arrivalMs === null ? Infinity : performance.now() - state.arrivalMs;
  // By the host's clock, so that an old picture sent to a new viewer is known to be old.
  const sincePublished = Math.max(sinceArrival, since(state.header?.published_ns) || 0);
  const behind = since(state.header?.acquired_ns) || sincePublished;
  put("age", duration(behind));

  const limit = Math.max((state.status.preview?.stale_s ?? 3) * 1000, 3 * (state.intervalMs ?? 0));
  const reachable = state.connected && performance.now() - state.heardMs <= SILENT_MS;
  const fresh = reachable && sincePublished <= limit;
  for (const id of ["video-figure", "coded-figure", "age-cell"]) el(id).classList.toggle("stale", !fresh);
  document.body.classList.toggle("offline", !reachable);

  const [title, why, pill, kind] = verdict({ reachable, fresh, limit, sincePublished, behind });
  el("overlay").classList.toggle("calm", kind !== "bad");
  put("overlay-title", title);
  put("overlay-why", why);
  tag("state", pill, kind);
}

// In a word over the picture, in a sentence below it, in a word at the top, and how bad it is.
function verdict({ reachable, fresh, limit, sincePublished, behind }) {
  const { nodes = [], state: phase } = state.status;
  if (!reachable && !state.everConnected && state.retries < 2) return ["CONNECTING", "waiting for the sink node", "connecting", ""];
  if (!reachable && phase === "ended") return ["ENDED", "the instrument has stopped; this is its last video", "ended", ""];
  if (!reachable) return ["NO CONNECTION", "the sink node does not answer; trying again", "no connection", "bad"];
  if (phase === "ended") return ["ENDED", state.header ? "the series is over; this is its last video" : "the series is over", "ended", ""];
  if (fresh && isPaused()) return ["", "", "paused here", "warn"];
  if (fresh && nodes.some((node) => node.state !== "up")) return ["", "", "live, a node is lost", "warn"];
  if (fresh && behind > BEHIND * limit) return ["", "", `${duration(behind)} behind`, "warn"];
  if (fresh) return ["", "", "live", "good"];
  if (state.header) return ["NO DATA", `no new video for ${duration(sincePublished)}`, "no data", "bad"];
  const there = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  const missing = ["acquire", "reconstruct"].filter((kind) => !there(kind));
  const why = missing.length ? `no ${missing.join(" and no ")} node has come yet` : "for the first video";
  if (phase === "waiting" || performance.now() - state.connectedMs < limit) return ["WAITING", why, "waiting", "warn"];
  return ["NO DATA", missing.length ? why : "no video has come yet", "no data", "bad"];
}
