// One operation: for each partition the required offset, the pace, and the reason for waiting; then its outcome.

import { copying, element, Figures, setText, Table, titled } from "./elements.js";
import { Paces, verdict } from "./estimates.js";
import { reason } from "./pending.js";
import { sessionLink } from "./session.js";
import { count, duration, nameLink, nameText, offset, rate, shortId, spaced, timeOf, visible } from "./text.js";

// An error of an item as the command line prints it; an expired item has the error of its timeout.
function stateOf(row) {
  if (row.held_back_by) return { text: `held back: ${visible(row.held_back_by)}` };
  if (row.error) return { text: row.error, className: "bad" };
  if (row.error_code === 0) return { text: "reached", className: "good" };
  return row.isUnless ? "not yet" : "waiting";
}

export function showOperation(page) {
  const parameters = Object.fromEntries(["session", "principal", "id"].map((name) => [name, page.parameters.get(name) ?? ""]).filter(([, value]) => value));
  const title = parameters.session ? `${visible(parameters.session)} / ${visible(parameters.id)}` : `Call ${visible(parameters.id ?? "")}`;
  const lead = element("p", { class: "lead" }, "Loading …");
  const outcome = element("p", { id: "outcome" });
  const figures = new Figures(["kind", "waited", "left", "registered by"]);
  const paces = new Paces();
  const terms = new Terms();
  const items = new Table("Required marks", [
    { title: "Topic and partition, or key", cell: (row) => ({ text: `${row.isUnless ? "unless " : ""}${nameText(row.name)}`, href: nameLink(row.name) }) },
    { title: "Needs", number: true, cell: (row) => offset(row.required_offset) },
    { title: "Current", number: true, cell: (row) => offset(row.reached_offset) },
    { title: "Progress", cell: (row) => ({ text: `${offset(row.reached_offset)} of ${offset(row.required_offset)}`, progress: row.required_offset > 0 ? Math.min(1, Math.max(0, row.reached_offset) / row.required_offset) : 1 }) },
    { title: "Pace", number: true, cell: (row) => (row.pace_per_second > 0 ? `${rate(row.pace_per_second)} / s` : "–") },
    { title: "Estimate", cell: (row) => verdict(row.estimated_remaining_ms, row.left_ms) },
    { title: "State", cell: stateOf },
  ], "");
  const marks = element("div", {}, element("h2", {}, "Marks"), items.element);
  const button = element("button", { class: "grave", hidden: true, onclick: () => page.cancel(
    "Cancel this operation?", "Its caller gets the outcome cancelled. This cannot be undone.",
    { sessionId: parameters.session, principal: parameters.principal ?? "", operationIds: [parameters.id] }, "Cancel this operation") }, "Cancel this operation …");
  const session = parameters.session ? [element("p", {}, element("a", { href: sessionLink(parameters) }, "Its session"))] : [];
  const spelled = `${parameters.session ? `${parameters.session}/` : ""}${parameters.id ?? ""}`;
  page.add(titled(element("h1", {}, title), copying(spelled, "Copy its id"), button), lead, ...session, outcome, figures.element, terms.element, marks);
  page.onRefused = (error) => {
    setText(lead, error.code === "not_found" ? "It is not pending, and it ended before a viewer connected." : visible(error.message));
    button.hidden = figures.element.hidden = marks.hidden = true;
  };
  page.follow("/page/live/operation", parameters, (row) => {
    const is_pending = row.state === "pending";
    figures.element.hidden = marks.hidden = false;
    const why = is_pending ? reason(row, paces) : "–";
    setText(lead, is_pending ? `It is pending${why === "–" ? "" : `: ${why}`}.` : `It ended at ${timeOf(row.ended_at_ms)}.`);
    setText(outcome, is_pending ? "" : `Outcome: ${row.outcome}${row.lateness_ms > 0 ? `, ${duration(row.lateness_ms)} late` : ""}${whyEnded(row)}.`);
    outcome.className = is_pending ? "" : row.outcome === "satisfied" ? "good" : "bad";
    button.hidden = !is_pending || !parameters.session;
    figures.show("kind", spaced(row.kind), row.min_bytes ? `at least ${count(row.min_bytes)} bytes` : "");
    const [registered, ends] = is_pending ? [row.registered_at_ms, row.expires_at_ms] : [row.ended_at_ms - row.waited_ms, row.ended_at_ms];
    figures.show("waited", duration(row.waited_ms), `since ${timeOf(registered)}`);
    figures.show("left", is_pending ? duration(row.left_ms) : "–", `${is_pending ? "expires" : "ended"} ${timeOf(ends)}`);
    figures.show("registered by", row.principal ? visible(row.principal) : row.session ? "a session" : "a call", row.session ? `session ${shortId(row.session).text}` : "");
    terms.show(row);
    const shown = row.items.map((item, place) => ({ ...item, isUnless: place >= terms.firstFailure, left_ms: 0, ...(is_pending && { ...paces.of(row.kind, item), left_ms: row.left_ms }) }));
    // The terms of a composite may repeat a name.
    items.show(shown, row.kind === "composite" ? undefined : (item) => nameText(item.name));
  });
}

function whyEnded(row) {
  const item = row.items.find((one) => one.error && (one.error_code !== 7 || row.outcome === "expired"));
  return item ? `: ${nameText(item.name)}: ${item.error}` : "";
}

// How many terms decide a composite. Their number is known only while it is pending.
class Terms {
  constructor() {
    this.element = element("p", { id: "terms", hidden: true });
    this.firstFailure = Infinity;
  }

  show(row) {
    if (!row.required_terms) return;
    this.firstFailure = row.item_count - row.unless_count;
    const last = row.unless_count === 1 ? "the last is" : `one of the last ${count(row.unless_count)} is`;
    const fails = row.unless_count ? `; fails when ${last} true` : "";
    const left = row.item_count - row.items.length;
    setText(this.element, `Satisfied when ${row.required_terms} of the first ${this.firstFailure} are true${fails}.${left ? ` ${count(left)} more are not shown.` : ""}`);
    this.element.hidden = false;
  }
}
