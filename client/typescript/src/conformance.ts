// The client as a program for the conformance test (docs/grpc.md).
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Outcome } from "./gen/purgatory/v1/result_pb.js";
import { Session, SessionEnded } from "./session.js";

let session: Session | undefined;
const cancels = new Map<string, AbortController>();

function open(address: string, pairs: string[]): Session {
  const options = Object.fromEntries(pairs.map((pair) => pair.split("=", 2)));
  const showToken: Interceptor = (next) => (request) => {
    if (options.token) request.header.set("authorization", `Bearer ${options.token}`);
    return next(request);
  };
  const transport = createGrpcTransport({
    baseUrl: `${options.ca ? "https" : "http"}://${address}`,
    nodeOptions: options.ca ? { ca: readFileSync(options.ca) } : {},
    interceptors: [showToken],
  });
  const giveUpAfterMs = options.give_up_after_ms && Number(options.give_up_after_ms);
  const openTimeoutMs = options.open_timeout_ms && Number(options.open_timeout_ms);
  return new Session(transport, crypto.randomUUID(), { giveUpAfterMs, openTimeoutMs });
}

async function wait(name: string, timeoutMs: string, topic: string, count: number, signal: AbortSignal): Promise<void> {
  const partitions = Array.from({ length: count }, (_, partition) => ({
    topicPartition: { topic, partition },
    requiredOffset: 1n,
  }));
  const operation = { timeoutMs: BigInt(timeoutMs), condition: { case: "produce" as const, value: { partitions } } };
  const ending = await session!.wait(operation, { signal }).then(
    ({ outcome, waitedMs }) => `${String(Outcome[outcome] ?? outcome).toLowerCase()} ${waitedMs}`,
    (error) => (signal.aborted ? "cancelled" : error instanceof SessionEnded ? error.reason : "refused"),
  );
  console.log(name, ending);
}

for await (const line of createInterface(process.stdin)) {
  const [command, name, ...words] = line.split(" ") as [string, string, ...string[]];
  if (command === "open") {
    session = open(name, words);
  } else if (command === "wait") {
    const cancel = new AbortController();
    cancels.set(name, cancel);
    void wait(name, words[0]!, words[1]!, Number(words[2]), cancel.signal);
  } else if (command === "cancel") {
    cancels.get(name)!.abort();
  } else if (command === "close") {
    await session!.close().catch(() => {}); // the daemon may be gone
    console.log("closed");
  }
}
