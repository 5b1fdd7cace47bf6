// One operation: for each partition the required offset, the pace, and the reason for waiting; then its outcome.

import { element, Figures, setText, Table } from "./elements.js";
import { sessionLink } from "./session.js";
import { count, duration, nameLink, nameText, offset, rate, spaced, visible } from "./text.js";

const PACE_MS = 30_000;
const ERRORS = { 0: "reached", 7: "waiting", 1001: "stale for too long", 1002: "reached, so it failed", 1003: "signalled as failed", 1004: "no heartbeat" };

export function showOperation(page) {
  const parameters = Object.fromEntries(["session", "principal", "id", "slot"].map((name) => [name, page.parameters.get(name) ?? ""]).filter(([, value]) => value));
  const title = parameters.session ? `${visible(parameters.session)} / ${visible(parameters.id)}` : `Call ${visible(parameters.id ?? "")}`;
  const lead = element("p", { class: "lead" }, "Loading …");
  const outcome = element("p", { id: "outcome" });
  const figures = new Figures(["kind", "waited", "left", "registered by"]);
  const marks = new Paces();
  const terms = new Terms();
  const items = new Table("Required marks", [
    { title: "Topic and partition, or key", cell: (row) => ({ text: nameText(row.name), href: nameLink(row.name) }) },
    { title: "Needs", number: true, cell: (row) => offset(row.required_offset) },
    { title: "Current", number: true, cell: (row) => offset(row.reached_offset) },
    { title: "Progress", cell: (row) => ({ text: `${offset(row.reached_offset)} of ${offset(row.required_offset)}`, progress: row.required_offset > 0 ? Math.min(1, Math.max(0, row.reached_offset) / row.required_offset) : 1 }) },
    { title: "Pace", number: true, cell: (row) => (row.pace_per_second > 0 ? `${rate(row.pace_per_second)} / s` : "–") },
    { title: "Estimate", number: true, cell: (row) => (row.estimated_remaining_ms >= 0 ? duration(row.estimated_remaining_ms) : "–") },
    { title: "State", cell: (row) => ({ text: row.held_back_by ? `held back: ${visible(row.held_back_by)}` : ERRORS[row.error_code] ?? `error ${row.error_code}`, className: row.error_code === 0 ? "good" : row.error_code === 7 ? "" : "bad" }) },
  ], "");
  const button = element("button", { class: "grave", hidden: true, onclick: () => page.cancel(
    "Cancel this operation?", "Its caller gets the outcome cancelled. This cannot be undone.",
    { sessionId: parameters.session, principal: parameters.principal ?? "", operationIds: [parameters.id] }) }, "Cancel it …");
  const session = parameters.session ? [element("p", {}, element("a", { href: sessionLink(parameters) }, "Its session"))] : [];
  page.add(element("h1", {}, title), lead, ...session, outcome, figures.element, terms.element, element("h2", {}, "Marks"), items.element, element("p", {}, button));
  page.onRefused = (error) => {
    setText(lead, error.code === "not_found" ? "It is not pending, and it ended before a viewer connected." : visible(error.message));
    button.hidden = true;
  };
  page.follow("/page/live/operation", parameters, (row) => {
    const is_pending = row.state === "pending";
    const held = row.items.find((item) => item.held_back_by)?.held_back_by;
    setText(lead, is_pending ? `It is pending.${held ? ` Held back: ${visible(held)}.` : ""}` : `It ended ${duration(row.ago_ms)} ago.`);
    setText(outcome, is_pending ? "" : `Outcome: ${row.outcome}${row.lateness_ms > 0 ? `, ${duration(row.lateness_ms)} late` : ""}.`);
    outcome.className = is_pending ? "" : row.outcome === "satisfied" ? "good" : "bad";
    button.hidden = !is_pending || !parameters.session;
    figures.show("kind", spaced(row.kind), row.min_bytes ? `at least ${count(row.min_bytes)} bytes` : "");
    figures.show("waited", duration(row.waited_ms));
    figures.show("left", is_pending ? duration(row.left_ms) : "–");
    figures.show("registered by", row.principal ? visible(row.principal) : row.session ? "a session" : "a call", row.session ? `session ${visible(row.session)}` : "");
    terms.show(row);
    // The terms of a composite may repeat a name.
    items.show(row.items.map((item) => (is_pending ? { ...item, ...marks.of(item) } : item)), row.kind === "composite" ? undefined : (item) => nameText(item.name));
  });
}

// The terms of a composite as a tree with two arms. How many there are is known only while it is pending.
class Terms {
  constructor() {
    this.element = element("ul", { class: "tree", id: "terms", hidden: true });
    this.required = 0;
    this.firstFailure = 0;
    this.count = 0;
  }

  show(row) {
    if (row.required_terms) {
      this.required = row.required_terms;
      this.count = row.item_count;
      this.firstFailure = this.count - row.unless_count;
    }
    if (!this.required) return;
    const leaf = (item) => element("li", { class: item.error_code === 0 ? "good" : item.error_code === 7 ? "" : "bad" },
      `${nameText(item.name)}: ${offset(item.reached_offset)} of ${offset(item.required_offset)}`);
    const arm = (title, from, to) => {
      const shown = row.items.slice(from, to);
      const left = to - from - shown.length;
      return element("li", {}, title, element("ul", {}, ...shown.map(leaf), ...(left ? [element("li", {}, `and ${count(left)} more`)] : [])));
    };
    this.element.replaceChildren(
      arm(`Satisfied when ${this.required} of ${this.firstFailure} are true`, 0, this.firstFailure),
      ...(this.count > this.firstFailure ? [arm("Fails when one of these is true", this.firstFailure, this.count)] : []));
    this.element.hidden = false;
  }
}

// The pace of the marks since the page was opened.
class Paces {
  constructor() {
    this.seen = new Map();
  }

  of(item) {
    const key = nameText(item.name);
    const points = this.seen.get(key) ?? [];
    this.seen.set(key, points);
    const now = performance.now();
    points.push([now, item.reached_offset]);
    while (points.length > 2 && points[0][0] < now - PACE_MS) points.shift();
    const [[from, before]] = points;
    const pace = now > from ? ((item.reached_offset - before) * 1_000) / (now - from) : 0;
    return { pace_per_second: pace, estimated_remaining_ms: item.error_code === 7 && pace > 0 ? ((item.required_offset - item.reached_offset) / pace) * 1_000 : -1 };
  }
}
