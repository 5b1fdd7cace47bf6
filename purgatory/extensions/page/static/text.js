// Formats numbers, times and names for display. Names are untrusted: characters that are invisible or change the
// direction of text are shown as their code.

const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|\p{Surrogate}/gu;

export const visible = (name) =>
  String(name).replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

// An instant in local time, with the date if it is not today.
export function timeOf(epochMs) {
  const [date, time] = new Date(epochMs).toLocaleString("sv").split(" ");
  return date === new Date().toLocaleDateString("sv") ? time : `${date} ${time}`;
}

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
      return `${value < 10 ? Number(value.toFixed(1)) : Math.floor(value)} ${unit}`;
    }
  }
}

// The upper bound of a bucket; -1: above all bounds.
export const within = (milliseconds) =>
  milliseconds === undefined ? "–" : milliseconds < 0 ? "more" : `${milliseconds ? "≤ " : ""}${duration(milliseconds)}`;

export const offset = (number) => (Number(number) < 0 ? "–" : count(number));

export const kindName = (kind) =>
  String(kind).replace(/^OPERATION_KIND_/, "").toLowerCase();

export const spaced = (name) => name.replaceAll("_", " ");

// [topic, partition]; a signal's key has the partition -1.
export const nameText = ([name, partition]) => (partition < 0 ? visible(name) : `${visible(name)}-${partition}`);

// A cell: an id, shortened if it is as long as a hash; its title has all of it.
export function shortId(id) {
  const text = visible(id);
  return text.length < 32 ? { text } : { text: `${text.slice(0, 8)}…${text.slice(-4)}`, title: text };
}

// A cell that is kept on one line if it is short.
export const unbroken = (cell) => ({ ...cell, className: cell.text.length < 25 ? "whole" : "" });

// A cell: the operation as the search takes it. A call belongs to no session.
export function operationName(row) {
  if (!row.session) return { text: `call ${row.id}`, className: "whole" };
  const { text, title } = shortId(row.session);
  return unbroken({ text: `${text} / ${row.id}`, title: title && `${title} / ${row.id}` });
}

export const operationLink = (row) => `#/operation?${new URLSearchParams({ session: row.session, principal: row.principal, id: row.id })}`;

export const counted = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export const nameLink = ([name, partition]) =>
  partition < 0 ? `#/key?${new URLSearchParams({ key: name })}` : `#/partition?${new URLSearchParams({ topic: name, partition })}`;
