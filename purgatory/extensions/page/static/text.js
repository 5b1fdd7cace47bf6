// Formats numbers, times and names for display. Names are untrusted: characters that are invisible or change the
// direction of text are shown as their code.

const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;

export const visible = (name) =>
  String(name).replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (number) => whole.format(Number(number));

export function rate(number) {
  if (!Number.isFinite(number)) return "–";
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : whole.format(number);
}

const UNITS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"]];

export function duration(milliseconds) {
  const ms = Math.max(0, Number(milliseconds));
  if (ms > 86_400_000 * 10_000) return "no limit";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  for (const [size, unit] of UNITS) {
    if (ms >= size) {
      const value = ms / size;
      return `${value < 10 && (unit !== "s" || value < 10) ? value.toFixed(1) : Math.floor(value)} ${unit}`;
    }
  }
}

const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const [minutes, seconds] = [CLOCK, { ...CLOCK, second: "2-digit" }].map((form) => new Intl.DateTimeFormat("en", form));

export const clockTime = (milliseconds, withSeconds = true) =>
  Number.isFinite(milliseconds) ? (withSeconds ? seconds : minutes).format(milliseconds) : "–";

// Random ids of 32 hexadecimal digits are shortened in lists; the session's own view shows them in full.
export const sessionText = (id) =>
  visible(id).replace(/[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}/gi, (hex) => `${hex.slice(0, 6)}…${hex.slice(-4)}`);

// The upper bound of a bucket; -1: above all bounds.
export const within = (milliseconds) =>
  milliseconds === undefined ? "–" : milliseconds < 0 ? "more" : `≤ ${duration(milliseconds)}`;

export const offset = (number) => (Number(number) < 0 ? "–" : count(number));

export const kindName = (kind) =>
  String(kind).replace(/^OPERATION_KIND_/, "").toLowerCase();

export const spaced = (name) => name.replaceAll("_", " ");

// [topic, partition]; a signal's key has the partition -1.
export const nameText = ([name, partition]) => (partition < 0 ? visible(name) : `${visible(name)} · ${partition}`);

export const nameLink = ([name, partition]) =>
  partition < 0 ? `#/key?${new URLSearchParams({ key: name })}` : `#/partition?${new URLSearchParams({ topic: name, partition })}`;
