// The current timing wheel: a ring for each level, a sector for each bucket.

import { drawn, element, setText, Table } from "./elements.js";
import { count, duration } from "./text.js";

const SIZE = 640;
const HUB = 62;

export function showWheel(page) {
  const picture = drawn("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": "The timing wheel; the table next to it shows the same numbers" });
  const levels = new Table("Levels of the wheel", [
    { title: "Ring", cell: (row) => `${row.level}${row.level === 1 ? ", innermost" : ""}` },
    { title: "Bucket width", number: true, cell: (row) => duration(row.tick_ms) },
    { title: "Turn", number: true, cell: (row) => duration(row.tick_ms * row.size) },
    { title: "Waiting", number: true, cell: (row) => `${row.cut.includes(true) ? "≥ " : ""}${count(row.total)}` },
    { title: "Fullest", number: true, cell: (row) => `${row.cut.includes(true) ? "≥ " : ""}${count(Math.max(...row.counts))}` },
  ], "");
  const scale = new Scale();
  const moved = element("strong", {}, "0");
  const expired = element("strong", {}, "0");
  page.add(
    element("h1", {}, "The wheel"),
    element("p", { class: "lead" }, "Each pending operation is in a bucket of this wheel until it is satisfied or its deadline passes."),
    element("div", { class: "wheel" }, picture, element("div", {},
      element("ul", { class: "legend" },
        element("li", {}, element("strong", {}, "Fill. "), "A new operation is added to the innermost ring that covers its deadline. Fuller buckets have stronger colours:", scale.element),
        element("li", {}, element("strong", {}, "Cascade. "), "When the hand of an outer ring reaches a bucket, its operations move to finer buckets of inner rings. The bucket flashes: ", element("span", { class: "swatch fell", "aria-hidden": "true" })),
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
      wheel = new Wheel(picture, now, scale);
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

}

// Colours by the logarithm of the count, from the power of ten below the emptiest bucket to the one above the fullest.
class Scale {
  constructor() {
    this.element = element("span", { class: "scale", id: "scale" });
    this.low = this.high = -1;
  }

  fit(counts) {
    const held = counts.filter((one) => one > 0);
    const low = held.length ? Math.floor(Math.log10(Math.min(...held))) : 0;
    const high = Math.max(low + 1, held.length ? Math.ceil(Math.log10(Math.max(...held))) : 0);
    if (low === this.low && high === this.high) return;
    this.low = low;
    this.high = high;
    const marks = Array.from({ length: high - low + 1 }, (_, place) => 10 ** (low + place));
    this.element.replaceChildren(...[0, ...marks].map((one) => {
      const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = this.colour(one);
      return element("span", {}, swatch, count(one));
    }));
  }

  colour(held) {
    if (!held) return "var(--empty)";
    const heat = (Math.log10(held) - this.low) / (this.high - this.low);
    return `color-mix(in oklab, var(--full) ${(heat * 100).toFixed(0)}%, var(--sparse))`;
  }
}

const shapeOf = (now) => `${now.rings.length} ${now.size} ${now.rings[0].tick_ms}`;

class Wheel {
  constructor(picture, now, scale) {
    this.shape = shapeOf(now);
    this.scale = scale;
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
      picture.append(...sectors, hand);
      this.rings.push({ sectors, hand, name, middle: (inner + outer) / 2, isStill: hand.hasAttribute("visibility"), before: [] });
    });
    picture.append(...this.rings.map((ring) => ring.name));
    this.total = drawn("text", { class: "hub", x: SIZE / 2, y: SIZE / 2 - 4 });
    picture.append(this.total, drawn("text", { class: "hub-note", x: SIZE / 2, y: SIZE / 2 + 20 }, "pending"));
  }

  show(now) {
    setText(this.total, count(now.pending));
    this.total.setAttribute("font-size", now.pending < 1e5 ? 24 : 17);
    this.scale.fit(now.rings.flatMap((ring) => ring.counts));
    now.rings.forEach((ring, level) => {
      const known = this.rings[level];
      const [sectors, at] = [ring.counts.length, Math.floor((now.now_ms / (ring.tick_ms * now.size)) * ring.counts.length)];
      ring.counts.forEach((held, place) => {
        const shape = known.sectors[place];
        const colour = this.scale.colour(held);
        if (shape.colour !== colour) shape.style.fill = shape.colour = colour;
        shape.classList.toggle("fell", level > 0 && !known.isStill && held === 0 && known.before[place] > 0 && (at - place) % sectors < at - known.at);
      });
      Object.assign(known, { before: ring.counts, at });
    });
    this.turn(now);
  }

  // With each picture, not in each frame: a turn of the hands paints the wheel again.
  turn(now) {
    now.rings.forEach((ring, level) => {
      const whole = ring.tick_ms * now.size;
      const part = (now.now_ms % whole) / whole;
      const { hand, name, middle, isStill } = this.rings[level];
      const degrees = (part * 360).toFixed(1);
      if (isStill || hand.degrees === degrees) return;
      hand.degrees = degrees;
      hand.setAttribute("transform", `rotate(${degrees} ${SIZE / 2} ${SIZE / 2})`);
      // The label of a hand stays upright next to it.
      name.setAttribute("x", (SIZE / 2 + middle * Math.sin(part * 2 * Math.PI)).toFixed(1));
      name.setAttribute("y", (SIZE / 2 - middle * Math.cos(part * 2 * Math.PI)).toFixed(1));
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
