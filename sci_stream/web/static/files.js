// Downloads: the snapshot on the screen, the last seconds as a movie, and the recordings of this rig with their ledgers.

import { attempt, el, make, put, showRows, state, toast } from "./page.js";
import { get } from "./link.js";
import { change, confirmed } from "./operator.js";
import { bytes, count, stateWords, total } from "./format.js";
import { numberShown, playRecording } from "./timeline.js";

const LIST_MS = 2000;
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
  const figures = { acquired: count(ledger.acquired), reconstructed: count(ledger.reconstructed), raw_only: count(ledger.raw_only), dropped: count(total(ledger.dropped)) };
  const notKept = ledger.not_kept ? ` + ${count(ledger.not_kept)} not kept` : "";
  return `${figures.acquired} = ${figures.reconstructed} reconstructed + ${figures.raw_only} raw only + ${figures.dropped} dropped` + notKept + (ledger.in_flight ? ` + ${count(ledger.in_flight)} in flight` : "");
}

function row(entry, replay) {
  const open = entry.state === "open", video = !["open", "movie", "unreadable"].includes(entry.state);
  const replaying = replay.running && replay.out === entry.name;
  const path = `recordings/${encodeURIComponent(entry.name)}`;
  const picture = make("td", { className: "thumbnail" });
  if (video) picture.append(button("Play", "▶", () => { el("files").close(); playRecording(entry.name); }), make("img", { src: `${path}/thumbnail`, alt: "", loading: "lazy", onerror() { this.hidden = true; } }));
  const about = make("td", {}, make("b", {}, entry.name), make("small", {}, ledgerLine(open ? state.status.ledger : entry.ledger)));
  if (entry.events) about.append(make("small", {}, `${count(entry.events)} events`));
  if (entry.parent) about.append(make("small", {}, `replay of ${entry.parent}`));
  const actions = make("td", { className: "do" });
  if (!open) actions.append(make("a", { href: path, download: entry.name, title: "Download" }, "⤓"));
  if (video && !entry.parent) actions.append(button("Replay with more iterations", "Replay", () => replayIt(entry.name)));
  const made = make("tr", {}, picture, about, make("td", {}, replaying ? "being made" : stateWords(entry.state), make("small", {}, bytes(entry.bytes))), actions);
  made.dataset.name = entry.name;
  return made;
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
  const body = el("recordings").tBodies[0];
  await attempt(async () => {
    const { recordings, replay } = await (await get("recordings")).json();
    body.replaceChildren(...recordings.map((entry) => row(entry, replay)));
    put("replay-is", replay.running ? `${replay.source} is being solved again` : replay.error);
    el("replay-stop").hidden = !replay.running;
    if (replay.running && el("files").open) again = setTimeout(list, LIST_MS);
  });
  if (!body.children.length) showRows("recordings", [], "no recording in this rig's folder");
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
  el("clip-seconds").append(...SECONDS.map((n) => new Option(`last ${n} s`, String(n), n === 10, n === 10)));
  for (const id of ["still", "get-still"]) el(id).addEventListener("click", () => saveStill(el(id)));
  el("get-mp4").addEventListener("click", () => download("download/clip", { seconds: el("clip-seconds").value, until: numberShown() }, el("get-mp4")));
  el("replay-stop").addEventListener("click", () => attempt(async () => { await change("replay", {}); list(); }));
}
