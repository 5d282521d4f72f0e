// The figures: of the picture on the screen, and of the whole instrument.

import { el, put, state, tag } from "./page.js";
import { bytes, count, duration, fixed, known, percent, rate, snapshots, words } from "./format.js";

export function showHeader(header) {
  put("iterations", count(header.iterations));
  put("start", [header.start, header.budget_limited ? "short of time" : null].filter(Boolean).join(", ") || "–");
  el("start").title = words(header.start_reason ?? "");
  // Cameras that know the truth are simulated or played; of the others, how well the video explains the measurement.
  const judged = known(header.psnr_db);
  put("quality-name", judged ? "PSNR" : "Residual");
  put("psnr", judged ? `${header.psnr_db.toFixed(1)} dB` : fixed(header.residual, 4));
  put("residual", judged && known(header.residual) ? `residual ${header.residual.toFixed(4)}` : "");
  put("saturated", percent(header.saturated_fraction));
  el("saturated").classList.toggle("alert", header.saturated_fraction > 0.01);
}

function rows(id, entries, empty) {
  const body = el(id).tBodies[0];
  const made = entries.map(({ cells, kind }) => {
    const row = document.createElement("tr");
    if (kind) row.className = kind;
    for (const cell of cells) row.insertCell().textContent = cell;
    return row;
  });
  if (!made.length) {
    const row = document.createElement("tr");
    const cell = row.insertCell();
    cell.className = "empty";
    cell.textContent = empty;
    made.push(row);
  }
  body.replaceChildren(...made);
}

export function showStatus() {
  const { series, rig, policy, camera, ledger = {}, rates = {}, latency_ms: latency = {}, latency_recent_ms: recentMs, recording, bit_depth: depth } = state.status;
  put("series", series || "no series yet");
  put("camera", camera || "–");
  el("simulated").hidden = !/simulated/i.test(camera ?? "");
  put("rig", [rig, policy].filter(Boolean).join(" · ") || "–");
  document.title = `${recording?.state === "recording" ? "● " : ""}${series ? `${series} · ` : ""}sci_stream`;
  put("rate-in", rate(rates.acquired_per_s));
  put("fps", rate(rates.video_fps));
  put("total", duration(recentMs));
  put("queue", count(ledger.in_flight));
  showShift(state.status.calibration);
  el("counts").title = depth ? `${depth} bit` : "";
  showLedger(ledger);
  showRecording(recording ?? {});
  showNodes(state.status.nodes ?? []);
  showAlerts();
  rows("latency", Object.entries(latency).map(([stage, t]) => ({
    cells: [words(stage), milliseconds(t?.p50), milliseconds(t?.p99)],
  })), "no snapshot yet");
}

const milliseconds = (value) => (value >= 1000 ? count(value) : fixed(value, 1));

// How far the masks seem to have moved since the calibration, where the rig estimates it.
function showShift(calibration) {
  const shift = calibration?.shift_px;
  const px = Array.isArray(shift) ? Math.hypot(...shift) : shift;
  put("shift", known(px) ? `${px.toFixed(2)} px` : "–");
  put("corrected", calibration?.corrected ? "corrected" : known(px) ? "uncorrected" : "not seen yet");
  el("shift").classList.toggle("alert", known(px) && px > 0.1);
}

function showLedger(ledger) {
  const dropped = Object.entries(ledger.dropped ?? {}).filter(([, n]) => n > 0);
  const entries = [{ cells: ["acquired", count(ledger.acquired)], kind: "total" }];
  entries.push({ cells: ["reconstructed", count(ledger.reconstructed)] }, { cells: ["raw only", count(ledger.raw_only)] });
  for (const [reason, n] of dropped) entries.push({ cells: [`dropped: ${words(reason)}`, count(n)], kind: "loss" });
  if (!dropped.length) entries.push({ cells: ["dropped", known(ledger.acquired) ? "0" : "–"] });
  entries.push({ cells: ["in flight", count(ledger.in_flight)] });
  if (ledger.camera_missed) entries.push({ cells: ["missed by the camera", count(ledger.camera_missed)], kind: "loss" });
  if (ledger.redelivered) entries.push({ cells: ["redelivered", count(ledger.redelivered)] });
  if (ledger.duplicates) entries.push({ cells: ["duplicates refused", count(ledger.duplicates)] });
  rows("ledger", entries, "");
  if (ledger.closed) tag("ledger-closed", "closed", "good");
  else if (state.final) tag("ledger-closed", "does not close", "bad");
  else tag("ledger-closed", state.status.state === "ended" ? "ended" : "open", "");
}

const FIGURES = {
  acquire: [["acquired", "acquired"], ["held", "held"], ["unsafe", "not yet safe"], ["camera_missed", "missed"],
    ["camera_identical", "identical"], ["camera_trigger_missed", "triggers missed"], ["camera_trigger_early", "triggers early"]],
  reconstruct: [["reconstructed", "reconstructed"], ["in_hand", "in hand"], ["failed", "failed"]],
};

function showNodes(nodes) {
  const up = nodes.filter((node) => node.state === "up").length;
  tag("nodes-up", nodes.length ? `${up} of ${nodes.length} up` : state.status.state === "ended" ? "gone" : "none yet", !nodes.length ? "" : up === nodes.length ? "good" : "bad");
  el("nodes").replaceChildren(...nodes.map((node) => {
    const item = document.createElement("li");
    item.className = node.state === "up" ? "" : "lost";
    const line = (className, ...texts) => {
      const made = document.createElement("div");
      made.className = className;
      for (const text of texts.filter(Boolean)) {
        const part = document.createElement("span");
        part.textContent = text;
        made.append(part);
      }
      item.append(made);
    };
    const figures = (FIGURES[node.kind] ?? []).filter(([key]) => node[key])
      .map(([key, word]) => `${count(node[key])} ${word}`);
    line("who", node.name ?? "?", words(node.state ?? "–"));
    if (figures.length) line("num", figures.join(", "));
    if (node.device || node.denoiser) line("", [node.denoiser?.toUpperCase(), node.device].filter(Boolean).join(" on "));
    return item;
  }));
}

// Whatever needs a hand, in a sentence each.
function showAlerts() {
  const { nodes = [], ledger = {}, recording = {}, wire_errors: wireErrors = {} } = state.status;
  const alerts = [];
  const ended = state.status.state === "ended";
  for (const node of nodes) {
    if (node.state !== "up" && !ended) alerts.push(["bad", `${node.name} does not answer`]);
  }
  if (recording.state === "failed" || recording.state === "stopped") {
    alerts.push(["bad", `recording ${recording.state}${recording.reason ? `: ${recording.reason}` : ""}`]);
  } else if (recording.warning) alerts.push(["warn", recording.warning]);
  const dropped = Object.values(ledger.dropped ?? {}).reduce((sum, n) => sum + n, 0);
  if (dropped) alerts.push(["warn", `${count(dropped)} of ${count(ledger.acquired)} snapshots dropped`]);
  for (const text of ended ? [] : state.status.calibration_alerts ?? []) alerts.push(["warn", text]);
  if (ledger.camera_missed) alerts.push(["warn", `the camera missed ${count(ledger.camera_missed)} frames`]);
  const refused = Object.values(wireErrors).reduce((sum, n) => sum + n, 0);
  if (refused) alerts.push(["warn", `${count(refused)} messages refused: ${Object.keys(wireErrors).map(words).join(", ")}`]);
  const text = JSON.stringify(alerts);
  if (el("alerts").dataset.text === text) return;  // said once, not twice a second, for screen readers
  el("alerts").dataset.text = text;
  el("alerts").replaceChildren(...alerts.map(([kind, words]) => {
    const item = document.createElement("li");
    item.className = kind;
    item.textContent = words;
    return item;
  }));
}

function showRecording(recording) {
  const now = recording.state ?? "off";
  const kind = { failed: "bad", stopped: "bad", recording: "good" }[now] ?? "";
  tag("recording-state", words(now), recording.warning ? "warn" : kind);
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
  rows("recording", entries, "nothing is being recorded");
}
