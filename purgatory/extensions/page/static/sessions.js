// Sessions: whether each is connected, and its unacknowledged results.

import { element, setText, Table } from "./elements.js";
import { sessionLink } from "./session.js";
import { count, duration, shortId, visible } from "./text.js";

export function showSessions(page) {
  const found = element("p", { class: "lead" }, "Loading …");
  const search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  const table = new Table("By opening time", [
    { title: "Session", cell: (row) => ({ ...shortId(row.session), href: sessionLink(row) }) },
    { title: "Principal", cell: (row) => visible(row.principal) || "–" },
    { title: "Connected for", number: true, cell: (row) => (row.connected ? { text: duration(row.connected_ms), className: "good" } : { text: `away ${duration(row.idle_ms)}`, className: "warn" }) },
    { title: "Registered", number: true, cell: (row) => count(row.registered) },
    { title: "Pending", number: true, cell: (row) => count(row.pending) },
    { title: "Results", number: true, cell: (row) => count(row.results) },
    { title: "Unacknowledged", number: true, cell: (row) => count(row.unacknowledged) },
    { title: "Last acknowledgement", number: true, cell: (row) => (row.acknowledged_ms === null ? "none" : `${duration(row.acknowledged_ms)} ago`) },
  ], "No matching session.");
  page.add(element("h1", {}, "Sessions"), found,
    element("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, element("label", { for: "search" }, "Id contains"), search),
    table.element);
  const ask = page.following("/page/live/sessions", (picture) => {
    setText(found, `${count(picture.sessions.length)} shown of ${count(picture.of)}.${picture.is_cut && search.value ? " Older ones were not searched." : ""}`);
    table.setEmpty(search.value ? "No session has an id that contains this." : "A client that registers waits opens a session, which then appears here. Single calls of Wait need none.");
    table.show(picture.sessions, (row) => `${row.principal} ${row.session}`);
  });
  search.addEventListener("input", () => ask({ search: search.value }));
  ask({});
}
