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
  clockOffsetMs: null,  // the host's clock minus ours
  connected: false, everConnected: false, retries: 0,
  header: null, frames: [], next: 0, nextAtMs: 0, dwellMs: DWELL_MS.most,
  lastArrivalMs: null, intervalMs: null,
  paused: false,
};

// --- wire ---

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { state.connected = true; state.everConnected = true; state.retries = 0; judge(); };
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
  state.status = message.status ?? {};
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
    canvas.classList.toggle("pixelated", bitmap.width < 160);
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
  const { series, rig, policy, ledger = {}, rates = {}, latency_ms: latency = {}, nodes = [], recording } = state.status;
  put("series", series || "no series yet");
  put("rig", [rig, policy].filter(Boolean).join(" · ") || "–");
  document.title = `${series ? `${series} · ` : ""}sci_stream`;
  put("rate-in", rate(rates.acquired_per_s));
  put("fps", rate(rates.video_fps));
  showLedger(ledger);
  showRecording(recording ?? {});
  rows("nodes", nodes.map((node) => ({
    cells: [node.name ?? "?", [node.kind, node.device].filter(Boolean).join(", "), node.state ?? "–"],
    kind: ["lost", "failed", "dead"].includes(node.state) ? "loss" : "",
  })), "none has reported yet");
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
  const { redelivered, duplicates } = state.status;
  if (redelivered) entries.push({ cells: ["redelivered", count(redelivered)] });
  if (duplicates) entries.push({ cells: ["duplicates refused", count(duplicates)] });
  rows("ledger", entries, "");
  if (ledger.closed) tag("ledger-closed", "closed", "good");
  else if (state.status.state === "ended") tag("ledger-closed", "does not close", "bad");
  else tag("ledger-closed", "open", "");
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
  const stale = state.paused ? false : !fresh;
  el("video-figure").classList.toggle("stale", stale || !state.connected);
  el("coded-figure").classList.toggle("stale", stale || !state.connected);
  el("age-cell").classList.toggle("stale", stale);

  const ended = state.connected && phase === "ended";
  const connecting = !state.connected && !state.everConnected && state.retries < 2;
  const title = ended ? "ENDED" : connecting ? "CONNECTING" : !state.connected ? "NO CONNECTION" : state.header ? "STALE" : "NO DATA";
  el("overlay").classList.toggle("calm", ended || connecting);
  el("overlay").firstElementChild.textContent = title;
  put("overlay-why", connecting ? "waiting for the sink node" : !state.connected ? "the sink node does not answer; trying again"
    : ended ? "the series is over; this is its last video"
    : state.header ? `no new video for ${duration(sincePublished)}`
    : "waiting for the first video");

  if (connecting) tag("state", "connecting", "");
  else if (!state.connected) tag("state", "no connection", "bad");
  else if (ended) tag("state", "ended", "");
  else if (state.paused) tag("state", "paused here", "warn");
  else if (fresh) tag("state", "live", "good");
  else tag("state", state.header ? "stale" : words(phase ?? "waiting"), state.header ? "bad" : "warn");
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
