// Downloads: the snapshot on the screen, the last seconds as a movie, and the recordings of this rig with their ledgers.

import { attempt, el, make, put, state, toast } from "./page.js";
import { get } from "./link.js";
import { change, confirmed } from "./operator.js";
import { bytes, count, duration, snapshots, stateWords, total } from "./format.js";
import { numberShown, playRecording } from "./timeline.js";

const LIST_MS = 2000, MAX_NOTE = 500;
const SECONDS = [5, 10, 30, 60, 120, 300];

// Through a blob, not a link: the error message of a refused download is shown on the page.
async function download(path, parameters, button) {
  button.disabled = true;
  toast(`preparing ${button.textContent} …`);
  await attempt(async () => {
    const response = await get(path, parameters);
    const name = /filename="?([^"]+)"?/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "sci_stream";
    const url = URL.createObjectURL(await response.blob());
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60e3);
    toast(`Saved to ${name}`);
  });
  button.disabled = false;
}

export const saveStill = (button = el("still")) => button.disabled || download("download/still", { series: state.shown.series, seq: state.shown.seq }, button);

function ledgerLine(ledger) {
  if (!ledger) return "";
  const parts = { solved: ledger.reconstructed, raw: ledger.raw_only, dropped: total(ledger.dropped), "outside events": ledger.not_kept, "on their way": ledger.in_flight };
  const known = Object.entries(parts).filter(([, n]) => n > 0).map(([name, n]) => `${count(n)} ${name}`);
  return `${snapshots(ledger.acquired)}: ${known.join(" + ") || "none solved"}`;
}

// A series is named after the second in which it began (UTC), and a file changes last at its end.
function timesOf({ name, modified_s: endS }) {
  const [, date, time] = /^(\d{8})T(\d{6})/.exec(name) ?? [];
  if (!date) return { began: new Date(1000 * endS), durationS: NaN };
  const text = `${date}T${time}Z`.replace(/(....)(..)(..)T(..)(..)(..)/, "$1-$2-$3T$4:$5:$6");
  const began = new Date(text);
  return { began, durationS: endS - began.getTime() / 1000 };
}

function sorted(entries) {
  const by = el("sort").value;
  const value = (entry) => (by === "duration_s" ? timesOf(entry).durationS || 0 : entry[by]);
  const order = by === "name" ? (a, b) => a.name.localeCompare(b.name) : (a, b) => value(b) - value(a);
  return entries.toSorted(order);
}

function card(entry, replay) {
  const open = entry.state === "open", video = !["open", "movie", "unreadable"].includes(entry.state);
  const replaying = replay.running && replay.out === entry.name;
  const path = `recordings/${encodeURIComponent(entry.name)}`;
  const picture = make("div", { className: "thumbnail" });
  const play = () => { el("files").close(); playRecording(entry.name); };
  const image = { src: `${path}/thumbnail`, alt: "", loading: "lazy", onerror() { this.hidden = true; } };
  if (video) picture.append(button("Play", "▶", play), make("img", image));
  const { began, durationS } = timesOf(entry);
  const condition = replaying ? "being made" : stateWords(entry.state);
  const figures = [duration(1000 * durationS), bytes(entry.bytes), condition].filter((text) => text !== "–");
  const about = make("div", { className: "what" }, make("b", {}, began.toLocaleString([], { dateStyle: "medium", timeStyle: "short" })),
    make("span", { className: "num" }, figures.join(" · ")), make("small", {}, ledgerLine(open ? state.status.ledger : entry.ledger)), make("small", {}, entry.name));
  if (!open) about.append(noteField(entry));
  if (entry.events) about.append(make("small", {}, `${count(entry.events)} events`));
  if (entry.parent) about.append(make("small", {}, `replay of ${entry.parent}`));
  const actions = make("div", { className: "do" });
  if (!open) actions.append(make("a", { href: path, download: entry.name, title: "Download" }, "⤓"));
  if (video && !entry.parent) actions.append(button("Replay with more iterations", "Replay", () => replayIt(entry.name)));
  const made = make("li", {}, picture, about, actions);
  made.dataset.name = entry.name;
  return made;
}

function noteField({ name, note }) {
  const field = make("input", { value: note, placeholder: "note", maxLength: MAX_NOTE });
  field.setAttribute("aria-label", `Note on ${name}`);
  field.addEventListener("change", () => attempt(() => change("note", { recording: name, note: field.value.trim() })));
  return field;
}

function button(word, sign, action) {
  const made = make("button", { type: "button", title: word }, sign);
  made.setAttribute("aria-label", word);
  made.addEventListener("click", action);
  return made;
}

const replayIt = (name) => attempt(async () => {
  if (!(await confirmed("Replay with more iterations", "It takes processor time of this host, at the lowest priority, and writes a new recording."))) return;
  const { text } = await change("replay", { recording: name, iterations: Number(el("replay-iterations").value) });
  toast(`Replaying to ${text}`);
  list();
});

let again = 0;

async function list() {
  clearTimeout(again);
  await attempt(async () => {
    const { recordings, replay } = await (await get("recordings")).json();
    el("recordings").replaceChildren(...sorted(recordings).map((entry) => card(entry, replay)));
    el("no-recordings").hidden = recordings.length > 0;
    put("replay-is", replay.running ? `${replay.source} is being solved again` : replay.error);
    el("replay-stop").hidden = !replay.running;
    if (replay.running && el("files").open) again = setTimeout(list, LIST_MS);
  });
}

export function openFiles() {
  if (el("files").open) return;
  el("get-still").disabled = !state.shown;
  el("get-mp4").disabled = !state.shown || Boolean(state.recorded);  // kept pictures are those of the live rig
  el("files").showModal();
  list();
}

export function start() {
  el("files-open").addEventListener("click", openFiles);
  el("sort").addEventListener("change", list);
  el("clip-seconds").append(...SECONDS.map((n) => new Option(`last ${n} s`, String(n), n === 10, n === 10)));
  for (const id of ["still", "get-still"]) el(id).addEventListener("click", () => saveStill(el(id)));
  el("get-mp4").addEventListener("click", () => download("download/clip", { seconds: el("clip-seconds").value, until: numberShown() }, el("get-mp4")));
  el("replay-stop").addEventListener("click", () => attempt(async () => { await change("replay", {}); list(); }));
}
