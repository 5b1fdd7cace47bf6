// A table of pending operations, ranked and filtered by the daemon over everything that is pending.

import { element, Table } from "./elements.js";
import { Paces, verdict } from "./estimates.js";
import { count, duration, nameText, offset, operationLink, operationName, rate, spaced, timeOf, visible } from "./text.js";

export const KINDS = ["produce", "fetch", "delete_records", "signal", "composite"];

export const itemsText = (row) => {
  const more = row.item_count - row.items.length;
  return row.items.map((item) => nameText(item.name)).join(", ") + (more > 0 ? `, and ${count(more)} more` : "");
};

const progress = (row) => (row.awaited ? `${offset(row.awaited.reached_offset)} of ${offset(row.awaited.required_offset)}` : "–");

function estimate(row, paces) {
  const item = row.awaited;
  return item && item.name[1] >= 0 ? verdict(paces.of(row.kind, item).estimated_remaining_ms, row.left_ms) : "–";
}

// Why an operation waits, with the name of the mark, how far it is, and how fast. The daemon names keys itself.
export function reason(row, paces) {
  const item = row.awaited;
  const said = visible(row.held_back_by);
  if (!item || item.name[1] < 0 || item.reached_offset < 0 || said.includes(nameText(item.name))) return said || "–";
  const { pace_per_second: pace, estimated_remaining_ms: ms } = paces.of(row.kind, item);
  const short = item.required_offset - item.reached_offset;
  const far = short > 0 ? `${nameText(item.name)} is ${count(short)} short` : nameText(item.name);
  const moving = ms >= 0 ? `, moving ${rate(pace)} / s: in ${duration(ms)}` : "";
  return said.startsWith("the mark is at") ? `${far}${moving}` : `${far}${moving}; ${said}`;
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
  { title: "Reason", cell: (row) => reason(row, paces) },
];

// Follows the pending operations of the view: those that its address selects (q, kind, order, names), and `fixed`.
// Returns the table, its filter, and select(changes), which changes the address and the selection.
export function followPending(page, caption, fixed, take) {
  const paces = new Paces();
  const table = new Table(caption, operationColumns(paces), "Nothing is pending here that you may see.", "operations");
  const chosen = (name) => page.parameters.get(name) ?? "";
  const kind = element("select", { id: "kind" }, element("option", { value: "" }, "all"), ...KINDS.map((one) => element("option", { value: one }, spaced(one))));
  kind.value = chosen("kind");
  const late = element("input", { type: "checkbox", id: "late", checked: chosen("late") !== "" });
  const follow = page.following("/page/live/waits", (picture) => {
    const rows = late.checked ? picture.rows.filter((row) => estimate(row, paces).className === "bad") : picture.rows;
    table.setEmpty(rows.length < picture.rows.length ? "None of the operations that would be shown here will be too late at the present pace."
      : chosen("kind") || chosen("q") ? "No pending operation matches." : "Nothing is pending here that you may see.");
    table.show(rows, (row) => `${row.principal} ${row.session} ${row.id}`);
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
  late.addEventListener("change", () => select({ late: late.checked ? "1" : "" }));
  const filter = element("p", { class: "search" }, element("label", { for: "kind" }, "Kind"), kind,
    element("span", { class: "whole" }, late, " ", element("label", { for: "late" }, "Only those that will be too late")), table.holding());
  ask();
  return { table, filter, select };
}
