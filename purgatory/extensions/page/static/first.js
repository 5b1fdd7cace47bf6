// What to try on a daemon where nothing has been registered: a wait, and the report that ends it.

import { copying, element } from "./elements.js";

const orders = { topicPartition: { topic: "orders", partition: 3 } };

export function firstWait() {
  return element("section", { id: "first", hidden: true },
    element("h2", {}, "Nothing has been registered yet"),
    element("p", {}, "Wait until partition 3 of ", element("code", {}, "orders"), " has reached offset 42, for five minutes at most:"),
    command(call("Wait", { operation: { timeoutMs: 300_000, produce: { partitions: [{ ...orders, requiredOffset: 42 }] } } })),
    element("p", {}, "See it under ", element("a", { href: "#/waits" }, "Waits"), ". From another terminal, report that it has:"),
    command(call("Advance", { rows: { events: [{ ...orders, highWatermark: { offset: 42 } }] } })));
}

function call(name, request) {
  return `curl -H 'Content-Type: application/json' ${location.origin}/purgatory.v1.PurgatoryService/${name} -d '${JSON.stringify(request)}'`;
}

function command(text) {
  return element("div", { class: "command" }, element("pre", { tabindex: "0" }, element("code", {}, text)), copying(text));
}
