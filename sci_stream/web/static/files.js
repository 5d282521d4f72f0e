// Downloads: the snapshot on the screen, the last seconds as a movie, and the recordings of this rig with their ledgers.

import { attempt, el, make, showRows, state, toast } from "./page.js";
import { get } from "./link.js";
import { bytes, count, total } from "./format.js";
import { numberShown } from "./timeline.js";
import { named, t } from "./words.js";

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

function ledgerLine(ledger) {
  if (!ledger) return "";
  const figures = { acquired: count(ledger.acquired), reconstructed: count(ledger.reconstructed), raw_only: count(ledger.raw_only), dropped: count(total(ledger.dropped)) };
  return t("ledger_line", figures) + (ledger.in_flight ? t("ledger_in_flight", { n: count(ledger.in_flight) }) : "");
}

function row(entry) {
  const open = entry.state === "open";
  const link = { href: `recordings/${encodeURIComponent(entry.name)}`, download: entry.name, title: t("download") };
  const name = make("td", {}, open ? entry.name : make("a", link, entry.name));
  name.append(make("small", {}, ledgerLine(open ? state.status.ledger : entry.ledger)));
  const made = make("tr", {}, name, make("td", {}, named("state_", entry.state)), make("td", {}, bytes(entry.bytes)));
  made.dataset.name = entry.name;
  return made;
}

async function list() {
  const body = el("recordings").tBodies[0];
  await attempt(async () => {
    const { recordings } = await (await get("recordings")).json();
    body.replaceChildren(...recordings.map(row));
  });
  if (!body.children.length) showRows("recordings", [], t("no_recordings"));
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
  el("get-still").addEventListener("click", () => download("download/still", { series: state.shown.series, seq: state.shown.seq }, el("get-still")));
  for (const format of ["mp4", "gif"]) {
    const button = el(`get-${format}`);
    button.addEventListener("click", () => download("download/clip", { seconds: el("clip-seconds").value, format, until: numberShown() }, button));
  }
}
