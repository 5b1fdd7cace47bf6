// Waits: the names with the most waits, the operations that have waited longest, and those that expire soonest.

import { element, setText, Table } from "./elements.js";
import { count, duration, nameLink, nameText, sessionText, spaced } from "./text.js";

export const operationLink = (row) =>
  `#/operation?${new URLSearchParams({ session: row.session, principal: row.principal, id: row.id, slot: row.slot ?? 0 })}`;

export const itemsText = (row) => {
  const more = row.item_count - row.items.length;
  return row.items.map((item) => nameText(item.name)).join(", ") + (more > 0 ? `, and ${count(more)} more` : "");
};

export const operationColumns = [
  { title: "Operation", cell: (row) => ({ text: row.session ? `${sessionText(row.session)} / ${row.id}` : `call ${row.id}`, href: operationLink(row) }) },
  { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
  { title: "Waits on", cell: itemsText },
  { title: "Waited", number: true, cell: (row) => duration(row.waited_ms) },
  { title: "Left", number: true, cell: (row) => ({ text: duration(row.left_ms), className: row.left_ms < 5_000 ? "warn" : "" }) },
];

const keyOf = (row) => `${row.principal} ${row.session} ${row.id}`;

export function showWaits(page) {
  const found = element("p", { class: "lead", id: "found" }, "Loading …");
  const search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", value: page.parameters.get("q") ?? "" });
  const hot = new Table("Partitions and keys with the most waits", [
    { title: "Topic and partition, or key", cell: (row) => ({ text: nameText(row), href: nameLink(row) }) },
    { title: "Waits", number: true, cell: (row) => count(row[2]) },
    { title: "Share", cell: (row) => ({ text: `share of the most: ${count(row[2])}`, progress: row[2] / row[3] }) },
  ], "No operations are pending.", "hot");
  const longest = new Table("Registered first", operationColumns, "No operations are pending.");
  const soonest = new Table("Expiring next", operationColumns, "No operations are pending.");
  page.add(
    element("h1", {}, "Pending operations"),
    found,
    element("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, element("label", { for: "search" }, "Topic or key contains"), search),
    hot.element,
    element("div", { class: "columns" },
      element("div", {}, element("h2", {}, "Waiting longest"), longest.element),
      element("div", {}, element("h2", {}, "Expiring soon"), soonest.element)),
  );
  const ask = page.following("/page/live/waits", (picture) => {
    const most = Math.max(1, ...picture.hot.map((row) => row[2]));
    hot.show(picture.hot.map((row) => [...row, most]), (row) => `${row[0]} ${row[1]}`);
    longest.show(picture.longest, keyOf);
    soonest.show(picture.soonest, keyOf);
    const whose = picture.sees_all ? "" : " of yours";
    const cut = picture.names_are_cut ? "more than " : "";
    const matches = search.value ? `, ${count(picture.matching)} match` : "";
    setText(found, `${count(picture.operations)} operations${whose} wait on ${cut}${count(picture.names)} names${matches}.`);
  });
  const asked = () => ask(search.value ? { search: search.value } : {});
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", search.value ? `#/waits?${new URLSearchParams({ q: search.value })}` : "#/waits");
      asked();
    }, 200);
  });
  asked();
}
