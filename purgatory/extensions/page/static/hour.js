// The last hour: pending operations, rates and times, drawn with uPlot, which is loaded for this view only.

import { element, setText, Table } from "./elements.js";
import { count, duration, rate, timeOf } from "./text.js";

const HOUR_S = 3_600;
const SHOWN_S_MIN = 300;
const HEIGHT = 180;
const TICKS_S = [60, 300, 600, 900, 1_800];
const LOWEST_MS = 0.5;
const MARKS_MS = [1, 10, 100, 1_000, 10_000, 60_000, 600_000];
const PERCENTILES = (name) => [
  { name: `${name}_p50`, title: "p50", colour: "--good" },
  { name: `${name}_p95`, title: "p95", colour: "--warn" },
  { name: `${name}_p99`, title: "p99", colour: "--bad" },
];
const CHARTS = [
  { title: "Pending operations", text: count, series: [{ name: "pending", title: "pending", colour: "--accent" }] },
  { title: "Operations per second", text: rate, series: [
    { name: "registered", title: "registered", colour: "--accent" }, { name: "satisfied", title: "satisfied", colour: "--good" },
    { name: "expired", title: "expired", colour: "--warn" }, { name: "failed", title: "failed", colour: "--bad" },
    { name: "cancelled", title: "cancelled", colour: "--quiet" },
  ] },
  { title: "Events per second", text: rate, series: [{ name: "events", title: "events", colour: "--accent" }] },
  { title: "Time until satisfied, at most", text: duration, bound: "wait", series: PERCENTILES("wait") },
  { title: "Lateness of expired operations, at most", text: duration, bound: "late", series: PERCENTILES("late") },
];

export function showHour(page) {
  const lead = element("p", { class: "lead", id: "hour-lead" }, "Loading …");
  const places = CHARTS.map((chart) => element("div", { class: "plot" }));
  const figures = new Table("The same in figures", [
    { title: "Series", cell: (row) => row.title },
    { title: "Latest", number: true, cell: (row) => row.text(row.latest) },
    { title: "Lowest", number: true, cell: (row) => row.text(row.lowest) },
    { title: "Highest", number: true, cell: (row) => row.text(row.highest) },
    { title: "Highest at", number: true, cell: (row) => timeOf(row.highest_s * 1_000) },
  ], "Nothing has happened yet.");
  page.add(element("h1", {}, "Last hour"), lead,
    element("div", { class: "plots" }, ...CHARTS.map((chart, place) => element("figure", {}, element("figcaption", {}, chart.title), places[place]))),
    element("h2", {}, "Figures"), figures.element);
  let plots = [];
  let latest = null;
  const draw = () => {
    for (const plot of plots) plot.destroy();
    plots = latest ? CHARTS.map((chart, place) => plotted(chart, places[place], latest)) : [];
  };
  // Colours are read from the style sheet when a plot is made.
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal: page.signal });
  const resized = new ResizeObserver(() => plots.forEach((plot, place) => plot.setSize({ width: places[place].clientWidth, height: HEIGHT })));
  places.forEach((place) => resized.observe(place));
  page.signal.addEventListener("abort", () => { resized.disconnect(); plots.forEach((plot) => plot.destroy()); });
  page.follow("/page/live/hour", {}, async (picture) => {
    await loadPlot();
    if (page.signal.aborted) return;
    const points = picture.at.length;
    setText(lead, points ? `A point every ten seconds, since ${timeOf(picture.at[0] * 1_000)}. Points are recorded even when no page is open.` : "The first point appears ten seconds after the start of the daemon.");
    const isFirst = !latest;
    latest = picture;
    if (isFirst) draw();
    else plots.forEach((plot, place) => plot.setData(columns(CHARTS[place], picture)));
    figures.show(CHARTS.flatMap((chart) => chart.series.map((one) => summary(chart, one, picture))).filter(Boolean), (row) => row.title);
  });
}

let loading = null;

function loadPlot() {
  loading ??= new Promise((done, failed) => {
    document.head.append(element("link", { rel: "stylesheet", href: "/page/static/uPlot.min.css" }),
      element("script", { src: "/page/static/uPlot.iife.min.js", onload: done, onerror: (event) => { loading = null; failed(event); } }));
  });
  return loading;
}

const columns = (chart, picture) => [picture.at, ...chart.series.map((one) =>
  (chart.bound ? picture[one.name].map((ms) => (ms === null ? null : Math.max(LOWEST_MS, ms))) : picture[one.name]))];

function summary(chart, one, picture) {
  const values = picture[one.name].map((value, place) => [value, picture.at[place]]).filter(([value]) => value !== null);
  if (!values.length) return null;
  const [highest, highest_s] = values.reduce((most, next) => (next[0] > most[0] ? next : most));
  return {
    title: chart.series.length > 1 ? `${chart.title}: ${one.title}` : chart.title, text: chart.text,
    latest: values.at(-1)[0], lowest: values.reduce((least, [value]) => Math.min(least, value), highest), highest, highest_s,
  };
}

function plotted(chart, place, picture) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  // Without a cursor, the legend shows the latest point.
  const legend = (text) => (plot, value, series, index) => {
    const shown = index === null ? plot.data[series].at(-1) : value;
    return shown === null || shown === undefined ? "–" : text(shown);
  };
  return new window.uPlot({
    width: place.clientWidth,
    height: HEIGHT,
    cursor: { sync: { key: "hour" }, y: false, drag: { x: false, y: false } },
    legend: { live: true },
    scales: {
      x: { time: true, range: (_, first, last) => [Math.max(last - HOUR_S, Math.min(first, last - SHOWN_S_MIN)), last] },
      y: chart.bound
        ? { distr: 3, range: (_, low, high) => [LOWEST_MS, Math.min(Math.max(high ?? 0, 100) * 2, picture.bounds[chart.bound] * 2)] }
        : { range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] },
    },
    axes: [
      { ...axis, space: 45, incrs: TICKS_S, values: (_, splits) => splits.map((second) => timeOf(second * 1_000).slice(-8, -3)) },
      {
        ...axis, size: 72, values: (_, splits) => splits.map(chart.text), filter: (_, splits) => splits,
        ...(chart.bound && { splits: (_, __, low, high) => MARKS_MS.filter((mark) => mark >= low && mark <= high) }),
      },
    ],
    series: [
      { label: "time", value: legend((second) => timeOf(second * 1_000)) },
      ...chart.series.map((one) => ({ label: one.title, stroke: colour(one.colour), width: 1.5, value: legend(chart.text) })),
    ],
  }, columns(chart, picture), place);
}
