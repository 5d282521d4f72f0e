// The live page: plays each reconstruction's B frames over the time until the next, and says when there is none.
// Every key of the status may be absent; what is unknown is shown as a dash.

const MESSAGE_VERSION = 1;
const RETRY_MS = [500, 1000, 2000, 4000];
const DWELL_MS = { least: 1000 / 60, most: 1000 / 8 };

const el = (id) => document.getElementById(id);
const video = el("video").getContext("2d");
const coded = el("coded").getContext("2d");

const state = {
  status: {},           // as the sink node gave it last
  final: false,         // whether its figures are those of a series that is over
  clockOffsetMs: null,  // the host's clock minus ours
  connected: false, everConnected: false, connectedMs: 0, retries: 0,
  header: null, frames: [], next: 0, nextAtMs: 0, dwellMs: DWELL_MS.most,
  lastArrivalMs: null, intervalMs: null,
  paused: false,
};

// --- wire ---

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    Object.assign(state, { connected: true, everConnected: true, connectedMs: performance.now(), retries: 0 });
    judge();
  };
  socket.onclose = () => {
    state.connected = false;
    judge();
    setTimeout(connect, RETRY_MS[Math.min(state.retries++, RETRY_MS.length - 1)]);
  };
  // One message after the other, so that pictures cannot overtake each other while they are decoded.
  let work = Promise.resolve();
  socket.onmessage = (event) => { work = work.then(() => take(socket, event.data)).catch((e) => console.error(e)); };
}

async function take(socket, data) {
  if (typeof data === "string") { takeStatus(JSON.parse(data)); return; }
  const { header, images } = split(data);
  try {
    if (header.v !== MESSAGE_VERSION) throw new Error(`message version ${header.v}; reload the page`);
    const bitmaps = await Promise.all(images.map((jpeg) => createImageBitmap(new Blob([jpeg], { type: "image/jpeg" }))));
    show(header, bitmaps);
  } finally {
    // Only now may the next come: a slow browser is sent fewer, never older ones.
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ ack: header.number }));
  }
}

function split(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  const images = header.sizes.map((size) => { const part = new Uint8Array(buffer, offset, size); offset += size; return part; });
  return { header, images };
}

function takeStatus(message) {
  const status = message.status ?? {};
  const ended = status.state === "ended";
  state.final = ended && Boolean(status.series);
  // A sink that speaks no more of a series that is over: its last figures stay in sight until the next begins.
  state.status = ended && !status.series ? { ...state.status, ...status } : status;
  const offset = message.now_ns / 1e6 - Date.now();
  // The largest is the one least delayed on its way; let it sink slowly, clocks drift.
  state.clockOffsetMs = state.clockOffsetMs === null ? offset : Math.max(offset, state.clockOffsetMs - 1);
  showStatus();
}

// --- pictures ---

function show(header, bitmaps) {
  const now = performance.now();
  if (state.header && state.header.series === header.series && state.lastArrivalMs !== null) {
    const gap = Math.min(now - state.lastArrivalMs, 20000);
    state.intervalMs = state.intervalMs === null ? gap : state.intervalMs + 0.3 * (gap - state.intervalMs);
  } else {
    state.intervalMs = null;
  }
  state.lastArrivalMs = now;
  state.header = header;
  const codedBitmap = header.coded ? bitmaps.pop() : null;
  if (!state.paused) {
    for (const frame of state.frames) frame.close();
    state.frames = bitmaps;
    state.next = 0;
    state.nextAtMs = now;
    const interval = state.intervalMs ?? DWELL_MS.most * bitmaps.length;
    state.dwellMs = Math.min(Math.max(interval / bitmaps.length, DWELL_MS.least), DWELL_MS.most);
    fit(video.canvas, bitmaps[0]);
    makeTicks(bitmaps.length);
  } else {
    for (const frame of bitmaps) frame.close();
  }
  el("coded-figure").hidden = codedBitmap === null;
  if (codedBitmap) {
    if (!state.paused) { fit(coded.canvas, codedBitmap); coded.drawImage(codedBitmap, 0, 0); }
    codedBitmap.close();
  }
  showHeader(header);
  judge();
}

function fit(canvas, bitmap) {
  if (canvas.width !== bitmap.width || canvas.height !== bitmap.height) {
    canvas.width = bitmap.width;
    canvas.height = bitmap.height;
    canvas.classList.toggle("pixelated", bitmap.width < 64);
  }
}

function makeTicks(count) {
  const ticks = el("ticks");
  while (ticks.children.length > count) ticks.lastChild.remove();
  while (ticks.children.length < count) ticks.append(document.createElement("i"));
}

function play(now) {
  requestAnimationFrame(play);
  if (state.paused || !state.frames.length || now < state.nextAtMs) return;
  if (state.next >= state.frames.length) {
    if (!el("loop").checked) return;
    state.next = 0;
  }
  // On a screen slower than the video, skip frames rather than fall behind.
  const late = Math.floor((now - state.nextAtMs) / state.dwellMs);
  const index = Math.min(state.next + late, state.frames.length - 1);
  video.drawImage(state.frames[index], 0, 0);
  [...el("ticks").children].forEach((tick, i) => tick.classList.toggle("on", i <= index));
  state.next = index + 1;
  state.nextAtMs += (late + 1) * state.dwellMs;
}

// --- numbers ---

const known = (value) => typeof value === "number" && Number.isFinite(value);
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "–");
const count = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const rate = (value) => (known(value) ? (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)) : "–");
const words = (text) => String(text).replaceAll("_", " ");

function duration(ms) {
  if (!known(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.floor((ms % 60e3) / 1000)} s`;
  return `${Math.floor(ms / 3600e3)} h ${Math.floor((ms % 3600e3) / 60e3)} min`;
}

function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return `${value.toFixed(power === 0 || value >= 100 ? 0 : 1)} ${units[power]}`;
}

function put(id, text) { const node = el(id); if (node.textContent !== text) node.textContent = text; }

function showHeader(header) {
  put("seq", count(header.seq));
  put("frame-count", `${header.n_frames} frames, ${header.width_px}×${header.height_px}`);
  put("coded-size", `1 exposure, ${header.width_px}×${header.height_px}`);
  put("solve", duration(header.solve_ms));
  put("iterations", count(header.iterations));
  put("start", [header.start, header.budget_limited ? "short of time" : null].filter(Boolean).join(", ") || "–");
  put("residual", fixed(header.residual, 4));
  put("psnr", known(header.psnr_db) ? `${header.psnr_db.toFixed(2)} dB` : "–");
  el("start").title = words(header.start_reason ?? "");
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

function tag(id, text, kind) { const node = el(id); node.textContent = text; node.className = `${id === "state" ? "pill" : "tag"} ${kind}`; }

function showStatus() {
  const { series, rig, policy, ledger = {}, rates = {}, latency_ms: latency = {}, recording } = state.status;
  put("series", series || "no series yet");
  put("rig", [rig, policy].filter(Boolean).join(" · ") || "–");
  document.title = `${series ? `${series} · ` : ""}sci_stream`;
  put("rate-in", rate(rates.acquired_per_s));
  put("fps", rate(rates.video_fps));
  showLedger(ledger);
  showRecording(recording ?? {});
  showNodes(state.status.nodes ?? []);
  showAlerts();
  rows("latency", Object.entries(latency).map(([stage, t]) => ({
    cells: [words(stage), fixed(t?.p50, 1), fixed(t?.p99, 1)],
  })), "no snapshot yet");
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
  acquire: [["acquired", "acquired"], ["held", "held"], ["unsafe", "not yet safe"], ["camera_missed", "missed"]],
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
  if (ledger.camera_missed) alerts.push(["warn", `the camera missed ${count(ledger.camera_missed)} frames`]);
  const refused = Object.values(wireErrors).reduce((sum, n) => sum + n, 0);
  if (refused) alerts.push(["warn", `${count(refused)} messages refused: ${Object.keys(wireErrors).map(words).join(", ")}`]);
  const text = JSON.stringify(alerts);
  if (el("alerts").dataset.text === text) return;  // said once, not twice a second, to whoever listens to the page
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
  const kind = { recording: "recording", failed: "bad", stopped: "bad" }[now] ?? "";
  tag("recording-state", words(now), recording.warning ? `${kind} warn` : kind);
  const entries = [];
  if (recording.file) {
    entries.push({ cells: ["file", String(recording.file).split("/").pop()] });
    entries.push({ cells: ["written", `${bytes(recording.bytes)}, ${count(recording.rows)} rows`] });
    entries.push({ cells: ["rate", `${fixed(recording.mb_per_s, 1)} MB/s`] });
    entries.push({ cells: ["waiting", bytes(recording.queue_bytes)] });
    entries.push({ cells: ["disk free", bytes(recording.free_bytes)], kind: recording.warning ? "loss" : "" });
  }
  if (recording.reason) entries.push({ cells: ["why", recording.reason], kind: "loss" });
  rows("recording", entries, "nothing is being recorded");
}

// --- is what we see true now? ---

function judge() {
  const hostNow = state.clockOffsetMs === null ? null : Date.now() + state.clockOffsetMs;
  const since = (ns) => (ns && hostNow !== null ? Math.max(0, hostNow - ns / 1e6) : NaN);
  const sinceArrival = state.lastArrivalMs === null ? Infinity : performance.now() - state.lastArrivalMs;
  // By the host's clock, so that an old picture sent to a new viewer is known to be old.
  const sincePublished = Math.max(sinceArrival, since(state.header?.published_ns) || 0);
  put("age", duration(since(state.header?.acquired_ns) || sincePublished));

  const limit = Math.max((state.status.preview?.stale_s ?? 3) * 1000, 3 * (state.intervalMs ?? 0));
  const phase = state.status.state;
  const fresh = state.connected && sincePublished <= limit;
  for (const id of ["video-figure", "coded-figure", "age-cell"]) el(id).classList.toggle("stale", !fresh);

  document.body.classList.toggle("offline", !state.connected);
  const [title, why, pill, kind] = verdict({ fresh, phase, limit, sincePublished });
  el("overlay").classList.toggle("calm", kind !== "bad");
  put("overlay-title", title);
  put("overlay-why", why);
  tag("state", pill, kind);
}

// In a word over the picture, in a sentence below it, in a word at the top, and how bad it is.
function verdict({ fresh, phase, limit, sincePublished }) {
  const { nodes = [] } = state.status;
  if (!state.connected && !state.everConnected && state.retries < 2) return ["CONNECTING", "waiting for the sink node", "connecting", ""];
  if (!state.connected && phase === "ended") return ["ENDED", "the instrument has stopped; this is its last video", "ended", ""];
  if (!state.connected) return ["NO CONNECTION", "the sink node does not answer; trying again", "no connection", "bad"];
  if (phase === "ended") return ["ENDED", state.header ? "the series is over; this is its last video" : "the series is over", "ended", ""];
  if (fresh && state.paused) return ["", "", "paused here", "warn"];
  if (fresh && nodes.some((node) => node.state !== "up")) return ["", "", "live, a node is lost", "warn"];
  if (fresh) return ["", "", "live", "good"];
  if (state.header) return ["NO DATA", `no new video for ${duration(sincePublished)}`, "no data", "bad"];
  const there = (kind) => nodes.some((node) => node.kind === kind && node.state === "up");
  const missing = ["acquire", "reconstruct"].filter((kind) => !there(kind));
  const why = missing.length ? `no ${missing.join(" and no ")} node has come yet` : "for the first video";
  if (phase === "waiting" || performance.now() - state.connectedMs < limit) return ["WAITING", why, "waiting", "warn"];
  return ["NO DATA", missing.length ? why : "no video has come yet", "no data", "bad"];
}

el("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  el("pause").textContent = state.paused ? "Resume" : "Pause";
  judge();
});
el("loop").addEventListener("change", () => { state.next = Math.min(state.next, state.frames.length); state.nextAtMs = performance.now(); });

connect();
showStatus();
judge();
setInterval(judge, 250);
requestAnimationFrame(play);
