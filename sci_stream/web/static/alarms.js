// Alarms with the times at which they appeared and cleared, until they are acknowledged. Each browser has its own list.

import { el, make, state, tag } from "./page.js";
import { count, total } from "./format.js";
import { named, t } from "./words.js";

const MOST = 50;
const QUIET_MS = 60e3;  // a count that grows again after a minute of quiet is another alarm
const alarms = [];      // { key, kind, text, from, to, acknowledged, n, grewMs }, newest first

// The present problems: key, kind, text, and a count if there is one.
function conditions() {
  const { nodes = [], ledger = {}, recording = {}, wire_errors: wireErrors = {} } = state.status;
  const found = [];
  const ended = state.status.state === "ended";
  for (const node of ended ? [] : nodes) {
    if (node.state !== "up") found.push({ key: `node ${node.name}`, kind: "bad", text: t("node_silent", { node: node.name }) });
  }
  if (recording.state === "failed" || recording.state === "stopped") {
    const words = { state: named("state_", recording.state), reason: recording.reason };
    found.push({ key: "recording", kind: "bad", text: t(recording.reason ? "recording_failed_why" : "recording_failed", words) });
  } else if (recording.warning) found.push({ key: "disk", kind: "warn", text: recording.warning });
  const dropped = total(ledger.dropped);
  if (dropped) found.push({ key: `dropped ${state.status.series}`, kind: "warn", n: dropped, text: t("some_dropped", { n: count(dropped), all: count(ledger.acquired) }) });
  for (const text of ended ? [] : state.status.calibration_alerts ?? []) found.push({ key: `calibration ${text.replace(/[+-]?[\d.]+/g, "")}`, kind: "warn", text });
  if (ledger.camera_missed) found.push({ key: `missed ${state.status.series}`, kind: "warn", n: ledger.camera_missed, text: t("camera_missed", { n: count(ledger.camera_missed) }) });
  const refused = total(wireErrors);
  if (refused) found.push({ key: "refused", kind: "warn", n: refused, text: t("refused", { n: count(refused), reasons: Object.keys(wireErrors).map((reason) => reason.replaceAll("_", " ")).join(", ") }) });
  return found;
}

export function follow() {
  const now = Date.now(), found = conditions();
  for (const alarm of alarms) {
    if (alarm.to === null && !found.some(({ key }) => key === alarm.key)) alarm.to = now;
  }
  for (const { key, kind, text, n = null } of found) {
    const alarm = alarms.find((other) => other.key === key && other.to === null);
    if (!alarm) { alarms.unshift({ key, kind, text, from: now, to: null, acknowledged: false, n, grewMs: now }); continue; }
    alarm.text = text;
    if (n === alarm.n) continue;
    if (alarm.acknowledged && now - alarm.grewMs > QUIET_MS) Object.assign(alarm, { acknowledged: false, from: now });
    Object.assign(alarm, { n, grewMs: now });
  }
  alarms.length = Math.min(alarms.length, MOST);
  show();
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

function acknowledgeButton(alarm) {
  const made = make("button", { type: "button", className: "small" }, t("acknowledge"));
  made.addEventListener("click", () => { alarm.acknowledged = true; show(); });
  return made;
}

function item(alarm, when) {
  const made = make("li", { className: alarm.kind }, make("span", {}, alarm.text), " ", make("time", { className: "num" }, when));
  if (!alarm.acknowledged) made.append(" ", acknowledgeButton(alarm));
  return made;
}

// The elements stay while the same alarms are shown, so that a button does not move away below a finger.
function list(id, shown, when) {
  const structure = JSON.stringify(shown.map(({ key, from, to, acknowledged }) => [key, from, to, acknowledged]));
  const node = el(id);
  if (node.dataset.structure !== structure) node.replaceChildren(...shown.map((alarm) => item(alarm, when(alarm))));
  node.dataset.structure = structure;
  shown.forEach((alarm, i) => {
    const text = node.children[i].firstChild;
    if (text.textContent !== alarm.text) text.textContent = alarm.text;
  });
}

function when({ from, to, acknowledged }) {
  const times = to === null ? t("alarm_since", { from: clock(from) }) : t("alarm_over", { from: clock(from), to: clock(to) });
  return acknowledged ? `${times}, ${t("acknowledged")}` : times;
}

function show() {
  const urgent = alarms.filter((alarm) => alarm.to === null && !alarm.acknowledged).sort((a, b) => (b.kind === "bad") - (a.kind === "bad"));
  list("alerts", urgent, when);
  list("alarms", alarms, when);
  [...el("alarms").children].forEach((node, i) => node.classList.toggle("over", alarms[i].to !== null));
  const open = alarms.filter((alarm) => !alarm.acknowledged).length;
  const kind = urgent.some((alarm) => alarm.kind === "bad") ? "bad" : open ? "warn" : "";
  tag("alarms-open", open ? t("n_open", { n: open }) : t("no_alarm"), kind);
}
