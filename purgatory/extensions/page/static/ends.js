// Recently ended operations, recorded while there are viewers: expired and failed ones first, and some satisfied ones.

import { element, Table } from "./elements.js";
import { clockTime, duration, nameText, offset, sessionText, spaced } from "./text.js";
import { itemsText, operationLink } from "./waits.js";

const worst = (row) => row.items.find((item) => item.error_code !== 0) ?? row.items[0];

export function showEnds(page) {
  let wall_ms = Number.NaN;
  const table = new Table("Newest first", [
    { title: "Operation", cell: (row) => ({ text: row.session ? `${sessionText(row.session)} / ${row.id}` : `call ${row.id}`, href: operationLink(row) }) },
    { title: "Outcome", cell: (row) => ({ text: row.outcome, className: row.outcome === "satisfied" ? "good" : "bad" }) },
    { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
    { title: "Waited on", cell: itemsText },
    { title: "Waited", number: true, cell: (row) => duration(row.waited_ms) },
    { title: "Late", number: true, cell: (row) => (row.lateness_ms > 0 ? duration(row.lateness_ms) : "–") },
    { title: "Progress", cell: (row) => {
      const item = worst(row);
      if (!item) return "–";
      const far = `${offset(item.reached_offset)} of ${offset(item.required_offset)}`;
      return row.items.length > 1 ? `${nameText(item.name)}: ${far}` : far;
    } },
    { title: "Remaining estimate", number: true, cell: (row) => { const eta = worst(row)?.estimated_remaining_ms ?? -1; return eta >= 0 ? duration(eta) : "–"; } },
    { title: "Ended", number: true, cell: (row) => clockTime(row.ended_ms + wall_ms) },
  ], "Nothing has ended since a viewer connected.");
  page.add(element("h1", {}, "Recently ended"),
    element("p", { class: "lead" }, "Operations that expire or fail while a page is open (at most fifty per second), and some of the satisfied ones. The archive contains all of them."),
    table.element);
  page.follow("/page/live/ends", {}, (picture) => {
    // The difference to the daemon's own clock varies by a millisecond or two; only a clock that was set matters.
    if (!(Math.abs(picture.wall_ms - wall_ms) < 1_000)) wall_ms = picture.wall_ms;
    table.show(picture.ends, (row) => `${row.principal} ${row.session} ${row.id}`);
  });
}
