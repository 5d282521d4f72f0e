// Parameters and actions of the nodes, built from what they declare.

import { attempt, el, make, state, toast } from "./page.js";
import { change, confirmed } from "./operator.js";
import { named, words } from "./format.js";

const LARGE = 4;  // a number that changes by more than this factor is often a slip of the finger
const waiting = new Set();  // parameters with a pending request
let built = "";

// Fields are locked until they are wanted, and again after a while: no stray key or tap changes the instrument.
const LOCK_AFTER_MS = 60_000;
let lockTimer = 0;

export function setUnlocked(on) {
  clearTimeout(lockTimer);
  if (on) lockTimer = setTimeout(setUnlocked, LOCK_AFTER_MS, false);
  el("controls").classList.toggle("unlocked", on);
  el("unlock").setAttribute("aria-pressed", String(on));
  for (const field of el("controls").querySelectorAll("input, select, [data-action]")) field.disabled = !on;
}

export function start() {
  el("unlock").addEventListener("click", () => setUnlocked(!isUnlocked()));
  el("controls").addEventListener("input", () => setUnlocked(true));
}

const isUnlocked = () => el("controls").classList.contains("unlocked");

// Nodes of one kind with equal declarations share a row, which sets all of them.
function grouped(controls) {
  const groups = new Map();
  for (const { node, kind, parameters, actions } of controls) {
    if (kind === "sink") continue;  // its controls are elsewhere on this page
    const alone = controls.filter((other) => other.kind === kind).length === 1;
    const same = [...groups.values()].find((group) => group.kind === kind && shape(group.parameters) === shape(parameters));
    if (same) same.target = kind;
    else groups.set(node, { target: alone ? kind : node, kind, parameters, actions });
  }
  return [...groups.values()];
}

const shape = (parameters) => JSON.stringify(parameters.map(({ value, ...rest }) => rest));

export function showControls() {
  const ended = !state.connected;
  const groups = grouped(state.status.controls ?? []);
  el("controls").hidden = ended || !groups.some((group) => group.parameters.length || group.actions.length);
  const now = JSON.stringify(groups.map((group) => [group.target, shape(group.parameters), group.actions]));
  if (now !== built) build(groups);
  built = now;
  for (const { target, parameters } of groups) {
    for (const parameter of parameters) show(el(idOf(target, parameter.name)), parameter);
  }
}

// The present value of a parameter on the first of its nodes.
function current(target, name) {
  const owner = grouped(state.status.controls ?? []).find((group) => group.target === target);
  return owner?.parameters.find((parameter) => parameter.name === name)?.value;
}

const idOf = (target, name) => `set-${target}-${name}`;

function build(groups) {
  const rows = [];
  for (const { target, kind, parameters } of groups) {
    if (parameters.length) rows.push(make("span", { className: "label owner" }, kind === "acquire" ? "Camera" : words(target)));
    for (const parameter of parameters) rows.push(...row(target, parameter));
  }
  el("parameters").replaceChildren(...rows);
  const buttons = groups.flatMap(({ target, actions }) => actions.map((action) => button(target, action)));
  el("series-actions").replaceChildren(...buttons);
  el("series-actions").hidden = !buttons.length;
  setUnlocked(isUnlocked());
}

function row(target, parameter) {
  const id = idOf(target, parameter.name), title = `${target}: ${parameter.description} (${parameter.range})`;
  const label = make("label", { htmlFor: id, title }, named(parameter.name));
  const field = Object.assign(fieldFor(parameter), { id, title, className: "wide" });
  field.addEventListener("change", () => set(target, parameter, field));
  return [label, field];
}

function fieldFor(parameter) {
  if (parameter.kind === "choice") return make("select", {}, ...parameter.choices.map((choice) => new Option(choice, choice)));
  const input = make("input", { type: parameter.kind === "flag" ? "checkbox" : "number" });
  if (parameter.kind === "number") input.step = "any";
  // The node checks the bounds: its message says more than a red field.
  return input;
}

function show(field, { kind, value }) {
  if (!field || waiting.has(field.id) || document.activeElement === field && kind !== "flag" && kind !== "choice") return;
  if (kind === "flag") field.checked = value;
  else if (field.value !== String(value)) field.value = String(value);
}

const isLarge = (old, value) => old > 0 && value > 0 && Math.max(old / value, value / old) > LARGE;

async function set(target, parameter, field) {
  const value = parameter.kind === "flag" ? field.checked : parameter.kind === "choice" ? field.value : Number(field.value || NaN);
  const old = current(target, parameter.name);
  waiting.add(field.id);
  field.classList.add("waiting");
  try {
    if (isLarge(old, value) && !(await confirmed(`Set ${named(parameter.name)} from ${old} to ${value}`, "This is a change by more than a factor of four, for everybody."))) { field.blur(); return; }
    // JSON has no NaN: an empty field becomes null, which the node refuses with a message.
    await change("set", { node: target, parameters: { [parameter.name]: value } });
    toast(`${named(parameter.name)}: ${value === true ? "on" : value === false ? "off" : value}`);
  } catch (error) {
    toast(error.message, true);
    field.blur();
  } finally {
    waiting.delete(field.id);
    field.classList.remove("waiting");
    showControls();
  }
}

// Actions that cannot be undone, and their effects.
const CONFIRM = {
  stop_series: "The series ends for all viewers, and its recording is closed. The camera stays open until the next series is started.",
  next_series: "The series ends for all viewers, its recording is closed, and the next one starts at once.",
};

function button(target, action) {
  const made = make("button", { type: "button" }, words(action));
  made.dataset.action = action;
  made.addEventListener("click", async () => {
    if (CONFIRM[action] && !(await confirmed(words(action), CONFIRM[action]))) return;
    made.disabled = true;
    await attempt(async () => toast((await change("do", { node: target, action })).text || words(action)));
    made.disabled = !isUnlocked();
  });
  return made;
}
