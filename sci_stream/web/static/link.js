// The connection to the sink node: receive pictures and status, send acknowledgements and requests.

import { state } from "./page.js";
import { decode, split, wanted } from "./decode.js";

const FULL = 1013;  // close code of a sink node with the most viewers allowed
const RETRY_MS = [250, 500, 1000, 2000];

export function connect({ picture, status, changed }) {
  const codec = wanted();
  // Every address is relative: a reverse proxy may serve the page under a path.
  const address = new URL(`live?codec=${codec}`, document.baseURI);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(address);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    Object.assign(state, { connected: true, everConnected: true, connectedMs: performance.now(), heardMs: performance.now() });
    changed(true);
  };
  socket.onclose = (event) => {
    state.connected = false;
    state.refused = event.code === FULL ? event.reason : "";
    changed(false);
    setTimeout(() => connect({ picture, status, changed }), RETRY_MS[Math.min(state.retries++, RETRY_MS.length - 1)]);
  };
  // One message after the other, so that pictures cannot overtake each other while they are decoded.
  let work = Promise.resolve();
  socket.onmessage = (event) => {
    state.heardMs = performance.now();
    work = work.then(() => take(socket, event.data, { picture, status })).catch((error) => {
      if (wanted() === codec) console.error(error);
      else socket.close();  // H.264 failed here: again, with JPEG
    });
  };
}

async function take(socket, data, { picture, status }) {
  if (typeof data === "string") {
    const message = JSON.parse(data);
    report = message.status ?? merged(report, message.changes);
    Object.assign(state, { retries: 0, refused: "" });  // an open connection may still be refused
    status({ now_ns: message.now_ns, status: report });
    return;
  }
  try {
    picture(await decode(data));
  } finally {
    // Acknowledged only now: a slow browser is sent fewer pictures, never old ones.
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ ack: split(data).header.number }));
  }
}

let report = {};

// Apply a JSON merge patch (RFC 7396): null removes a member.
function merged(old, changes) {
  const made = { ...old };
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) delete made[key];
    else if (typeof value === "object" && !Array.isArray(value)) made[key] = merged(typeof old[key] === "object" && !Array.isArray(old[key]) ? old[key] : {}, value);
    else made[key] = value;
  }
  return made;
}

// Send a control request to the sink node. Throws an Error with its message if it refuses.
export async function ask(name, body = {}) {
  let answer;
  try {
    const response = await fetch(`control/${name}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    answer = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : { ok: false, error: await response.text() };
  } catch {
    throw new Error("The sink node does not answer.");
  }
  if (!answer.ok) throw new Error(answer.error);
  return answer;
}

// Fetch from the sink node. Throws an Error with its message if it refuses.
export async function get(path, parameters = {}) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`).catch(() => { throw new Error("The sink node does not answer."); });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? `HTTP ${response.status}`);
  return response;
}

export async function fetchHistory(span = 300) {
  const response = await fetch(`history?span=${span}`);
  return response.ok ? (await response.json()).history : [];
}
