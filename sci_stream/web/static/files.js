// Downloads: the snapshot on the screen, the last seconds as a film, the recordings of this rig with their ledger.

import { el, state, toast } from "./page.js";
import { get } from "./link.js";
import { bytes, count } from "./format.js";
import { numberShown } from "./timeline.js";
import { named, t } from "./words.js";

const SECONDS = [5, 10, 30, 60, 120, 300];

// Through a blob rather than a link, so that a refusal is shown in its words.
async function download(path, parameters, button) {
  button.disabled = true;
  toast(t("preparing", { name: button.textContent }));
  try {
    const response = await get(path, parameters);
    const name = /filename="?([^"]+)"?/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "sci_stream";
    const url = URL.createObjectURL(await response.blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60e3);
    toast(t("saved_to", { place: name }));
  } catch (error) {
    toast(error.message, true);
  } finally {
    button.disabled = false;
  }
}

function ledgerLine(ledger) {
  if (!ledger) return "";
  const dropped = Object.values(ledger.dropped ?? {}).reduce((sum, n) => sum + n, 0);
  const figures = { acquired: count(ledger.acquired), reconstructed: count(ledger.reconstructed), raw_only: count(ledger.raw_only), dropped: count(dropped) };
  return t("ledger_line", figures) + (ledger.in_flight ? t("ledger_in_flight", { n: count(ledger.in_flight) }) : "");
}

function row(entry) {
  const made = document.createElement("tr");
  made.dataset.name = entry.name;
  const name = made.insertCell();
  if (entry.state === "open") name.textContent = entry.name;
  else name.append(Object.assign(document.createElement("a"), { href: `/recordings/${encodeURIComponent(entry.name)}`, download: entry.name, textContent: entry.name, title: t("download") }));
  const line = document.createElement("small");
  line.textContent = entry.state === "open" ? ledgerLine(state.status.ledger) : ledgerLine(entry.ledger);
  name.append(line);
  made.insertCell().textContent = named("state_", entry.state);
  made.insertCell().textContent = bytes(entry.bytes);
  return made;
}

async function list() {
  const body = el("recordings").tBodies[0];
  try {
    const { recordings } = await (await get("/recordings")).json();
    body.replaceChildren(...recordings.map(row));
  } catch (error) {
    toast(error.message, true);
  }
  if (!body.children.length) {
    const empty = document.createElement("tr");
    empty.insertCell().textContent = t("no_recordings");
    body.append(empty);
  }
}

export function openFiles() {
  if (el("files").open) return;
  el("get-still").disabled = el("get-mp4").disabled = el("get-gif").disabled = !state.shown;
  el("files").showModal();
  list();
}

export function start() {
  el("files-open").addEventListener("click", openFiles);
  el("clip-seconds").append(...SECONDS.map((n) => new Option(t("seconds", { n }), String(n), n === 10, n === 10)));
  el("get-still").addEventListener("click", () => download("/download/still", { series: state.shown.series, seq: state.shown.seq }, el("get-still")));
  for (const format of ["mp4", "gif"]) {
    const button = el(`get-${format}`);
    button.addEventListener("click", () => download("/download/clip", { seconds: el("clip-seconds").value, format, until: numberShown() }, button));
  }
}
