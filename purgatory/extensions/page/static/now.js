// Current figures: pending operations, rates, and times.

import { about } from "./app.js";
import { Curve, element, Figures, setText, Table } from "./elements.js";
import { firstWait } from "./first.js";
import { count, duration, kindName, rate, spaced, visible, within } from "./text.js";

const RATE_MS = 3_000;

export function showNow(page) {
  const pending = element("a", { class: "big", id: "pending", href: "#/waits" }, "–");
  const known = element("p", { class: "quiet" }, "operations pending");
  const curve = new Curve("Pending operations over the last two minutes");
  const first = firstWait();
  const figures = new Figures(["registered / s", "satisfied / s", "failed / s", "expired / s", "events / s", "lateness p99", "event loop lag p99", "sessions"]);
  figures.link(["registered / s", "#/waits", "Pending operations"], ["satisfied / s", "#/ends?outcome=satisfied", "Those that ended recently"],
    ["failed / s", "#/ends?outcome=failed", "Those that failed recently"], ["expired / s", "#/ends?outcome=expired", "Those that expired recently"],
    ["events / s", "#/partitions", "Partitions"], ["lateness p99", "#/hour", "The last hour"], ["event loop lag p99", "#/hour", "The last hour"], ["sessions", "#/sessions", "Sessions"]);
  const wait = (share) => (row) => within(row.times?.[share]);
  const perSecond = (name) => (row) => rate(row.rates[name]);
  const kinds = new Table("Rates per second, and waiting times of satisfied operations over the last five minutes", [
    { title: "Kind", cell: (row) => ({ text: spaced(row.kind), kind: row.kind }) },
    { title: "Pending", number: true, cell: (row) => count(row.pending) },
    { title: "Registered / s", number: true, cell: perSecond("registered") },
    { title: "Satisfied / s", number: true, cell: perSecond("satisfied") },
    { title: "Failed / s", number: true, cell: perSecond("failed") },
    { title: "Expired / s", number: true, cell: perSecond("expired") },
    { title: "Wait p50", number: true, cell: wait("p50") },
    { title: "p95", number: true, cell: wait("p95") },
    { title: "p99", number: true, cell: wait("p99") },
  ], "");
  const sources = new Table("Programs that report marks to this daemon", [
    { title: "Source", cell: (row) => visible(row.name) },
    { title: "State", cell: (row) => stateOf(row) },
    { title: "Topics", cell: (row) => (row.topicPrefixes ?? []).map((one) => visible(one) || "all").join(", ") },
    { title: "For", number: true, cell: (row) => duration(row.stateMs ?? 0) },
    { title: "Lag", number: true, cell: (row) => duration(row.lagMs ?? 0) },
    { title: "Stale for", number: true, cell: (row) => (row.staleMs === undefined ? "–" : duration(row.staleMs)) },
    { title: "Stale partitions", number: true, cell: (row) => count(row.stalePartitions ?? 0) },
  ], "No source is attached: marks are those that callers of Advance report.");
  const files = new Table("Since the daemon started", [
    { title: "Series", cell: (row) => spaced(row[0].replace("purgatory_", "")) },
    { title: "Value", number: true, cell: (row) => (Number.isInteger(row[1]) ? count(row[1]) : row[1].toPrecision(3)) },
  ], "There is no journal and no archive.");
  page.add(
    element("h1", {}, "Now"),
    element("div", { class: "headline" }, element("div", {}, pending, known), curve.element),
    first,
    figures.element,
    element("h2", {}, "By kind"), kinds.element,
    element("h2", {}, "Sources"), sources.element,
    element("h2", {}, "Journal and archive"), files.element,
  );

  const before = [];
  page.follow("/page/live/now", {}, (picture) => {
    about(picture);
    before.push(picture);
    while (before.length > 2 && picture.now_ms - before[1].now_ms > RATE_MS) before.shift();
    const [oldest] = before;
    const seconds = (picture.now_ms - oldest.now_ms) / 1_000;
    const since = (now, then) => (seconds ? (now - then) / seconds : Number.NaN);
    first.hidden = picture.pending > 0 || picture.kinds.some((kind) => kind.registered > 0);
    setText(pending, count(picture.pending));
    curve.add(picture.pending);
    const rows = picture.kinds.map((kind, place) => ({
      ...kind,
      times: picture.times[`${kind.kind} satisfied`],
      rates: Object.fromEntries(["registered", "satisfied", "failed", "expired"].map((name) => [name, since(kind[name], oldest.kinds[place][name])])),
    }));
    kinds.show(rows, (row) => row.kind);
    for (const name of ["registered", "satisfied", "failed", "expired"]) {
      const total = picture.kinds.reduce((sum, kind) => sum + kind[name], 0);
      figures.show(`${name} / s`, rate(rows.reduce((sum, row) => sum + row.rates[name], 0)), `${count(total)} in all`);
    }
    figures.show("events / s", rate(since(picture.events, oldest.events)), `${count(picture.events)} in all`);
    const late = picture.kinds.map((kind) => picture.times[`lateness ${kind.kind}`]).filter(Boolean);
    const latest = (share) => within(worst(late.map((one) => one[share])));
    figures.show("lateness p99", latest("p99"), late.length ? `p50 ${latest("p50")}` : "nothing expired recently");
    figures.show("event loop lag p99", within(picture.times.lag?.p99), `longest call ${duration(picture.longest_hold_ms)}`);
    figures.show("sessions", count(picture.sessions), `${count(picture.connected)} connected, ${count(picture.unacknowledged)} unacknowledged results`);
    setText(known, `operations pending; ${count(picture.partitions)} partitions and ${count(picture.keys)} keys known${picture.fleet && `; ${picture.fleet}`}`);
    files.show(Object.entries(picture.files), (row) => row[0]);
  });
  page.once("/page/live/hour", ({ at, pending: values }) => curve.begin(at.map((second, place) => [Date.now() / 1_000 - second, values[place]])));
  page.follow("/page/repeat/GetStatus", {}, (status) => sources.show(status.sources ?? [], (row) => `${row.principal} ${row.name}`));
}

// The times are upper bounds of buckets; -1 is above all bounds.
function worst(bounds) {
  return bounds.length ? (bounds.includes(-1) ? -1 : Math.max(...bounds)) : undefined;
}

function stateOf(row) {
  const state = kindName(row.state ?? "").replace(/^source_state_/, "");
  const text = row.reason ? `${state}: ${visible(row.reason)}` : state;
  return { text, className: { live: "good", behind: "warn", held: "warn", loading: "quiet" }[state] ?? "bad" };
}
