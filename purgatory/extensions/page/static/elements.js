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

  // Keeps the rows as they are while the pointer moves over them, and while the returned button is pressed: a row that
  // moves away cannot be read or clicked. A table that appears under a resting pointer is not held.
  holding() {
    const note = this.caption.appendChild(element("span", { class: "held", hidden: true }, " · held while the pointer is here"));
    const button = element("button", { type: "button", "aria-pressed": "false" }, "Pause");
    let isPaused = false;
    const hold = (isUnder) => {
      this.isHeld = isPaused || isUnder;
      note.hidden = !isUnder || isPaused;
      if (!this.isHeld && this.latest) this.show(...this.latest);
    };
    this.body.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") hold(true); });
    this.body.addEventListener("pointerleave", () => hold(false));
    button.addEventListener("click", () => {
      isPaused = !isPaused;
      button.setAttribute("aria-pressed", String(isPaused));
      setText(button, isPaused ? "Go on" : "Pause");
      hold(false);
    });
    return button;
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
    this.latest = [rows, keyOf];
    if (this.isHeld) return;
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

// A title with what can be done about its subject beside it.
export const titled = (title, ...actions) => element("div", { class: "titled" }, title, ...actions);

// A button that copies a text. Browsers have a clipboard only over TLS and on this machine.
export function copying(text, label = "Copy") {
  const button = element("button", { type: "button", onclick: () => navigator.clipboard.writeText(text).then(() => setText(button, "Copied")) }, label);
  button.hidden = !navigator.clipboard;
  return button;
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
    setText(value.firstElementChild ?? value, text);
    setText(small, note);
  }

  // Makes the values links. links: [name, address, what the link shows].
  link(...links) {
    for (const [name, href, label] of links) this.places.get(name)[0].append(element("a", { href, title: label }, "–"));
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
    this.goals = drawn("path", { class: "goals" });
    this.notes = [element("span"), element("span"), element("span", {}, "now")];
    this.element = element("figure", { class: "trend" },
      drawn("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img", "aria-label": label }, this.area, this.curve, this.goals),
      element("figcaption", {}, ...this.notes));
  }

  // Begins with values that are known already: [seconds ago, value], the oldest first.
  begin(points) {
    const now = performance.now() / 1_000;
    const first = this.points[0]?.[0] ?? now;
    this.points.unshift(...points.map(([ago, value]) => [now - ago, value]).filter(([at]) => at < first && at > now - this.seconds));
  }

  // goals: values to be reached, drawn as lines; the scale makes room for the first of them.
  add(value, goals = []) {
    const now = performance.now() / 1_000;
    if (now - (this.points.at(-1)?.[0] ?? -1) < 1) return;  // drawing costs more than all the rest
    this.points.push([now, value]);
    while (this.points[0][0] < now - this.seconds) this.points.shift();
    const values = this.points.map(([, one]) => one);
    const low = this.fromZero ? 0 : Math.min(...values);
    const high = Math.max(...values, low + 1, ...goals.slice(0, 1));
    const height = (one) => (98 - ((one - low) / (high - low)) * 94).toFixed(1);
    // Until the history is full, the values so far take the whole width.
    const shown = Math.min(this.seconds, Math.max(15, now - this.points[0][0]));
    const path = this.points
      .map(([at, one]) => `${(600 - ((now - at) / shown) * 600).toFixed(1)} ${height(one)}`)
      .join(" L ");
    setText(this.notes[0], `${duration(shown * 1_000)} ago`);
    setText(this.notes[1], `${count(Math.min(...values))} to ${count(Math.max(...values))}${goals.length ? `; dashed: required, first ${count(goals[0])}` : ""}`);
    const first = 600 - ((now - this.points[0][0]) / shown) * 600;
    this.curve.setAttribute("d", `M ${path}`);
    this.area.setAttribute("d", `M ${first.toFixed(1)} 100 L ${path} L 600 100 Z`);
    this.goals.setAttribute("d", goals.filter((one) => one <= high).map((one) => `M 0 ${height(one)} H 600`).join(" "));
  }
}
