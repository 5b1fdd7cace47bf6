// Builds elements from data. Text is always inserted as text; nothing here parses HTML.

import { count, duration } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function setText(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

// A table that is updated in place, which keeps focus and selection.
// columns: [{title, number, sort, first, cell: (row) => text, or {text, title, href, className, kind, progress, button}}]
// sort: the order of a sortable column, ascending; "-" and it: descending. first: the order of the first click. The daemon
// sorts, not the table: onSort(order) has to show other rows.
export class Table {
  constructor(caption, columns, empty, id) {
    this.columns = columns;
    this.empty = empty;
    this.rows = new Map();
    this.body = element("tbody");
    this.heads = columns.map((one) => element("th", { scope: "col", class: one.number ? "number" : undefined },
      one.sort ? element("button", { type: "button", class: "sort", onclick: () => this.toggle(one) }, one.title) : one.title));
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    this.caption = table.caption;
    this.element = element("div", { id, class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    this.none = element("tr", {}, element("td", { class: "empty", colspan: String(columns.length) }, empty));
    this.body.append(this.none);
  }

  setEmpty(text) {
    setText(this.none.cells[0], text);
  }

  // Marks the column of an order.
  sorted(order) {
    this.order = order;
    this.columns.forEach(({ sort }, place) => {
      const way = sort && { [sort]: "ascending", [`-${sort}`]: "descending" }[order];
      if (way) this.heads[place].setAttribute("aria-sort", way);
      else this.heads[place].removeAttribute("aria-sort");
    });
  }

  toggle({ sort, first = sort }) {
    const other = first === sort ? `-${sort}` : sort;
    this.onSort(this.order === first ? other : first);
  }

  show(rows, keyOf) {
    const wanted = new Map(rows.map((row, place) => [keyOf ? keyOf(row) : place, row]));
    for (const [key, line] of this.rows) {
      if (!wanted.has(key)) { line.remove(); this.rows.delete(key); }
    }
    this.none.hidden = wanted.size > 0;
    let before = this.none;
    for (const [key, row] of wanted) {
      let line = this.rows.get(key);
      if (!line) {
        line = element("tr", {}, ...this.columns.map((one, place) =>
          element(place ? "td" : "th", { class: one.number ? "number" : "text", scope: place ? undefined : "row", "data-title": one.title })));
        this.rows.set(key, line);
      }
      if (before.nextSibling !== line) before.after(line);
      this.columns.forEach((one, place) => fillCell(line.cells[place], one.cell(row), row));
      before = line;
    }
  }
}

function fillCell(cell, value, row) {
  const shown = value !== null && typeof value === "object" ? value : { text: value };
  const name = shown.href ? "a" : shown.button ? "button" : shown.progress !== undefined ? "progress" : "span";
  let inside = cell.firstElementChild;
  if (!inside || inside.localName !== name) {
    inside = element(name, name === "progress" ? { max: "1" } : {});
    cell.replaceChildren(inside);
    if (name === "button") inside.addEventListener("click", () => inside.act());
  }
  if (name === "progress") {
    inside.value = shown.progress;
    inside.setAttribute("aria-label", shown.text);
    return;
  }
  if (name === "button") inside.act = () => shown.button(row);
  setText(inside, String(shown.text));
  const className = shown.kind ? "kind" : shown.className ?? "";
  if (inside.className !== className) inside.className = className;
  if (shown.kind && inside.dataset.kind !== shown.kind) inside.dataset.kind = shown.kind;
  if (inside.title !== (shown.title ?? "")) inside.title = shown.title ?? "";
  if (shown.href && inside.getAttribute("href") !== shown.href) inside.setAttribute("href", shown.href);
}

// A row of named values.
export class Figures {
  constructor(names) {
    this.places = new Map(names.map((name) => [name, [element("span"), element("small")]]));
    this.element = element("dl", { class: names.length > 4 ? "figures eight" : "figures" },
      ...[...this.places].map(([name, [value, note]]) => element("div", { class: "figure" }, element("dt", {}, name), element("dd", {}, value, note))));
  }

  show(name, text, note = "") {
    const [value, small] = this.places.get(name);
    setText(value, text);
    setText(small, note);
  }
}

// A curve of the last values, starting at 0 or at the minimum.
export class Curve {
  constructor(label, { seconds = 120, fromZero = true } = {}) {
    this.points = [];
    this.seconds = seconds;
    this.fromZero = fromZero;
    this.area = drawn("path", { class: "area" });
    this.curve = drawn("path", { class: "curve" });
    this.notes = [element("span"), element("span"), element("span", {}, "now")];
    this.element = element("figure", { class: "trend" },
      drawn("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, this.area, this.curve),
      element("figcaption", {}, ...this.notes));
  }

  add(value) {
    const now = performance.now() / 1_000;
    if (now - (this.points.at(-1)?.[0] ?? -1) < 1) return;  // drawing costs more than all the rest
    this.points.push([now, value]);
    while (this.points[0][0] < now - this.seconds) this.points.shift();
    const values = this.points.map(([, one]) => one);
    const low = this.fromZero ? 0 : Math.min(...values);
    const high = Math.max(...values, low + 1);
    // Until the history is full, the values so far take the whole width.
    const shown = Math.min(this.seconds, Math.max(15, now - this.points[0][0]));
    const path = this.points
      .map(([at, one]) => `${(600 - ((now - at) / shown) * 600).toFixed(1)} ${(98 - ((one - low) / (high - low)) * 94).toFixed(1)}`)
      .join(" L ");
    setText(this.notes[0], `${duration(shown * 1_000)} ago`);
    setText(this.notes[1], `${count(Math.min(...values))} to ${count(Math.max(...values))}`);
    const first = 600 - ((now - this.points[0][0]) / shown) * 600;
    this.curve.setAttribute("d", `M ${path}`);
    this.area.setAttribute("d", `M ${first.toFixed(1)} 100 L ${path} L 600 100 Z`);
  }
}
