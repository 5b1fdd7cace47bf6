// One session: its callback, its pending operations, its unacknowledged results, and a button that closes it.

import { ask, Report } from "./ask.js";
import { copying, element, Figures, setText, Table, titled } from "./elements.js";
import { Paces } from "./estimates.js";
import { itemsText, operationColumns } from "./pending.js";
import { count, duration, spaced, visible } from "./text.js";

export const sessionLink = (row) => `#/session?${new URLSearchParams({ session: row.session, principal: row.principal ?? "" })}`;

export function showSession(page) {
  const session = page.parameters.get("session") ?? "";
  const principal = page.parameters.get("principal") ?? "";
  const lead = element("p", { class: "lead", id: "session-lead" }, "Loading …");
  const report = new Report();
  const figures = new Figures(["principal", "connection", "pending", "unacknowledged", "registered up to", "results", "held", "incarnation"]);
  const waits = new Table("Pending, newest first", operationColumns(new Paces()).map(({ sort, ...one }) => one), "Nothing is pending.", "session-waits");
  const results = new Table("Unacknowledged, oldest first", [
    { title: "No.", cell: (row) => count(row.sequence) },
    { title: "Operation", number: true, cell: (row) => String(row.id) },
    { title: "Outcome", cell: (row) => ({ text: row.outcome, className: row.outcome === "satisfied" ? "good" : "bad" }) },
    { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
    { title: "Waited on", cell: itemsText },
    { title: "Waited", number: true, cell: (row) => duration(row.waited_ms) },
  ], "All results are acknowledged.", "session-results");
  const close = element("button", { type: "button", class: "grave", hidden: true }, "Close the session …");
  let row = null;
  close.addEventListener("click", async () => {
    const loss = `Pending operations that are cancelled: ${count(row.pending)}. Unacknowledged results that are dropped: ${count(row.unacknowledged)}. The client gets none of them.`;
    if (!await ask(`Close the session ${visible(session)}?`, loss, "Close it")) return;
    await report.call("CloseSession", { sessionId: session },
      (answer) => `Closed. Operations cancelled: ${count(answer.cancelled ?? 0)}. Results dropped: ${count(answer.resultsDropped ?? 0)}.`);
  });
  page.add(titled(element("h1", {}, visible(session)), copying(session, "Copy its id"), close), lead, report.element, figures.element,
    element("h2", {}, "Operations"), waits.element, element("p", {}, element("a", { href: `#/waits?${new URLSearchParams({ q: session })}` }, "Find and sort them in Waits")), element("h2", {}, "Results"), results.element);
  page.onRefused = (error) => {
    setText(lead, error.code === "not_found" ? "This session does not exist, or no longer." : visible(error.message));
    close.hidden = true;
    waits.show([]);
    results.show([]);
  };
  page.follow("/page/live/session", { session, principal }, (now) => {
    row = now;
    const destination = now.callback ? `Its results are POSTed to ${visible(now.callback)}.` : now.connected ? "Its client is connected." : "Its client is away.";
    setText(lead, destination);
    // Only its owner can close a session: the daemon has no call for another caller's.
    close.hidden = !now.is_own;
    figures.show("principal", visible(now.principal) || "–");
    figures.show("connection", now.connected ? duration(now.connected_ms) : `away ${duration(now.idle_ms)}`, now.callback ? "by the callback" : "");
    figures.show("pending", count(now.pending), now.pending > now.waits.length ? `${count(now.waits.length)} shown` : "");
    figures.show("unacknowledged", count(now.unacknowledged), now.acknowledged_ms === null ? "none acknowledged so far" : `last acknowledgement ${duration(now.acknowledged_ms)} ago`);
    figures.show("registered up to", count(now.registered));
    figures.show("results", count(now.results));
    figures.show("held", `${count(now.held_bytes / 1_000)} kB`, "by results");
    figures.show("incarnation", now.incarnation.slice(0, 8));
    waits.show(now.waits, (one) => String(one.id));
    results.show(now.unread, (one) => String(one.sequence));
  });
}
