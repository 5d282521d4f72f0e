// Alarms of the rig, which the sink node raises and clears: the present ones below the header, the last ones in a panel.

import { attempt, el, make, state, tag } from "./page.js";
import { change } from "./operator.js";
import { clock } from "./format.js";

function acknowledgeButton({ number }) {
  const made = make("button", { type: "button", className: "small" }, "Acknowledge");
  made.addEventListener("click", () => attempt(() => change("do", { node: "sink", action: "acknowledge", parameters: { alarm: number } })));
  return made;
}

function item(alarm) {
  const made = make("li", { className: alarm.level }, make("span", {}, alarm.text), " ", make("time", { className: "num" }, when(alarm)));
  if (!alarm.acknowledged_by) made.append(" ", acknowledgeButton(alarm));
  made.classList.toggle("over", alarm.cleared_ns !== null);
  return made;
}

// The elements stay while the same alarms are shown, so that a button does not move away below a finger.
function list(id, alarms) {
  const structure = JSON.stringify(alarms.map(({ number, began_ns, cleared_ns, acknowledged_by }) => [number, began_ns, cleared_ns, acknowledged_by]));
  const node = el(id);
  if (node.dataset.structure !== structure) node.replaceChildren(...alarms.map(item));
  node.dataset.structure = structure;
  alarms.forEach((alarm, i) => {
    const text = node.children[i].firstChild;
    if (text.textContent !== alarm.text) text.textContent = alarm.text;
  });
}

function when({ began_ns: from, cleared_ns: to, acknowledged_by: who }) {
  const times = to === null ? `since ${clock(from)}` : `${clock(from)} to ${clock(to)}`;
  return who ? `${times}, acknowledged by ${who}` : times;
}

export function follow() {
  const alarms = state.status.alarms ?? [];
  const urgent = alarms.filter(({ cleared_ns: to, acknowledged_by: who }) => to === null && !who).sort((a, b) => (b.level === "bad") - (a.level === "bad"));
  list("alerts", urgent);
  list("alarms", alarms.filter((alarm) => !urgent.includes(alarm)));
  const open = alarms.filter((alarm) => !alarm.acknowledged_by).length;
  tag("alarms-open", open ? `${open} to acknowledge` : "none", urgent.some(({ level }) => level === "bad") ? "bad" : open ? "warn" : "");
}
