// Labels, units and digits of the reported quantities, as the sink node declares them (sci_stream/reports.py).

import { get } from "./link.js";
import { fixed, known, percent } from "./format.js";

export const { solve, calibration } = await (await get("quantities")).json();
const declared = new Map([...solve, ...calibration].map((quantity) => [quantity.key, quantity]));

// The label of a quantity, with a capital letter.
export const title = (key) => declared.get(key).label.replace(/^./, (letter) => letter.toUpperCase());

export function shown(key, value) {
  const { unit, digits } = declared.get(key);
  return unit === "%" ? percent(value) : [fixed(value, digits), known(value) ? unit : ""].filter(Boolean).join(" ");
}

// Labels and values of those quantities that are known.
export const listed = (quantities, values) => quantities.filter(({ key }) => known(values?.[key]))
  .map(({ key, label }) => `${label} ${shown(key, values[key])}`);

for (const node of document.querySelectorAll("[data-quantity]")) node.textContent = title(node.dataset.quantity);
