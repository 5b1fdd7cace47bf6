// Waits: the names with the most waits, and the pending operations; both of everything, or of what a search finds.

import { element, setText, Table } from "./elements.js";
import { followPending } from "./pending.js";
import { sessionLink } from "./session.js";
import { count, counted, nameLink, nameText, shortId, visible } from "./text.js";

export function showWaits(page) {
  const sought = () => page.parameters.get("q") ?? "";
  const found = element("p", { class: "lead", id: "found" }, "Loading …");
  const nothing = element("p", { class: "notice", id: "nothing", hidden: true });
  const hot = new Table("The first 50 in the chosen order", [
    { title: "Topic and partition, or key", sort: "name", cell: (row) => ({ text: nameText(row), href: nameLink(row) }) },
    { title: "Waits", number: true, sort: "waits", first: "-waits", cell: (row) => count(row[2]) },
    { title: "Share of these operations", cell: (row) => ({ text: `${Math.round((100 * row[2]) / row[3])} % of these operations`, progress: row[2] / row[3] }) },
  ], "No operations are pending.", "hot");
  const sessions = new Table("Sessions whose id matches", [
    { title: "Session", cell: (row) => ({ ...shortId(row.session), href: sessionLink(row) }) },
    { title: "Principal", cell: (row) => visible(row.principal) || "–" },
    { title: "Connected", cell: (row) => (row.connected ? { text: "yes", className: "good" } : { text: "no", className: "warn" }) },
    { title: "Pending", number: true, cell: (row) => count(row.pending) },
    { title: "Unacknowledged", number: true, cell: (row) => count(row.unacknowledged) },
  ], "No session matches.", "found-sessions");
  sessions.element.hidden = true;
  const showFound = (picture) => {
    const total = Math.max(1, picture.operations);
    hot.setEmpty(sought() ? "No topic, partition or key matches." : "No operations are pending.");
    hot.show(picture.hot.map((row) => [...row, total]), (row) => `${row[0]} ${row[1]}`);
    sessions.element.hidden = !sought() || !picture.sessions.length;
    sessions.show(picture.sessions, (row) => `${row.principal} ${row.session}`);
    const whose = picture.sees_all ? "" : " of yours";
    const cut = picture.names_are_cut ? "more than " : "";
    const number = `${counted(picture.operations, "operation")}${whose}`;
    setText(found, sought()
      ? `“${visible(sought())}” matches ${number}, ${counted(picture.matching, "name")} and ${counted(picture.session_count, "session")}.`
      : `${number} wait${picture.operations === 1 ? "s" : ""} on ${cut}${counted(picture.names, "name")}.`);
    nothing.hidden = !sought() || picture.operations > 0 || picture.hot.length > 0 || picture.session_count > 0;
    if (!nothing.hidden) {
      nothing.replaceChildren(`Nothing that is pending matches “${visible(sought())}”. `, element("a", { href: "#/waits" }, "Show everything"),
        ", or ", element("a", { href: `#/partitions?${new URLSearchParams({ q: sought() })}` }, "look among all partitions"), ".");
    }
  };
  const pending = followPending(page, "Pending operations: the first 50 in the chosen order", {}, showFound);
  hot.sorted(page.parameters.get("names") || "-waits");
  hot.onSort = (names) => { hot.sorted(names); pending.select({ names }); };
  page.onSearch = (text) => pending.select({ q: text.trim() });
  page.add(element("h1", {}, "Pending operations"), found, nothing, sessions.element,
    element("h2", {}, "Partitions and keys"), hot.element, element("h2", {}, "Operations"), pending.filter, pending.table.element);
}
