// Format numbers and names. An unknown number is a dash.


export const known = (value) => typeof value === "number" && Number.isFinite(value);
export const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "–");
export const count = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
export const rate = (value) => (known(value) ? (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)) : "–");
export const snapshots = (n) => (n === 1 ? "1 snapshot" : `${count(n)} snapshots`);
export const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString([], { hour12: false });
export const words = (text) => String(text).replaceAll("_", " ");

// States of a recording and of its file, in plain words.
const STATES = { open: "being written", clean: "complete" };
export const stateWords = (name) => STATES[name] ?? words(name);

// The sum of counts by reason.
export const total = (counts) => Object.values(counts ?? {}).reduce((sum, n) => sum + n, 0);

const UNITS = { hz: "Hz", s: "s", ms: "ms", us: "µs", px: "px", dn: "DN", db: "dB", mib: "MiB" };

// A name that ends in its unit: "snapshot_rate_hz" is "snapshot rate (Hz)".
export function named(name) {
  const [, plain, unit] = /^(.+)_([a-z]+)$/.exec(name) ?? [];
  return UNITS[unit] ? `${words(plain)} (${UNITS[unit]})` : words(name);
}

export function duration(ms) {
  if (!known(ms)) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.floor((ms % 60e3) / 1000)} s`;
  return `${Math.floor(ms / 3600e3)} h ${Math.floor((ms % 3600e3) / 60e3)} min`;
}

export function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < units.length - 1) { value /= 1000; power += 1; }
  return `${value.toFixed(power === 0 || value >= 100 ? 0 : 1)} ${units[power]}`;
}

export function percent(fraction) {
  if (!known(fraction)) return "–";
  const value = 100 * fraction;
  return value === 0 ? "0 %" : value < 0.01 ? "< 0.01 %" : `${value.toFixed(value < 10 ? 2 : 1)} %`;
}
