// The current timing wheel: a ring for each level, a sector for each bucket.

import { drawn, element, setText, Table } from "./elements.js";
import { count, duration } from "./text.js";

const SIZE = 640;
const HUB = 62;
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");

export function showWheel(page) {
  const picture = drawn("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": "The timing wheel; the table next to it shows the same numbers" });
  const levels = new Table("Levels of the wheel", [
    { title: "Ring", cell: (row) => `${row.level}${row.level === 1 ? ", innermost" : ""}` },
    { title: "Bucket width", number: true, cell: (row) => duration(row.tick_ms) },
    { title: "Turn", number: true, cell: (row) => duration(row.tick_ms * row.size) },
    { title: "Waiting", number: true, cell: (row) => `${row.cut.includes(true) ? "≥ " : ""}${count(row.total)}` },
    { title: "Fullest", number: true, cell: (row) => `${row.cut.includes(true) ? "≥ " : ""}${count(Math.max(...row.counts))}` },
  ], "");
  const moved = element("strong", {}, "0");
  const expired = element("strong", {}, "0");
  page.add(
    element("h1", {}, "The wheel"),
    element("p", { class: "lead" }, "Each pending operation is in a bucket of this wheel until it is satisfied or its deadline passes."),
    element("div", { class: "wheel" }, picture, element("div", {},
      element("ul", { class: "legend" },
        element("li", {}, element("strong", {}, "Fill. "), "A new operation is added to the innermost ring that covers its deadline. Fuller buckets have stronger colours."),
        element("li", {}, element("strong", {}, "Cascade. "), "When the hand of an outer ring reaches a bucket, its operations move to finer buckets of inner rings. The bucket flashes."),
        element("li", {}, element("strong", {}, "Fire. "), "A bucket of the innermost ring is one tick wide. Its operations expire when the tick is reached, never earlier. Satisfied operations are removed before that."),
      ),
      element("p", {}, moved, " a second fired or cascaded, ", expired, " a second expired."),
      levels.element)),
  );

  let wheel = null;
  let before = null;
  page.follow("/page/live/wheel", {}, (now) => {
    if (!wheel || wheel.shape !== shapeOf(now)) {
      picture.replaceChildren();
      wheel = new Wheel(picture, now);
    }
    wheel.show(now);
    if (before && now.now_ms > before.now_ms) {
      const seconds = (now.now_ms - before.now_ms) / 1_000;
      setText(moved, count((now.moved - before.moved) / seconds));
      setText(expired, count((now.expired - before.expired) / seconds));
    }
    if (!before || now.now_ms - before.now_ms > 900) before = now;
    levels.show(now.rings.map((ring, place) => ({ ...ring, level: place + 1, size: now.size, total: ring.counts.reduce((sum, one) => sum + one, 0) })), (row) => row.level);
  });

  const turn = () => {
    if (page.signal.aborted) return;
    if (wheel && !STILL.matches) wheel.turn();
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
}

const shapeOf = (now) => `${now.rings.length} ${now.size} ${now.rings[0].tick_ms}`;

class Wheel {
  constructor(picture, now) {
    this.shape = shapeOf(now);
    this.rings = [];
    const width = (SIZE / 2 - HUB - 6) / now.rings.length;
    now.rings.forEach((ring, level) => {
      const inner = HUB + level * width + 3;
      const outer = HUB + (level + 1) * width - 3;
      const sectors = ring.counts.map((_, place) => drawn("path", { class: "sector", d: sector(inner, outer, place / ring.counts.length, (place + 1) / ring.counts.length) }));
      const hand = drawn("line", { class: "hand", x1: SIZE / 2, x2: SIZE / 2, y1: SIZE / 2 - inner - 1, y2: SIZE / 2 - outer + 1 });
      // A hand that goes round in less than two seconds would only flicker.
      if (ring.tick_ms * now.size < 2_000) hand.setAttribute("visibility", "hidden");
      const name = drawn("text", { class: "ring-name", x: SIZE / 2, y: SIZE / 2 + (inner + outer) / 2 }, `${duration(ring.tick_ms * now.size)} a turn`);
      picture.append(...sectors, hand, name);
      this.rings.push({ sectors, hand, before: [] });
    });
    this.total = drawn("text", { class: "hub", x: SIZE / 2, y: SIZE / 2 - 4 });
    picture.append(this.total, drawn("text", { class: "hub-note", x: SIZE / 2, y: SIZE / 2 + 20 }, "pending"));
  }

  show(now) {
    this.now = now;
    this.at = performance.now();
    setText(this.total, count(now.pending));
    this.total.setAttribute("font-size", now.pending < 1e5 ? 24 : 17);
    const most = Math.max(1, ...now.rings.flatMap((ring) => ring.counts));
    now.rings.forEach((ring, level) => {
      const known = this.rings[level];
      ring.counts.forEach((held, place) => {
        const shape = known.sectors[place];
        const shade = held ? 0.28 + (0.72 * Math.log1p(held)) / Math.log1p(most) : 0.07;
        shape.setAttribute("fill-opacity", shade.toFixed(2));
        shape.classList.toggle("fell", level > 0 && held === 0 && known.before[place] > 0);
      });
      known.before = ring.counts;
    });
    this.turn();
  }

  turn() {
    const elapsed = STILL.matches ? 0 : performance.now() - this.at;
    this.now.rings.forEach((ring, level) => {
      const whole = ring.tick_ms * this.now.size;
      const part = ((this.now.now_ms + elapsed) % whole) / whole;
      this.rings[level].hand.setAttribute("transform", `rotate(${(part * 360).toFixed(2)} ${SIZE / 2} ${SIZE / 2})`);
    });
  }
}

function sector(inner, outer, from, to) {
  const point = (radius, part) => {
    const angle = part * 2 * Math.PI - Math.PI / 2;
    return `${(SIZE / 2 + radius * Math.cos(angle)).toFixed(2)} ${(SIZE / 2 + radius * Math.sin(angle)).toFixed(2)}`;
  };
  const large = to - from > 0.5 ? 1 : 0;
  return `M ${point(inner, from)} L ${point(outer, from)} A ${outer} ${outer} 0 ${large} 1 ${point(outer, to)} L ${point(inner, to)} A ${inner} ${inner} 0 ${large} 0 ${point(inner, from)} Z`;
}
