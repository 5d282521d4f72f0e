// The live page: connects its modules.

import { put, state } from "./page.js";
import { probe, wanted } from "./decode.js";
import { connect, fetchHistory } from "./link.js";
import * as player from "./player.js";
import * as controls from "./controls.js";
import { showControls, start as startInstrument } from "./instrument.js";
import * as alarms from "./alarms.js";
import * as files from "./files.js";
import * as inspection from "./inspect.js";
import * as cut from "./cut.js";
import * as uncertainty from "./uncertainty.js";
import * as about from "./about.js";
import * as film from "./film.js";
import * as layout from "./layout.js";
import * as refine from "./refine.js";
import * as timeline from "./timeline.js";
import * as view from "./view.js";
import * as wipe from "./wipe.js";
import * as keys from "./keys.js";
import * as operator from "./operator.js";
import { showChanges } from "./changes.js";
import * as events from "./events.js";
import { histograms, remember, setTrend, SPAN_S, strip } from "./charts.js";
import { showHeader, showStatus } from "./readouts.js";
import { countLosses, hostNowMs, judge } from "./verdict.js";

const TREND_MS = 10_000;  // an hour has a sample each 12 s
const MAX_GAP_MS = 60_000;  // a longer one is an outage

function takePicture(made) {
  const { header } = made;
  const before = state.header;
  if (before?.published_ns !== header.published_ns) {
    // From exposure to exposure: the first picture of a viewer who joins is older than its arrival.
    const gapMs = Math.max(0, header.acquired_ns - (before?.acquired_ns ?? 0)) / 1e6;
    state.gapsMs = before?.series === header.series ? [...state.gapsMs.slice(-4), Math.min(gapMs, MAX_GAP_MS)] : [];
    // The median: with a mean, old pictures would pass for live ones after an outage.
    state.intervalMs = [...state.gapsMs].sort((a, b) => a - b)[(state.gapsMs.length - 1) >> 1] ?? null;
    state.arrivalMs = performance.now();
  }
  state.header = header;
  player.take(made);
  judge();
}

// Values, histograms and Save belong to the snapshot on the screen, not to a newer one that waits or is skipped.
function showPicture(header) {
  const before = state.shown;
  state.shown = header;
  if (before?.width_px !== header.width_px || before?.height_px !== header.height_px) layout.arrange();
  view.refresh();
  controls.newPicture(header);
  showHeader(header);
  histograms(header, player.shownFrames()[0]);
  film.show();
  refine.offer();
  wipe.arrange();
  cut.follow();
  judge();
}

function takeStatus(message) {
  const status = message.status ?? {};
  const ended = status.state === "ended";
  state.final = ended && Boolean(status.series);
  // After a series, the status is empty: its last values remain visible until the next series begins.
  state.status = ended && !status.series ? { ...state.status, ...status } : status;
  const offset = message.now_ns / 1e6 - Date.now();
  // The largest offset had the least delay on its way; it decays slowly, because clocks drift.
  state.clockOffsetMs = state.clockOffsetMs === null ? offset : Math.max(offset, state.clockOffsetMs - 1);
  countLosses(state.status.ledger, state.status.rates?.acquired_per_s);
  remember(status.preview?.history ?? []);
  showStatus();
  events.follow();
  alarms.follow();
  controls.follow();
  showControls();
  showChanges();
  refine.follow();
  judge();
}

const drawStrip = () => { strip((hostNowMs() ?? Date.now()) / 1000); timeline.draw(); };

const spans = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-span]")]);
let span = SPAN_S;

async function followTrend() {
  const samples = span === SPAN_S ? [] : await fetchHistory(span).catch(() => []);
  setTrend(span, samples);
  drawStrip();
}

spans.forEach((button) => button.addEventListener("click", () => {
  span = Number(button.dataset.span);
  spans.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
  followTrend();
}));
setInterval(() => { if (span !== SPAN_S) followTrend(); }, TREND_MS);

async function changed(connected) {
  judge();
  if (connected) {
    timeline.restart();
    put("encoding", `This browser is sent ${wanted() === "h264" ? "H.264" : "JPEG"}.`);
    remember(await fetchHistory().catch(() => []));
    drawStrip();
  }
}

layout.start();
player.start({
  onShow: showPicture,
  onDraw: (context) => { uncertainty.draw(context); wipe.draw(context); inspection.stripe(context); inspection.changed(); film.mark(player.frameIndex()); },
  onPause: () => { view.refresh(); refine.offer(); },
  onEnd: timeline.playNext,
});
view.start(() => { inspection.changed(); wipe.arrange(); }, () => inspection.isDrawing() || controls.isPicking() || cut.isLining());
inspection.start();
cut.start({ region: inspection.currentRegion, redrawMarks: inspection.changed });
controls.start();
startInstrument();
timeline.start();
refine.start();
wipe.start();
uncertainty.start();
film.start();
about.start();
files.start();
events.start();
keys.start();
operator.start();
showStatus();
judge();
await probe();
connect({ picture: takePicture, status: takeStatus, changed });
setInterval(judge, 250);
setInterval(drawStrip, 1000);
addEventListener("resize", () => { drawStrip(); if (state.shown) histograms(state.shown, player.shownFrames()[0]); });
