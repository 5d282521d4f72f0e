// Downloads: the snapshot on the screen, the last seconds as a movie, and the recordings of this rig with their ledgers.

import { attempt, el, make, put, showRows, state, toast } from "./page.js";
import { get } from "./link.js";
import { change, confirmed } from "./operator.js";
import { bytes, count, total } from "./format.js";
import { numberShown, playRecording } from "./timeline.js";
import { named, t } from "./words.js";

const LIST_MS = 2000;
const SECONDS = [5, 10, 30, 60, 120, 300];

// Through a blob, not a link: the error message of a refused download is shown on the page.
async function download(path, parameters, button) {
  button.disabled = true;
  toast(t("preparing", { name: button.textContent }));
  await attempt(async () => {
    const response = await get(path, parameters);
    const name = /filename="?([^"]+)"?/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "sci_stream";
    const url = URL.createObjectURL(await response.blob());
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60e3);
    toast(t("saved_to", { place: name }));
  });
  button.disabled = false;
}

export const saveStill = (button = el("still")) => button.disabled || download("download/still", { series: state.shown.series, seq: state.shown.seq }, button);

function ledgerLine(ledger) {
  if (!ledger) return "";
  const figures = { acquired: count(ledger.acquired), reconstructed: count(ledger.reconstructed), raw_only: count(ledger.raw_only), dropped: count(total(ledger.dropped)) };
  const notKept = ledger.not_kept ? t("ledger_not_kept", { n: count(ledger.not_kept) }) : "";
  return t("ledger_line", figures) + notKept + (ledger.in_flight ? t("ledger_in_flight", { n: count(ledger.in_flight) }) : "");
}

function row(entry, replay) {
  const open = entry.state === "open", video = !["open", "movie", "unreadable"].includes(entry.state);
  const replaying = replay.running && replay.out === entry.name;
  const path = `recordings/${encodeURIComponent(entry.name)}`;
  const picture = make("td", { className: "thumbnail" });
  if (video) picture.append(button("play", "▶", () => { el("files").close(); playRecording(entry.name); }), make("img", { src: `${path}/thumbnail`, alt: "", loading: "lazy", onerror() { this.hidden = true; } }));
  const about = make("td", {}, make("b", {}, entry.name), make("small", {}, ledgerLine(open ? state.status.ledger : entry.ledger)));
  if (entry.events) about.append(make("small", {}, t("events_n", { n: count(entry.events) })));
  if (entry.parent) about.append(make("small", {}, t("replay_of", { name: entry.parent })));
  const actions = make("td", { className: "do" });
  if (!open) actions.append(make("a", { href: path, download: entry.name, title: t("download") }, "⤓"));
  if (video && !entry.parent) actions.append(button("replay", t("replay_short"), () => replayIt(entry.name)));
  const made = make("tr", {}, picture, about, make("td", {}, replaying ? t("replaying") : named("state_", entry.state), make("small", {}, bytes(entry.bytes))), actions);
  made.dataset.name = entry.name;
  return made;
}

function button(word, sign, action) {
  const made = make("button", { type: "button", title: t(word) }, sign);
  made.setAttribute("aria-label", t(word));
  made.addEventListener("click", action);
  return made;
}

const replayIt = (name) => attempt(async () => {
  if (!(await confirmed(t("replay"), t("replay_why")))) return;
  const { text } = await change("replay", { recording: name, iterations: Number(el("replay-iterations").value) });
  toast(t("replaying_to", { file: text }));
  list();
});

let again = 0;

async function list() {
  clearTimeout(again);
  const body = el("recordings").tBodies[0];
  await attempt(async () => {
    const { recordings, replay } = await (await get("recordings")).json();
    body.replaceChildren(...recordings.map((entry) => row(entry, replay)));
    put("replay-is", replay.running ? t("replaying_is", { name: replay.source }) : replay.error);
    el("replay-stop").hidden = !replay.running;
    if (replay.running && el("files").open) again = setTimeout(list, LIST_MS);
  });
  if (!body.children.length) showRows("recordings", [], t("no_recordings"));
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
  el("clip-seconds").append(...SECONDS.map((n) => new Option(t("seconds", { n }), String(n), n === 10, n === 10)));
  for (const id of ["still", "get-still"]) el(id).addEventListener("click", () => saveStill(el(id)));
  el("get-mp4").addEventListener("click", () => download("download/clip", { seconds: el("clip-seconds").value, until: numberShown() }, el("get-mp4")));
  el("replay-stop").addEventListener("click", () => attempt(async () => { await change("replay", {}); list(); }));
}
