// The values of the picture on the screen and of the instrument.

import { el, make, put, showRows, state, tag } from "./page.js";
import { bytes, clock, count, duration, fixed, known, percent, rate, snapshots, stateWords, total, words } from "./format.js";
import { hostNowMs } from "./verdict.js";
import { calibration as health, listed, shown, solve, title } from "./quantities.js";

const PSNR = "Peak signal-to-noise ratio against the true video, which a simulated camera knows; at 30 dB errors are 3 % of full scale";
const UNEXPLAINED = "Part of the coded snapshot that the video does not explain, ‖y − Φv‖/‖y‖; much more than the noise means wrong masks";

export function showHeader(header) {
  if (header.start_reason === "raw_only") header = { ...header, iterations: null, residual: null, start: "raw" };
  put("iterations", shown("iterations", header.iterations));
  put("start", [header.start, header.budget_limited ? "time-limited" : null].filter(Boolean).join(", ") || "–");
  el("start").title = words(header.start_reason ?? "");
  // Only simulated and replayed cameras know the true video, for a PSNR; for others, the residual of the measurement.
  const [quality, beside] = known(header.psnr_db) ? ["psnr_db", "residual"] : ["residual", "noise"];
  put("quality-name", title(quality));
  put("psnr", shown(quality, header[quality]));
  put("residual", listed(solve.filter(({ key }) => key === beside), header).join(""));
  el("quality").title = [known(header.psnr_db) ? PSNR : UNEXPLAINED, ...listed(solve, header)].join("; ");
  const figures = Object.entries(header.chunks ?? {});
  el("analyses").hidden = !figures.length && !header.drawn;
  const unit = (name) => state.status.units?.[name] ?? "";
  showRows("figures", figures.map(([name, value]) => ({ cells: [words(name), `${fixed(value, Number.isInteger(value) ? 0 : 3)} ${unit(name)}`] })));
  put("saturated", shown("saturated_fraction", header.saturated_fraction));
  el("saturated").classList.toggle("alert", header.saturated_fraction > 0.01);
}

export function showStatus() {
  const { series, rig, policy, camera, ledger = {}, rates = {}, latency_ms: latency = {}, latency_recent_ms: recentMs, recording, bit_depth: depth } = state.status;
  put("series", series || "no series yet");
  put("camera", camera || "–");
  el("camera").parentElement.title = [rig, policy, series, camera].filter(Boolean).join(" / ");
  el("simulated").hidden = !/simulated/i.test(camera ?? "");
  put("rig", [rig, policy].filter(Boolean).join(" · ") || "–");
  document.title = `${recording?.state === "recording" ? "● " : ""}${series ? `${series} · ` : ""}sci_stream`;
  put("rate-in", rate(rates.acquired_per_s));
  showGain(rates);
  put("total", duration(recentMs));
  put("queue", count(ledger.in_flight));
  showShift(state.status.calibration);
  el("counts").title = depth ? `${depth} bit` : "";
  showLedger(ledger);
  showRecording(recording ?? {});
  showNodes(state.status.nodes ?? []);
  showRows("latency", Object.entries(latency).map(([stage, t]) => ({
    cells: [words(stage), milliseconds(t?.p50), milliseconds(t?.p99)],
  })), "no snapshot yet");
}

// What the masks gain: B frames for each exposure, and on a rig the time that a frame spans.
function showGain({ reconstructed_per_s: perSecond, video_fps: fps }) {
  const { n_frames: n, chunks, preview } = state.status;
  put("fps", rate(fps));
  put("gain", n && known(perSecond) ? `frames/s = ${rate(perSecond)} exposures/s × ${n}` : "frames/s");
  const exposureUs = chunks?.ExposureTime ?? preview?.exposure_us;
  put("frame-time", n && known(exposureUs) ? `frame time ${microseconds(exposureUs / n)}` : "");
}

const microseconds = (us) => (us < 1000 ? `${+us.toPrecision(3)} µs` : `${+(us / 1000).toPrecision(3)} ms`);

const milliseconds = (value) => (value >= 1000 ? count(value) : fixed(value, 1));

// The estimated shift of the masks since the calibration, if the rig estimates it.
function showShift(calibration) {
  const shift = calibration?.shift_px;
  const px = Array.isArray(shift) ? Math.hypot(...shift) : shift;
  put("shift", known(px) ? `${px.toFixed(2)} px` : "–");
  const verdict = calibration?.corrected ? "corrected" : known(px) ? "uncorrected" : "not measured yet";
  const sd = known(calibration?.shift_sd_px) ? ` ± ${calibration.shift_sd_px.toFixed(2)}` : "";
  const own = calibration?.jitter_px > 0 || calibration?.gain_error > 0;
  const single = own ? `RMS errors of single masks: ${calibration.jitter_px.toFixed(3)} px, gain ${percent(calibration.gain_error)}` : "";
  const shares = (calibration?.frame_times ?? []).map(([, duration], _, all) => duration * all.length);
  const lengths = shares.length ? { least: Math.min(...shares).toFixed(2), most: Math.max(...shares).toFixed(2) } : null;
  put("corrected", [verdict + sd, lengths && `B × ${lengths.least}–${lengths.most}`].filter(Boolean).join(", "));
  const times = lengths && `frames ${lengths.least} to ${lengths.most} times as long as in the mean`;
  const facts = ["Estimated shift of the masks since the calibration", single, times, ...listed(health, calibration)];
  el("shift-cell").title = facts.filter(Boolean).join("; ");
  el("shift").classList.toggle("alert", known(px) && px > 0.1);
}

const RECENT_MS = 60_000;  // a loss is news for so long

// The time of the last loss, and whether it is recent.
function lastLoss() {
  const alarm = (state.status.alarms ?? []).find(({ key, cleared_ns: over }) => key.startsWith("dropped") && over === null);
  if (!alarm) return { text: "", recent: true };
  return { text: `, last ${clock(alarm.grew_ns)}`, recent: hostNowMs() - alarm.grew_ns / 1e6 < RECENT_MS };
}

function showLedger(ledger) {
  const dropped = Object.entries(ledger.dropped ?? {}).filter(([, n]) => n > 0);
  const entries = [];
  const row = (name, n, title, kind = "") => entries.push({ cells: [name, count(n)], title, kind });
  row("acquired", ledger.acquired, "Snapshots that the camera delivered in this series", "total");
  row("reconstructed", ledger.reconstructed, "Solved: each has its video");
  row("recorded, not solved", ledger.raw_only, "Recorded raw only: a replay solves them later");
  if (ledger.not_kept) row("outside events", ledger.not_kept, "A triggered recording keeps the snapshots around an event, not these");
  const loss = lastLoss();
  for (const [reason, n] of dropped) row(`dropped: ${words(reason)}${loss.text}`, n, REASONS[reason] ?? "", loss.recent ? "loss" : "");
  if (!dropped.length) row("dropped", known(ledger.acquired) ? 0 : NaN, "Neither solved nor recorded");
  row("on their way", ledger.in_flight, "Acquired, and neither solved nor lost yet");
  if (ledger.camera_missed) row("missed by the camera", ledger.camera_missed, "The camera numbered them and never delivered them", "loss");
  if (ledger.redelivered) row("sent again", ledger.redelivered, "Given to another node after theirs was lost");
  if (ledger.duplicates) row("duplicates discarded", ledger.duplicates, "Solved twice, after a node was lost; shown once");
  showRows("ledger", entries);
  const missing = ledger.acquired - ledger.reconstructed - ledger.raw_only - ledger.not_kept - ledger.in_flight - total(ledger.dropped);
  if (ledger.closed) tag("ledger-closed", "complete", "good");
  else if (state.final) tag("ledger-closed", "does not add up", "bad");
  else tag("ledger-closed", missing === 0 ? "adds up" : "counting", "");
}

const REASONS = {
  queue_full: "Reconstruction could not keep up: lower the snapshot rate or the iterations",
  ring_full: "The sink did not answer for longer than the memory lasts",
  node_failures: "Three nodes failed while they held it",
  reconstruct_failed: "Nodes could not solve it: see their logs",
  not_recorded: "The recording could not store it",
  recording_off: "It was to be recorded raw, and the recording was off",
};

const FIGURES = {
  acquire: [["acquired", "acquired"], ["held", "held in memory"], ["unsafe", "not stored yet"], ["camera_missed", "missed"],
    ["camera_identical", "identical"], ["camera_trigger_missed", "triggers missed"], ["camera_trigger_early", "triggers early"]],
  reconstruct: [["reconstructed", "reconstructed"], ["in_hand", "being solved"], ["failed", "failed"]],
};

function showNodes(nodes) {
  const up = nodes.filter((node) => node.state === "up").length;
  const none = state.status.state === "ended" ? "disconnected" : "none yet";
  const kind = up === nodes.length ? "good" : "bad";
  tag("nodes-up", nodes.length ? `${up} of ${nodes.length} up` : none, nodes.length ? kind : "");
  el("nodes").replaceChildren(...nodes.map((node) => {
    const item = make("li", { className: node.state === "up" ? "" : "lost" });
    const line = (className, ...texts) => item.append(make("div", { className }, ...texts.filter(Boolean).map((text) => make("span", {}, text))));
    const figures = (FIGURES[node.kind] ?? []).filter(([key]) => node[key])
      .map(([key, word]) => `${count(node[key])} ${word}`);
    line("who", node.name ?? "?", node.state ?? "–");
    if (figures.length) line("num", figures.join(", "));
    if (node.device || node.denoiser) line("", node.denoiser && node.device ? `${node.denoiser.toUpperCase()} on ${node.device}` : node.denoiser ?? node.device);
    if (node.fault) line("", node.fault);
    return item;
  }));
}

function showRecording(recording) {
  const now = recording.state ?? "off";
  const kind = { failed: "bad", stopped: "bad", recording: "good" }[now] ?? "";
  tag("recording-state", stateWords(now), recording.warning ? "warn" : kind);
  el("rec").hidden = now !== "recording" || state.status.state === "ended";
  put("rec", `REC ${bytes(recording.bytes)}`);
  const entries = [];
  if (recording.file) {
    entries.push({ cells: [now === "recording" ? "file" : "last file", String(recording.file).split("/").pop()] });
    entries.push({ cells: ["written", `${bytes(recording.bytes)}, ${snapshots(recording.rows)}`] });
  }
  if (now === "recording") {
    const waiting = recording.queue_bytes ? `, ${bytes(recording.queue_bytes)} waiting` : "";
    entries.push({ cells: ["rate", `${fixed(recording.mb_per_s, 1)} MB/s${waiting}`] });
    entries.push({ cells: ["disk free", bytes(recording.free_bytes)], kind: recording.warning ? "loss" : "" });
  }
  if (recording.reason) entries.push({ cells: ["why", recording.reason], kind: "loss" });
  const unrecorded = state.status.ledger?.unrecorded;
  if (unrecorded && recording.file) entries.push({ cells: ["while off", snapshots(unrecorded)] });
  showRows("recording", entries, "nothing is being recorded");
}
