// The values of the picture on the screen and of the instrument.

import { el, make, put, showRows, state, tag } from "./page.js";
import { t, named } from "./words.js";
import { bytes, count, duration, fixed, known, percent, rate, snapshots, words } from "./format.js";
import { calibration as health, listed, shown, solve, title } from "./quantities.js";

export function showHeader(header) {
  put("iterations", shown("iterations", header.iterations));
  put("start", [header.start, header.budget_limited ? t("short_of_time") : null].filter(Boolean).join(", ") || "–");
  el("start").title = words(header.start_reason ?? "");
  // Only simulated and replayed cameras know the true video, for a PSNR; for others, the residual of the measurement.
  const [quality, beside] = known(header.psnr_db) ? ["psnr_db", "residual"] : ["residual", "noise"];
  put("quality-name", title(quality));
  put("psnr", shown(quality, header[quality]));
  put("residual", listed(solve.filter(({ key }) => key === beside), header).join(""));
  el("residual").title = [t("residual_title"), ...listed(solve, header)].join("; ");
  const figures = Object.entries(header.chunks ?? {});
  el("analyses").hidden = !figures.length && !header.drawn;
  const unit = (name) => state.status.units?.[name] ?? "";
  showRows("figures", figures.map(([name, value]) => ({ cells: [words(name), `${fixed(value, Number.isInteger(value) ? 0 : 3)} ${unit(name)}`] })));
  put("saturated", shown("saturated_fraction", header.saturated_fraction));
  el("saturated").classList.toggle("alert", header.saturated_fraction > 0.01);
}

export function showStatus() {
  const { series, rig, policy, camera, ledger = {}, rates = {}, latency_ms: latency = {}, latency_recent_ms: recentMs, recording, bit_depth: depth } = state.status;
  put("series", series || t("no_series"));
  put("camera", camera || "–");
  el("camera").parentElement.title = [rig, policy, series, camera].filter(Boolean).join(" / ");
  el("simulated").hidden = !/simulated/i.test(camera ?? "");
  put("rig", [rig, policy].filter(Boolean).join(" · ") || "–");
  document.title = `${recording?.state === "recording" ? "● " : ""}${series ? `${series} · ` : ""}sci_stream`;
  put("rate-in", rate(rates.acquired_per_s));
  put("fps", rate(rates.video_fps));
  put("total", duration(recentMs));
  put("queue", count(ledger.in_flight));
  showShift(state.status.calibration);
  el("counts").title = depth ? t("bits", { n: depth }) : "";
  showLedger(ledger);
  showRecording(recording ?? {});
  showNodes(state.status.nodes ?? []);
  showRows("latency", Object.entries(latency).map(([stage, t]) => ({
    cells: [words(stage), milliseconds(t?.p50), milliseconds(t?.p99)],
  })), t("no_snapshot_yet"));
}

const milliseconds = (value) => (value >= 1000 ? count(value) : fixed(value, 1));

// The estimated shift of the masks since the calibration, if the rig estimates it.
function showShift(calibration) {
  const shift = calibration?.shift_px;
  const px = Array.isArray(shift) ? Math.hypot(...shift) : shift;
  put("shift", known(px) ? `${px.toFixed(2)} px` : "–");
  const verdict = t(calibration?.corrected ? "corrected" : known(px) ? "uncorrected" : "not_seen_yet");
  const sd = known(calibration?.shift_sd_px) ? ` ± ${calibration.shift_sd_px.toFixed(2)}` : "";
  const own = calibration?.jitter_px > 0 || calibration?.gain_error > 0;
  const single = own ? t("single_masks", { px: calibration.jitter_px.toFixed(3), gain: percent(calibration.gain_error) }) : "";
  const shares = (calibration?.frame_times ?? []).map(([, duration], _, all) => duration * all.length);
  const lengths = shares.length ? { least: Math.min(...shares).toFixed(2), most: Math.max(...shares).toFixed(2) } : null;
  put("corrected", [verdict + sd, lengths && t("frame_times", lengths)].filter(Boolean).join(", "));
  el("corrected").title = [t("mask_shift_title"), single, lengths && t("frame_lengths", lengths), ...listed(health, calibration)].filter(Boolean).join("; ");
  el("shift").classList.toggle("alert", known(px) && px > 0.1);
}

function showLedger(ledger) {
  const dropped = Object.entries(ledger.dropped ?? {}).filter(([, n]) => n > 0);
  const entries = [{ cells: [t("acquired"), count(ledger.acquired)], kind: "total" }];
  entries.push({ cells: [t("reconstructed"), count(ledger.reconstructed)] }, { cells: [t("raw_only"), count(ledger.raw_only)] });
  if (ledger.not_kept) entries.push({ cells: [t("not_kept"), count(ledger.not_kept)] });
  for (const [reason, n] of dropped) entries.push({ cells: [t("dropped_reason", { reason: words(reason) }), count(n)], kind: "loss" });
  if (!dropped.length) entries.push({ cells: [t("dropped"), known(ledger.acquired) ? "0" : "–"] });
  entries.push({ cells: [t("in_flight"), count(ledger.in_flight)] });
  if (ledger.camera_missed) entries.push({ cells: [t("missed_by_camera"), count(ledger.camera_missed)], kind: "loss" });
  if (ledger.redelivered) entries.push({ cells: [t("redelivered"), count(ledger.redelivered)] });
  if (ledger.duplicates) entries.push({ cells: [t("duplicates"), count(ledger.duplicates)] });
  showRows("ledger", entries);
  if (ledger.closed) tag("ledger-closed", t("closed"), "good");
  else if (state.final) tag("ledger-closed", t("does_not_close"), "bad");
  else tag("ledger-closed", t(state.status.state === "ended" ? "ended" : "open"), "");
}

const FIGURES = {
  acquire: [["acquired", "acquired"], ["held", "held"], ["unsafe", "unsafe"], ["camera_missed", "missed"],
    ["camera_identical", "identical"], ["camera_trigger_missed", "trigger_missed"], ["camera_trigger_early", "trigger_early"]],
  reconstruct: [["reconstructed", "reconstructed"], ["in_hand", "in_hand"], ["failed", "failed"]],
};

function showNodes(nodes) {
  const up = nodes.filter((node) => node.state === "up").length;
  tag("nodes-up", nodes.length ? t("n_of_up", { up, all: nodes.length }) : t(state.status.state === "ended" ? "gone" : "none_yet"), !nodes.length ? "" : up === nodes.length ? "good" : "bad");
  el("nodes").replaceChildren(...nodes.map((node) => {
    const item = make("li", { className: node.state === "up" ? "" : "lost" });
    const line = (className, ...texts) => item.append(make("div", { className }, ...texts.filter(Boolean).map((text) => make("span", {}, text))));
    const figures = (FIGURES[node.kind] ?? []).filter(([key]) => node[key])
      .map(([key, word]) => `${count(node[key])} ${t(word)}`);
    line("who", node.name ?? "?", node.state ? t(node.state) : "–");
    if (figures.length) line("num", figures.join(", "));
    if (node.device || node.denoiser) line("", node.denoiser && node.device ? t("device_of", { denoiser: node.denoiser.toUpperCase(), device: node.device }) : node.denoiser ?? node.device);
    if (node.fault) line("", node.fault);
    return item;
  }));
}

function showRecording(recording) {
  const now = recording.state ?? "off";
  const kind = { failed: "bad", stopped: "bad", recording: "good" }[now] ?? "";
  tag("recording-state", named("state_", now), recording.warning ? "warn" : kind);
  el("rec").hidden = now !== "recording" || state.status.state === "ended";
  put("rec", t("rec", { bytes: bytes(recording.bytes) }));
  const entries = [];
  if (recording.file) {
    entries.push({ cells: [t(now === "recording" ? "file" : "last_file"), String(recording.file).split("/").pop()] });
    entries.push({ cells: [t("written"), t("written_value", { bytes: bytes(recording.bytes), snapshots: snapshots(recording.rows) })] });
  }
  if (now === "recording") {
    const waiting = recording.queue_bytes ? t("waiting_bytes", { bytes: bytes(recording.queue_bytes) }) : "";
    entries.push({ cells: [t("rate_word"), `${fixed(recording.mb_per_s, 1)} MB/s${waiting}`] });
    entries.push({ cells: [t("disk_free"), bytes(recording.free_bytes)], kind: recording.warning ? "loss" : "" });
  }
  if (recording.reason) entries.push({ cells: [t("why"), recording.reason], kind: "loss" });
  const unrecorded = state.status.ledger?.unrecorded;
  if (unrecorded && recording.file) entries.push({ cells: [t("while_off"), snapshots(unrecorded)] });
  showRows("recording", entries, t("nothing_recorded"));
}
