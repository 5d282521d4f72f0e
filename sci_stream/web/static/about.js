// Explanations by a click: of each figure, since phones have no tooltips.

import { el } from "./page.js";

const MARGIN_PX = 8;

function show(of) {
  const node = el("about");
  node.textContent = of.title;
  if (!node.matches(":popover-open")) node.showPopover();
  const at = of.getBoundingClientRect();
  const below = at.bottom + node.offsetHeight + 2 * MARGIN_PX < innerHeight;
  const top = below ? at.bottom + MARGIN_PX : at.top - node.offsetHeight - MARGIN_PX;
  const left = Math.min(at.left, innerWidth - node.offsetWidth - MARGIN_PX);
  Object.assign(node.style, { left: `${Math.max(left, MARGIN_PX)}px`, top: `${Math.max(top, MARGIN_PX)}px` });
}

export function start() {
  document.addEventListener("click", ({ target }) => {
    if (target.closest(".why, .now dt, .now dd, [data-panel] td, .tag")) {
      const of = target.closest("[title]");
      if (of?.title) show(of);
    }
  });
}
