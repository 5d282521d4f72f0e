// Changes that operators made, at any page or program: the list, and a notice of each new one.

import { el, make, state, toast } from "./page.js";
import { clock } from "./format.js";

const DEMO = "the demo";  // paces its camera: no news for anyone, but the newest in the list
let newest = null;  // time of the newest change that was shown, ns

const text = ({ text: what, who }) => `${what}, by ${who}`;

export function showChanges() {
  const all = state.status.changes ?? [];
  const last = all.at(-1);
  const changes = all.filter((change) => change === last || !change.who.startsWith(DEMO));
  const news = changes.filter(({ time_ns: at, who }) => newest !== null && at > newest && !who.startsWith(DEMO));
  if (news.length) toast(news.map(text).join("\n"));
  if (last?.time_ns === newest) return;
  newest = last?.time_ns ?? 0;
  el("no-changes").hidden = changes.length > 0;
  el("changes").replaceChildren(...changes.toReversed().map((change) =>
    make("li", {}, make("time", { className: "num" }, clock(change.time_ns)), " ", text(change))));
}
