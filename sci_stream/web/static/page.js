// What the modules share: the elements of the page, and the state of the instrument.

export const el = (id) => document.getElementById(id);

// A new element with its properties and its content.
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

export const state = {
  status: {},           // the latest of the sink node; every key may be absent
  final: false,         // whether it describes a series that has ended
  clockOffsetMs: null,  // the host's clock minus ours
  connected: false, everConnected: false, connectedMs: 0, retries: 0,
  heardMs: null,        // time of the last message of the sink node
  header: null,         // of the newest picture
  shown: null,          // of the picture on the screen, which is older while paused
  lookingBack: false,   // whether that is a picture from the timeline, refined, or of a recording
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
