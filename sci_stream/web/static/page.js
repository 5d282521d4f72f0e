// What the modules share: the elements of the page, and the state of the instrument.

/**
 * An element of the page. Its kind is known where it is used.
 * @param {string} id
 * @returns {any}
 */
export const el = (id) => document.getElementById(id);

/**
 * All elements that match a selector.
 * @param {string} selector
 * @returns {any[]}
 */
export const all = (selector) => [...document.querySelectorAll(selector)];

/**
 * A new element with its properties and its content.
 * @param {string} name
 * @param {Record<string, unknown>} properties
 * @param {...(string | Node)} content
 * @returns {any}
 */
export function make(name, properties = {}, ...content) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...content);
  return made;
}

// Replace the body of a table by rows of { cells, kind, title }; a text in their place if there are none.
export function showRows(id, rows, empty = "") {
  const row = ({ cells, kind = "", title = "" }) => make("tr", { className: kind, title }, ...cells.map((text) => make("td", {}, text)));
  const nothing = make("tr", {}, make("td", { className: "empty" }, empty));
  el(id).tBodies[0].replaceChildren(...(rows.length ? rows.map(row) : [nothing]));
}

/**
 * What a message of the sink node says about a snapshot; see sci_stream/web/message.py.
 * @typedef {Record<string, any> & { series: string, seq: number, n_frames: number, width_px: number, height_px: number,
 *   acquired_ns: number, published_ns: number, bayer: string | null,
 *   counts: any, saturated_fraction: number, iterations: number, method: string }} Header
 *
 * A decoded snapshot.
 * @typedef {{ header: Header, frames: ImageBitmap[], coded: ImageBitmap | null, drawn: ImageBitmap | null }} Made
 */

export const state = {
  playing: true,        // whether frames follow each other, or one is held
  /** @type {Record<string, any>} */
  status: {},           // the latest of the sink node; every key may be absent
  final: false,         // whether it describes a series that has ended
  clockOffsetMs: null,  // the host's clock minus ours
  connected: false, everConnected: false, connectedMs: 0, retries: 0,
  heardMs: null,        // time of the last message of the sink node
  /** @type {Header | null} */
  header: null,         // of the newest picture
  /** @type {Header | null} */
  shown: null,          // of the picture on the screen, which is older while paused
  lookingBack: false,   // whether that is a picture from the timeline, refined, or of a recording
  /** @type {{ name: string, index: number, total: number, intervalMs?: number } | null} */
  recorded: null,       // { name, index, total } of the snapshot of a recording on the screen
  refused: "",          // why the sink node refused this viewer
  arrivalMs: null,      // of the newest picture
  gapsMs: [],           // between the last pictures of the series
  intervalMs: null,     // their median
};

export function put(id, text) {
  const node = el(id);
  if (node.textContent !== text) node.textContent = text;
}

export function tag(id, text, kind) {
  const node = el(id);
  const name = `${id === "state" ? "pill" : "tag"} ${kind}`;
  put(id, text);
  if (node.className !== name) node.className = name;
}

let toastTimer = 0;

export function toast(text, bad = false) {
  const node = el("toast");
  node.textContent = text;
  node.className = `toast shown${bad ? " bad" : ""}`;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { node.className = "toast"; }, bad ? 8000 : 4000);
}

// Wait for some work, and show its error if it fails.
export const attempt = (work) => work().catch((error) => toast(error.message, true));
