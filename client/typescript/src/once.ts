// Waits until partition 0 of orders has reached offset 42, and meanwhile reports that it has: node dist/once.js ADDRESS
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { PurgatoryService } from "./gen/purgatory/v1/purgatory_service_pb.js";
import { Outcome } from "./gen/purgatory/v1/result_pb.js";

const transport = createGrpcTransport({ baseUrl: `http://${process.argv[2]}`, defaultTimeoutMs: 60_000 });
const service = createClient(PurgatoryService, transport);
const orders = { topic: "orders", partition: 0 };

const wait = service.wait({
  operation: {
    timeoutMs: 30_000n,
    condition: { case: "produce", value: { partitions: [{ topicPartition: orders, requiredOffset: 42n }] } },
  },
});
await service.advance({
  shape: {
    case: "rows",
    value: { events: [{ topicPartition: orders, event: { case: "highWatermark", value: { offset: 42n } } }] },
  },
});
// A wait that has expired does not throw: its outcome says so.
const { result } = await wait;
console.log(`${Outcome[result!.outcome]} ${result!.partitions[0]!.reachedOffset}`);
