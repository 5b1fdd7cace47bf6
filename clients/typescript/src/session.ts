// Waits by one session over Register, StreamResults and Acknowledge, in Node and in browsers: the session is resumed
// however often the connection breaks, each operation is registered once, and each result is delivered once. Written
// from the comments in proto/ alone.
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Client, type Transport } from "@connectrpc/connect";
import { OperationSchema, type Operation } from "./gen/purgatory/v1/operation_pb.js";
import { GoingAway_Reason, PurgatoryService } from "./gen/purgatory/v1/purgatory_service_pb.js";
import type { Result } from "./gen/purgatory/v1/result_pb.js";

const PAUSE_MS_MIN = 50;
const PAUSE_MS_MAX = 5_000;
const CALL_TIMEOUT_MS = 30_000;
const BATCH_MAX = 1_000;
/** Three heartbeat intervals of a daemon with default settings; StreamResults does not say what they are. */
const SILENCE_MS_MAX = 30_000;

/** As the comment at the head of purgatory_service.proto says. */
const RETRIED = new Set([
  Code.Unavailable, Code.ResourceExhausted, Code.Canceled, Code.DeadlineExceeded, Code.Aborted, Code.Internal,
  Code.Unknown,
]);

interface Wait {
  operation: Operation;
  resolve: (result: Result) => void;
  reject: (error: Error) => void;
}

/**
 * What it knows is in memory: a program that must survive its own crash stores the operations, and their results before
 * they are acknowledged.
 */
export class Session {
  private readonly client: Client<typeof PurgatoryService>;
  private readonly pending = new Map<bigint, Wait>();
  private readonly stopping = new AbortController();
  private readonly ended: Promise<void>;
  /** The highest operation id given out. */
  private issued = 0n;
  /** Operations up to this id are registered. */
  private registered = 0n;
  /** Of the results that were delivered. */
  private lastSequence = 0n;
  private acknowledged = 0n;
  private error: Error | undefined;
  private takenOver = false;
  private wake: () => void = () => {};

  /** Begins a session, or resumes it. The id must be unique among all clients, such as a UUID. */
  constructor(transport: Transport, readonly id: string) {
    this.client = createClient(PurgatoryService, transport);
    this.ended = this.run();
  }

  /** Registers an operation, whose id is set here. Rejects when the session ends before the operation. */
  wait(operation: MessageInitShape<typeof OperationSchema>): Promise<Result> {
    return new Promise((resolve, reject) => {
      if (this.error) return reject(this.error);
      const one = create(OperationSchema, operation);
      one.operationId = ++this.issued;
      this.pending.set(one.operationId, { operation: one, resolve, reject });
      this.wake();
    });
  }

  /**
   * Ends the session here and at the daemon, which cancels what is pending in it; if another client has opened it, it is
   * left to that one.
   */
  async close(): Promise<void> {
    this.end(new Error("the session is closed"));
    await this.ended;
    if (this.takenOver) return;
    try {
      await this.client.closeSession({ sessionId: this.id }, { timeoutMs: CALL_TIMEOUT_MS });
    } catch (error) {
      if (ConnectError.from(error).code !== Code.NotFound) throw error;
    }
  }

  private end(error: Error): void {
    this.error ??= error;
    for (const wait of this.pending.values()) wait.reject(this.error);
    this.pending.clear();
    this.stopping.abort();
  }

  /** Connects again until the session ends. */
  private async run(): Promise<void> {
    let ceiling = PAUSE_MS_MIN;
    while (!this.error) {
      const connection = new AbortController();
      const signal = AbortSignal.any([connection.signal, this.stopping.signal]);
      const heard = { since: false };
      try {
        await this.resume(signal);
        // Whichever ends first ends the other: nothing is registered before the session has been looked at again.
        const both = [this.read(signal, connection, heard), this.write(signal)];
        try {
          await Promise.race(both);
        } finally {
          connection.abort();
          await Promise.allSettled(both);
        }
      } catch (error) {
        const cause = ConnectError.from(error);
        if (!RETRIED.has(cause.code)) this.end(cause);
      }
      if (heard.since) ceiling = PAUSE_MS_MIN;
      if (!this.error) await pause(Math.random() * ceiling, this.stopping.signal);
      ceiling = Math.min(2 * ceiling, PAUSE_MS_MAX);
    }
  }

  /** Learns whether the session is still the one we know: if not, all that is pending is sent again. */
  private async resume(signal: AbortSignal): Promise<void> {
    // Results may have come before the answer that says that their operations are registered.
    if (this.registered === 0n && this.lastSequence === 0n) return;
    try {
      await this.acknowledge(signal);
    } catch (error) {
      const { code } = ConnectError.from(error);
      if (code !== Code.NotFound && code !== Code.InvalidArgument) throw error;
      this.registered = this.lastSequence = this.acknowledged = 0n;
    }
  }

  private async acknowledge(signal: AbortSignal): Promise<void> {
    const sequence = this.lastSequence;
    await this.client.acknowledge({ sessionId: this.id, sequence }, { signal, timeoutMs: CALL_TIMEOUT_MS });
    this.acknowledged = sequence;
  }

  /** Delivers results until the stream ends. A stream on which nothing is heard, not even heartbeats, is given up. */
  private async read(signal: AbortSignal, connection: AbortController, heard: { since: boolean }): Promise<void> {
    let silence = setTimeout(() => connection.abort(), SILENCE_MS_MAX);
    try {
      // last_sequence is left out, as its comment advises: the daemon sends what is not acknowledged.
      for await (const { message } of this.client.streamResults({ sessionId: this.id }, { signal })) {
        heard.since = true;
        clearTimeout(silence);
        silence = setTimeout(() => connection.abort(), SILENCE_MS_MAX);
        if (message.case === "results" && message.value.shape.case === "rows") {
          this.deliver(message.value.firstSequence, message.value.shape.value.results);
        } else if (message.case === "goingAway" && message.value.reason === GoingAway_Reason.TAKEN_OVER) {
          this.takenOver = true;
          this.end(new Error("another client opened the session"));
        } else if (message.case === "goingAway" && message.value.reason === GoingAway_Reason.SESSION_CLOSED) {
          this.end(new Error("the session was closed"));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  private deliver(sequence: bigint, results: Result[]): void {
    for (const result of results) {
      if (sequence > this.lastSequence) {
        this.lastSequence = sequence;
        this.pending.get(result.operationId)?.resolve(result);
        this.pending.delete(result.operationId);
      }
      sequence++;
    }
    this.wake();
  }

  /** Registers what is new and acknowledges what has come, one call at a time, until the connection ends. */
  private async write(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      const operations = this.unregistered();
      if (operations.length) {
        await this.register(operations, signal);
      } else if (this.acknowledged < this.lastSequence) {
        await this.acknowledge(signal);
      } else {
        await Promise.race([woken, aborted(signal)]);
      }
    }
  }

  /** The next batch, in order of ids. */
  private unregistered(): Operation[] {
    const operations: Operation[] = [];
    for (let id = this.registered + 1n; id <= this.issued && operations.length < BATCH_MAX; id++) {
      const wait = this.pending.get(id);
      if (wait) operations.push(wait.operation);
    }
    return operations;
  }

  /** Operations that are refused one by one get results too, so their refusals need not be looked at here. */
  private async register(operations: Operation[], signal: AbortSignal): Promise<void> {
    const batch = { shape: { case: "rows" as const, value: { operations } } };
    try {
      await this.client.register({ sessionId: this.id, batch }, { signal, timeoutMs: CALL_TIMEOUT_MS });
    } catch (error) {
      if (ConnectError.from(error).code !== Code.ResourceExhausted) throw error;
      if (this.acknowledged < this.lastSequence) await this.acknowledge(signal); // makes room
      return pause(1_000, signal);
    }
    this.registered = operations.at(-1)!.operationId;
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  await Promise.race([new Promise((resolve) => (timer = setTimeout(resolve, ms))), aborted(signal)]);
  clearTimeout(timer);
}
