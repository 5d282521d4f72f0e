// The connection to the sink node: pictures and status come in, acknowledgements and requests go out.

import { state } from "./page.js";

const MESSAGE_VERSION = 1;
const RETRY_MS = [250, 500, 1000, 2000];

export function connect({ picture, status, changed }) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    Object.assign(state, { connected: true, everConnected: true, connectedMs: performance.now(), heardMs: performance.now(), retries: 0 });
    changed(true);
  };
  socket.onclose = () => {
    state.connected = false;
    changed(false);
    setTimeout(() => connect({ picture, status, changed }), RETRY_MS[Math.min(state.retries++, RETRY_MS.length - 1)]);
  };
  // One message after the other, so that pictures cannot overtake each other while they are decoded.
  let work = Promise.resolve();
  socket.onmessage = (event) => {
    state.heardMs = performance.now();
    work = work.then(() => take(socket, event.data, { picture, status })).catch((error) => console.error(error));
  };
}

async function take(socket, data, { picture, status }) {
  if (typeof data === "string") { status(JSON.parse(data)); return; }
  const { header, images } = split(data);
  try {
    if (header.v !== MESSAGE_VERSION) throw new Error(`message version ${header.v}; reload the page`);
    const bitmaps = await Promise.all(images.map((jpeg) => createImageBitmap(new Blob([jpeg], { type: "image/jpeg" }))));
    picture(header, bitmaps);
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

// Ask the sink node for something. Throws an Error with its words if it refuses.
export async function ask(name, body = {}) {
  let answer;
  try {
    const response = await fetch(`/control/${name}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    answer = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : { ok: false, error: await response.text() };
  } catch {
    throw new Error("The sink node does not answer.");
  }
  if (!answer.ok) throw new Error(answer.error);
  return answer;
}

export async function fetchHistory() {
  const response = await fetch("/history");
  return response.ok ? (await response.json()).history : [];
}
