// Recently ended operations, recorded while there are viewers: expired and failed ones first, and some satisfied ones.

import { element, Table } from "./elements.js";
import { itemsText, KINDS } from "./pending.js";
import { duration, nameText, offset, operationLink, operationName, spaced, timeOf, unbroken } from "./text.js";

// The item that explains the outcome: one with an error of its own before those that were only late.
const worst = (row) => row.items.find((item) => ![0, 7].includes(item.error_code)) ?? row.items.find((item) => item.error_code) ?? row.items[0];

// The error as the command line prints it. Error 7 is that of an expired wait only.
const reason = (row) => {
  const item = worst(row);
  return item?.error && (item.error_code !== 7 || row.outcome === "expired") ? { text: item.error, className: "bad whole" } : "–";
};

const verdict = (row) => {
  const late = worst(row)?.estimated_remaining_ms ?? -1;
  return late >= 0 ? { text: `${duration(late)} too late`, title: "At the pace of its mark, it would have been reached this long after the end" } : "–";
};

const OUTCOMES = ["satisfied", "failed", "expired", "cancelled"];

export function showEnds(page) {
  const table = new Table("Newest first", [
    { title: "Operation", cell: (row) => ({ ...operationName(row), href: operationLink(row) }) },
    { title: "Outcome", cell: (row) => ({ text: row.outcome, className: row.outcome === "satisfied" ? "good" : "bad" }) },
    { title: "Reason", cell: reason },
    { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
    { title: "Waited on", cell: itemsText },
    { title: "Waited", number: true, cell: (row) => duration(row.waited_ms) },
    { title: "Late", number: true, cell: (row) => (row.lateness_ms > 0 ? duration(row.lateness_ms) : "–") },
    { title: "Progress", cell: (row) => {
      const item = worst(row);
      if (!item) return "–";
      const far = `${offset(item.reached_offset)} of ${offset(item.required_offset)}`;
      return row.items.length > 1 ? `${nameText(item.name)}: ${far}` : unbroken({ text: far });
    } },
    { title: "Estimate", cell: verdict },
    { title: "Ended at", number: true, cell: (row) => timeOf(row.ended_at_ms) },
  ], "Nothing has ended since a viewer connected.");
  const select = (name, values) => {
    const made = element("select", { id: name, onchange: () => ask() }, element("option", { value: "" }, "all"), ...values.map((one) => element("option", { value: one }, spaced(one))));
    made.value = page.parameters.get(name) ?? "";
    return made;
  };
  const outcome = select("outcome", OUTCOMES);
  const kind = select("kind", KINDS);
  const name = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false", value: page.parameters.get("search") ?? "", oninput: () => ask() });
  const chosen = () => Object.fromEntries([outcome, kind, name].filter((one) => one.value.trim()).map((one) => [one.id, one.value.trim()]));
  const follow = page.following("/page/live/ends", (picture) => {
    table.setEmpty(Object.keys(chosen()).length ? "None of those that have ended since a viewer connected matches." : "Nothing has ended since a viewer connected.");
    table.show(picture.ends, (row) => `${row.principal} ${row.session} ${row.id}`);
  });
  const ask = () => {
    const asked = new URLSearchParams(chosen());
    history.replaceState(null, "", `#/ends${asked.size ? "?" : ""}${asked}`);
    follow(chosen());
  };
  page.add(element("h1", {}, "Recently ended"),
    element("p", { class: "lead" }, "Operations that expire or fail while a page is open (at most fifty per second), and some of the satisfied ones. The archive contains all of them."),
    element("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() }, element("span", { class: "whole" }, element("label", { for: "outcome" }, "Outcome"), " ", outcome),
      element("span", { class: "whole" }, element("label", { for: "kind" }, "Kind"), " ", kind), element("label", { for: "search" }, "Name contains"), name, table.holding()),
    table.element);
  ask();
}
