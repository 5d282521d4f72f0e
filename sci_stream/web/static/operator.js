// The operator of this browser: a name for every change, and questions before changes that cannot be undone.

import { el, put } from "./page.js";
import { ask } from "./link.js";

const NAME_LENGTH = 64, HESITATION_MS = 600;

export const name = () => localStorage.getItem("operator") ?? "";

function setName(text) {
  localStorage.setItem("operator", text.trim().slice(0, NAME_LENGTH));
  el("operator").value = name();
}

// Show a dialog; return whether its operator agreed.
function agreed(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

export function confirmed(title, why) {
  put("confirm-title", `${title}?`);
  put("confirm-why", why);
  put("confirm-yes", title);
  // Not at once: a second tap or key of the same movement is no agreement.
  el("confirm-yes").disabled = true;
  setTimeout(() => { el("confirm-yes").disabled = false; }, HESITATION_MS);
  return agreed(el("confirm"));
}

// Request a change of the instrument, in the operator's name: the first change of this browser asks for it.
export async function change(command, body) {
  if (!name() && !sessionStorage.getItem("anonymous")) {
    if (await agreed(el("who"))) setName(el("who-name").value);
    else sessionStorage.setItem("anonymous", "1");
  }
  return ask(command, { ...body, who: name() || "unknown" });
}

export function start() {
  el("operator").value = name();
  el("operator").addEventListener("change", () => setName(el("operator").value));
}
