// A table of pending operations, ranked and filtered by the daemon over everything that is pending.

import { element, Table } from "./elements.js";
import { Paces, verdict } from "./estimates.js";
import { count, duration, nameText, offset, operationLink, operationName, spaced, timeOf, visible } from "./text.js";

const KINDS = ["produce", "fetch", "delete_records", "signal", "composite"];

export const itemsText = (row) => {
  const more = row.item_count - row.items.length;
  return row.items.map((item) => nameText(item.name)).join(", ") + (more > 0 ? `, and ${count(more)} more` : "");
};

const progress = (row) => (row.awaited ? `${offset(row.awaited.reached_offset)} of ${offset(row.awaited.required_offset)}` : "–");

function estimate(row, paces) {
  const item = row.awaited;
  return item && item.name[1] >= 0 ? verdict(paces.of(row.kind, item).estimated_remaining_ms, row.left_ms) : "–";
}

// Columns of pending operations; those with an order need a table with `onSort`.
export const operationColumns = (paces) => [
  { title: "Operation", cell: (row) => ({ ...operationName(row), href: operationLink(row) }) },
  { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
  { title: "Waits on", cell: itemsText },
  { title: "Left", number: true, sort: "left", cell: (row) => ({ text: duration(row.left_ms), className: row.left_ms < 5_000 ? "warn" : "", title: `expires ${timeOf(row.expires_at_ms)}` }) },
  { title: "Waited", number: true, sort: "waited", first: "-waited", cell: (row) => ({ text: duration(row.waited_ms), title: `registered ${timeOf(row.registered_at_ms)}` }) },
  { title: "Progress", number: true, cell: progress },
  { title: "Estimate", cell: (row) => estimate(row, paces) },
  { title: "Reason", cell: (row) => visible(row.held_back_by) },
];

// Follows the pending operations of the view: those that its address selects (q, kind, order, names), and `fixed`.
// Returns the table, its filter, and select(changes), which changes the address and the selection.
export function followPending(page, caption, fixed, take) {
  const table = new Table(caption, operationColumns(new Paces()), "Nothing is pending here that you may see.", "operations");
  const chosen = (name) => page.parameters.get(name) ?? "";
  const kind = element("select", { id: "kind" }, element("option", { value: "" }, "all"), ...KINDS.map((one) => element("option", { value: one }, spaced(one))));
  kind.value = chosen("kind");
  const follow = page.following("/page/live/waits", (picture) => {
    table.setEmpty(chosen("kind") || chosen("q") ? "No pending operation matches." : "Nothing is pending here that you may see.");
    table.show(picture.rows, (row) => `${row.principal} ${row.session} ${row.id}`);
    take(picture);
  });
  const ask = () => {
    table.sorted(chosen("order") || "left");
    const asked = { search: chosen("q"), kind: chosen("kind"), order: chosen("order"), names: chosen("names"), ...fixed };
    follow(Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== "")));
  };
  const select = (changes) => {
    for (const [name, value] of Object.entries(changes)) {
      if (value) page.parameters.set(name, value);
      else page.parameters.delete(name);
    }
    history.replaceState(null, "", `${location.hash.split("?")[0]}${page.parameters.size ? "?" : ""}${page.parameters}`);
    ask();
  };
  kind.addEventListener("change", () => select({ kind: kind.value }));
  table.onSort = (order) => select({ order });
  const filter = element("p", { class: "search" }, element("label", { for: "kind" }, "Kind"), kind);
  ask();
  return { table, filter, select };
}
