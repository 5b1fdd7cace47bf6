import { getEventListeners } from "node:events";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Session } from "./dist/session.js";

const warnings = [];
process.on("warning", ({ name }) => warnings.push(name));
const session = new Session(createGrpcTransport({ baseUrl: `http://${process.argv[1]}` }), crypto.randomUUID());
const user = new AbortController();
const wait = (timeoutMs) =>
  session.wait({ timeoutMs, condition: { case: "signal", value: { keys: [{ key: "no" }] } } }, { signal: user.signal });
for (let round = 0; round < 20; round++) await wait(1n);
const listeners = () => [user.signal, session.connection.signal].map((one) => getEventListeners(one, "abort").length);
const [ofUser, ofConnection] = listeners();
const waits = Array.from({ length: 100 }, () => wait(600_000n).catch((reason) => reason));
const [shared] = listeners();
user.abort("enough");
const reasons = new Set(await Promise.all(waits));
await session.close();
await new Promise((resolve) => setImmediate(resolve)); // warnings are emitted in the next tick
console.log(ofUser, ofConnection < 5, shared, [...reasons].join(), warnings.join());
process.exit(0);
