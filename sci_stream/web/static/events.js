// Triggered recording: whether it is armed, an event is being kept or a hold-off runs, and the last events.

import { attempt, el, make, put, state, tag, toast } from "./page.js";
import { change } from "./operator.js";
import { clock } from "./format.js";
import { hostNowMs } from "./verdict.js";

const SHOWN = 8;

export const keep = () => attempt(async () => {
  if (el("keep").hidden) return;
  await change("do", { node: "sink", action: "keep_event" });
  toast("The seconds before and after are being kept");
});

const item = ({ number, time_ns: at, cause, who }) =>
  make("li", {}, make("b", { className: "num" }, `#${number} ${clock(at)}`), ` ${who ? `kept by ${who}` : cause}`);

// The state of the newest event: its condition's text names its hold-off.
function phase(last) {
  const now = hostNowMs() * 1e6;
  if (!last) return ["armed", "good"];
  if (now < last.last_ns) return [`event ${last.number}`, "bad"];
  const holdOffS = Number(/hold-off +([\d.]+)/.exec(last.cause)?.[1] ?? 0);
  return now < last.time_ns + 1e9 * holdOffS ? ["hold-off", "warn"] : ["armed", "good"];
}

export function follow() {
  const { events, recording } = state.status, armed = Boolean(events) && recording?.state === "recording";
  el("keep").hidden = !armed;
  el("events").replaceChildren(...(events ?? []).slice(-SHOWN).toReversed().map(item));
  if (!armed) return;
  const [text, kind] = phase(events.at(-1));
  tag("recording-state", text, kind);
  put("rec", text);
}

export function start() {
  el("keep").addEventListener("click", keep);
}
