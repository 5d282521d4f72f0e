// What the modules share: the elements of the page, and what is known of the instrument.

export const el = (id) => document.getElementById(id);

export const state = {
  status: {},           // as the sink node gave it last; every key may be absent
  final: false,         // whether its figures are those of a series that is over
  clockOffsetMs: null,  // the host's clock minus ours
  connected: false, everConnected: false, connectedMs: 0, retries: 0,
  heardMs: null,        // when the sink last said anything
  header: null,         // of the newest picture
  shown: null,          // of the picture on the screen, which is older while paused
  lookingBack: false,   // whether it is one of the kept pictures
  refused: "",          // why the sink node does not admit this viewer
  arrivalMs: null, intervalMs: null,
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
