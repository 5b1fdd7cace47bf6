// The pace of marks while a view is open, and whether a wait will end in time at that pace.

import { duration, nameText } from "./text.js";

const PACE_MS = 30_000;
const MARKS_MAX = 500;

export class Paces {
  constructor() {
    this.seen = new Map();
  }

  // The pace of an item that a kind of operation waits for, and the time until it is reached; -1: unknown.
  of(kind, item) {
    const key = `${kind} ${nameText(item.name)}`;
    const points = this.seen.get(key) ?? [];
    this.seen.delete(key);
    this.seen.set(key, points);
    if (this.seen.size > MARKS_MAX) this.seen.delete(this.seen.keys().next().value);
    const now = performance.now();
    // Operations in one picture share the mark.
    if (!points.length || now - points.at(-1)[0] > 100) points.push([now, item.reached_offset]);
    while (points.length > 2 && points[0][0] < now - PACE_MS) points.shift();
    const [[from, before]] = points;
    const pace = now > from ? ((item.reached_offset - before) * 1_000) / (now - from) : 0;
    const left = item.required_offset - item.reached_offset;
    return { pace_per_second: pace, estimated_remaining_ms: item.error_code === 7 && pace > 0 ? (left / pace) * 1_000 : -1 };
  }
}

// A cell: the estimate, and how it compares with the time that is left.
export function verdict(estimate_ms, left_ms) {
  if (estimate_ms < 0) return "–";
  return estimate_ms <= left_ms
    ? { text: `in ${duration(estimate_ms)}: in time`, className: "good" }
    : { text: `${duration(estimate_ms - left_ms)} too late`, className: "bad", title: `Reached in ${duration(estimate_ms)} at the present pace` };
}
