// Waits for the high watermark of a partition to reach each of the offsets 1 to COUNT, and prints a line for each result:
//   node dist/resume.js ADDRESS[,ADDRESS] TOPIC COUNT
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Outcome } from "./gen/purgatory/v1/result_pb.js";
import { Session } from "./session.js";

const [addresses, topic, count] = process.argv.slice(2);
if (!addresses || !topic || !count) throw new Error("usage: resume ADDRESS[,ADDRESS] TOPIC COUNT");
// Pings notice a daemon that hangs.
const pings = { pingIntervalMs: 1_000, pingTimeoutMs: 1_000 };
const transports = addresses.split(",").map((one) => createGrpcTransport({ baseUrl: `http://${one}`, ...pings }));
const session = new Session(transports, `node-${crypto.randomUUID()}`);
const waits: Promise<void>[] = [];
for (let offset = 1; offset <= Number(count); offset++) {
  const requiredOffset = BigInt(offset);
  const partitions = [{ topicPartition: { topic }, requiredOffset }];
  const wait = session.wait({ timeoutMs: 600_000n, condition: { case: "produce", value: { partitions } } });
  waits.push(
    wait.then((result) => {
      process.stdout.write(`${result.operationId} ${Outcome[result.outcome]} ${result.partitions[0]?.requiredOffset}\n`);
    }),
  );
}
await Promise.all(waits);
await session.close();
process.exit(0);
