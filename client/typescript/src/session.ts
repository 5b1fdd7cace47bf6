// Waits by one session over Register, StreamResults and Acknowledge, in Node and in browsers: the session is resumed
// however often the connection breaks, each operation is registered once, and each result is delivered once. The rules
// are in docs/grpc.md, "How to write a client".
import { create, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type CallOptions, type Client, type Transport } from "@connectrpc/connect";
import type { EventSchema } from "./gen/purgatory/v1/event_pb.js";
import { OperationSchema, type Operation } from "./gen/purgatory/v1/operation_pb.js";
import {
  GoingAway_Reason, PurgatoryService, type AdvanceReceipt, type SessionOpened,
} from "./gen/purgatory/v1/purgatory_service_pb.js";
import type { Result } from "./gen/purgatory/v1/result_pb.js";
import { offsetOf, partitionOf, RefusedError, WaitResult, type Operation as OperationInit } from "./waits.js";

export * from "./waits.js";

const PAUSE_MS_MIN = 50;
const PAUSE_MS_MAX = 5_000;
const REFUSED_PAUSE_MS = 1_000;
const CALL_TIMEOUT_MS = 30_000;
const SILENT_INTERVALS = 3;
const BATCH_MAX = 1_000;
/** Of a daemon that states no limit. */
const MESSAGE_BYTES_MAX = 4 << 20;
/** Of a message without its operations and the session's id, at most. */
const ENVELOPE_BYTES = 256;

/**
 * As the comment at the head of purgatory_service.proto says of streams. NotFound: the session is gone, and the next
 * stream begins a new one.
 */
const RETRIED = new Set([
  Code.Unavailable, Code.ResourceExhausted, Code.Canceled, Code.DeadlineExceeded, Code.Aborted, Code.Internal,
  Code.Unknown, Code.NotFound,
]);

export interface SessionOptions {
  /** The session ends after this long without a connection. Default 30,000; Infinity: never. */
  giveUpAfterMs?: number;
  /** How long the daemon may take to open the session before the next attempt. Default 10,000. */
  openTimeoutMs?: number;
}

export interface WaitOptions {
  /** How long to wait; 0 asks for an answer at once. Default: that of the operation, or else of the daemon. */
  timeoutMs?: number;
  /** Aborting it cancels the wait at the daemon. */
  signal?: AbortSignal;
}

/** The session has ended, for a reason other than a status of the daemon (ConnectError). */
export class SessionEnded extends Error {
  constructor(readonly reason: "taken_over" | "closed" | "unreachable", message: string) {
    super(message);
    this.name = "SessionEnded";
  }
}

interface Wait {
  operation: Operation;
  submittedMs: number;
  timeoutMs: number | undefined;
  isSent: boolean;
  /** How long it had waited when it was sent again; 0: it was sent once. */
  beforeMs: number;
  resolve: (result: WaitResult) => void;
  reject: (error: unknown) => void;
}

class AbortListener {
  readonly ids = new Set<bigint>();
  private readonly listener = () => this.ids.forEach(this.cancel);

  constructor(private readonly signal: AbortSignal, private readonly cancel: (id: bigint) => void) {
    signal.addEventListener("abort", this.listener);
  }

  end(): void {
    this.signal.removeEventListener("abort", this.listener);
  }
}

/**
 * Its state is in memory: a program that must survive its own crash stores the operations, and their results before they
 * are acknowledged.
 */
export class Session {
  private readonly clients: Client<typeof PurgatoryService>[];
  /** Of the last connection. */
  private client: Client<typeof PurgatoryService>;
  private readonly giveUpAfterMs: number;
  private readonly openTimeoutMs: number;
  private readonly pending = new Map<bigint, Wait>();
  /** Signals of pending waits. */
  private readonly signals = new Map<AbortSignal, AbortListener>();
  /** Cancels that the daemon has not answered. */
  private readonly cancelling = new Set<bigint>();
  private readonly ended: Promise<void>;
  /** From the last connection. */
  private opened: SessionOpened | undefined;
  /** The highest operation id given out. */
  private issued = 0n;
  /** Operations up to this id are registered. */
  private registered = 0n;
  /** Operations in the next batch: fewer after a refusal, more after each success. */
  private room = BATCH_MAX;
  /** Fewer after a batch was refused for its size. */
  private roomMax = BATCH_MAX;
  /** After a refusal nothing is registered for a while. */
  private held = false;
  /** Of the results that were delivered. */
  private lastSequence = 0n;
  private acknowledged = 0n;
  /** When there was last a connection, or no need for one. */
  private reachedMs = performance.now();
  private error: Error | undefined;
  private connection = new AbortController();
  /** There may be something to send. */
  private wake: () => void = () => {};
  private endPause: () => void = () => {};
  /** Calls that wait for the session to be open, since only then it is known which daemon serves. */
  private reporting = 0;
  private open: () => void = () => {};
  private readonly isOpen = new Promise<void>((resolve) => (this.open = resolve));

  /**
   * Begins a session. The id must be unique among all clients, such as a UUID. Where one of several daemons serves, give it a
   * transport to each: they are tried in turn, for each connection.
   */
  constructor(transport: Transport | Transport[], readonly id: string, options: SessionOptions = {}) {
    this.clients = [transport].flat().map((one) => createClient(PurgatoryService, one));
    if (!this.clients.length) throw new TypeError("a session needs a transport");
    this.client = this.clients[0]!;
    this.giveUpAfterMs = options.giveUpAfterMs ?? 30_000;
    this.openTimeoutMs = options.openTimeoutMs ?? 10_000;
    this.ended = this.run();
  }

  /**
   * Registers an operation, whose id is set here. Rejects with a RefusedError if the daemon refuses it, or if it is too large
   * for a message; with the signal's reason; and when the session ends, with SessionEnded or a ConnectError of the daemon.
   */
  async wait(operation: OperationInit, { timeoutMs: asked, signal }: WaitOptions = {}): Promise<WaitResult> {
    if (this.error || signal?.aborted) throw this.error ?? signal?.reason;
    const one = create(OperationSchema, operation);
    if (asked !== undefined) one.timeoutMs = BigInt(Math.ceil(asked)); // 0 would ask for an answer at once
    const id = (one.operationId = ++this.issued);
    const submittedMs = performance.now();
    if (!this.isNeeded) this.reachedMs = submittedMs;
    const timeoutMs = one.timeoutMs === undefined ? undefined : Number(one.timeoutMs);
    const stopListening = signal && this.cancelOn(signal, id);
    return new Promise<WaitResult>((resolve, reject) => {
      this.pending.set(id, { operation: one, submittedMs, timeoutMs, isSent: false, beforeMs: 0, resolve, reject });
      this.wake();
    }).finally(stopListening);
  }

  /** The results of many waits, in the order in which they end. Leaving the loop cancels the others. */
  async *waitEach(operations: Iterable<OperationInit>, options: WaitOptions = {}): AsyncGenerator<WaitResult> {
    const left = new AbortController();
    const leave = () => left.abort(options.signal?.reason);
    options.signal?.addEventListener("abort", leave);
    const ended: Promise<WaitResult>[] = [];
    let wake: (count: number) => void = () => {};
    if (options.signal?.aborted) leave();
    const waits = Array.from(operations, (one) => this.wait(one, { ...options, signal: left.signal }));
    for (const one of waits) {
      const end = () => wake(ended.push(one));
      one.then(end, end);
    }
    try {
      for (let count = 0; count < waits.length; count++) {
        if (!ended.length) await new Promise<number>((resolve) => (wake = resolve));
        yield await ended.shift()!;
      }
    } finally {
      options.signal?.removeEventListener("abort", leave);
      left.abort();
    }
  }

  /** Reports that the high watermark of a partition has reached an offset. The receipt counts the waits that it ended. */
  async advance(partition: string, offset: number | bigint): Promise<AdvanceReceipt> {
    const event = { case: "highWatermark" as const, value: { offset: offsetOf(offset) } };
    return this.report({ topicPartition: partitionOf(partition), event });
  }

  /** Signals a key, with the value that its waits get. The first value of a key is kept. */
  async signal(key: string, value: string | Uint8Array = "", failed = false): Promise<AdvanceReceipt> {
    const bytes = typeof value === "string" ? new TextEncoder().encode(value) : new Uint8Array(value);
    return this.report({ event: { case: "keySignalled", value: { key, value: bytes, failed } } });
  }

  /** Signals that what a key stands for has failed, and why: its waits fail. */
  fail = (key: string, reason: string | Uint8Array = ""): Promise<AdvanceReceipt> => this.signal(key, reason, true);

  /**
   * Sends events of any kind, in order. They are never sent twice: if the connection breaks, they may or may not have been
   * applied. Rejects with a RefusedError if the daemon refuses one of them; the others are applied.
   */
  async report(...events: MessageInitShape<typeof EventSchema>[]): Promise<AdvanceReceipt> {
    if (!this.isNeeded) this.reachedMs = performance.now();
    this.reporting++;
    await this.isOpen;
    this.reporting--;
    if (this.error) throw this.error;
    const { receipt } = await this.client.advance({ shape: { case: "rows", value: { events } } });
    const [refusal] = receipt!.refusals;
    if (refusal) throw new RefusedError(refusal.message, refusal.code, refusal.field);
    return receipt!;
  }

  private get isNeeded(): boolean {
    return this.pending.size + this.reporting > 0;
  }

  /** One listener for all waits that share a signal: Node warns of more than ten. Returns what ends it for this wait. */
  private cancelOn(signal: AbortSignal, id: bigint): () => void {
    const shared = this.signals.get(signal) ?? new AbortListener(signal, (one) => this.cancel(one, signal.reason));
    this.signals.set(signal, shared);
    shared.ids.add(id);
    return () => {
      shared.ids.delete(id);
      if (shared.ids.size) return;
      shared.end();
      this.signals.delete(signal);
    };
  }

  private cancel(id: bigint, reason: unknown): void {
    const wait = this.pending.get(id);
    if (!wait) return;
    this.pending.delete(id);
    this.cancelling.add(id);
    this.wake();
    wait.reject(reason);
  }

  /**
   * Ends the session here and at the daemon, which cancels its operations. A session that another client has taken over is
   * left alone.
   */
  async close(): Promise<void> {
    this.end(new SessionEnded("closed", "the session is closed"));
    await this.ended;
    if (this.error instanceof SessionEnded && this.error.reason === "taken_over") return;
    let failure: unknown;
    for (const client of new Set([this.client, ...this.clients])) {
      try {
        await client.closeSession({ sessionId: this.id }, { timeoutMs: CALL_TIMEOUT_MS });
        return;
      } catch (error) {
        if (ConnectError.from(error).code === Code.NotFound) return;
        failure ??= error;
      }
    }
    throw failure;
  }

  private end(error: Error): void {
    this.error ??= error;
    for (const wait of this.pending.values()) wait.reject(this.error);
    this.pending.clear();
    this.open();
    this.connection.abort();
    this.endPause();
  }

  /** Connects again until the session ends. */
  private async run(): Promise<void> {
    const patienceMs = Math.min(this.openTimeoutMs, this.giveUpAfterMs);
    let ceiling = PAUSE_MS_MIN;
    for (let attempt = 0; !this.error; attempt++) {
      this.client = this.clients[attempt % this.clients.length]!;
      const before = this.opened;
      let cause: ConnectError | undefined;
      try {
        await this.connect(patienceMs);
      } catch (error) {
        cause = ConnectError.from(error);
      }
      if (this.opened !== before) ceiling = PAUSE_MS_MIN;
      if (this.opened !== before || !this.isNeeded) this.reachedMs = performance.now();
      if (cause && !RETRIED.has(cause.code)) this.end(cause);
      if (performance.now() - this.reachedMs >= this.giveUpAfterMs) {
        this.end(new SessionEnded("unreachable", `no connection for ${this.giveUpAfterMs} ms: ${cause?.message}`));
      }
      if (!this.error) await this.pause(Math.random() * ceiling);
      // Longer pauses once every daemon has been tried.
      if (this.client === this.clients.at(-1)) ceiling = Math.min(2 * ceiling, PAUSE_MS_MAX, patienceMs);
    }
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** One connection, from its opening to its end. A stream on which nothing arrives, not even heartbeats, is aborted. */
  private async connect(patienceMs: number): Promise<void> {
    const connection = (this.connection = new AbortController());
    const { signal } = connection;
    let silence = setTimeout(() => connection.abort(), patienceMs);
    let writing: Promise<void> | undefined;
    let failure: unknown;
    try {
      const request = { sessionId: this.id, lastSequence: this.lastSequence, incarnation: this.opened?.incarnation };
      for await (const { message } of this.client.streamResults(request, { signal })) {
        clearTimeout(silence);
        if (message.case === "opened") {
          this.resume(message.value);
          writing = this.write(signal).catch((error: unknown) => {
            failure = error;
            connection.abort();
          });
        } else if (message.case === "results" && message.value.shape.case === "rows") {
          this.deliver(message.value.firstSequence, message.value.shape.value.results);
        } else if (message.case === "extended") {
          this.extend(message.value.operationIds, Number(message.value.timeoutMs));
        } else if (message.case === "goingAway" && message.value.reason === GoingAway_Reason.TAKEN_OVER) {
          this.end(new SessionEnded("taken_over", "another client opened the session"));
        } else if (message.case === "goingAway" && message.value.reason === GoingAway_Reason.SESSION_CLOSED) {
          this.end(new SessionEnded("closed", "the session was closed"));
        }
        const silenceMs = SILENT_INTERVALS * Number(this.opened?.heartbeatIntervalMs);
        silence = setTimeout(() => connection.abort(), silenceMs);
      }
    } catch (error) {
      failure ??= error;
    }
    clearTimeout(silence);
    connection.abort();
    this.wake();
    await writing; // before the next connection: nothing is registered until that has opened the session
    if (failure) throw failure;
  }

  /**
   * What the daemon does not know is sent again. A new session knows nothing, and numbers its results from 1. If it knows
   * operations all the same, they are another client's.
   */
  private resume(opened: SessionOpened): void {
    this.registered = opened.highestOperationId;
    if (!opened.resumed || this.opened?.incarnation !== opened.incarnation) {
      if (this.registered > 0n) {
        throw new ConnectError(`another client uses the session ${this.id}: choose a unique id`, Code.AlreadyExists);
      }
      this.lastSequence = 0n;
      this.cancelling.clear();
    }
    this.acknowledged = this.lastSequence;
    this.held = false;
    this.opened = opened;
    this.open();
  }

  private deliver(sequence: bigint, results: Result[]): void {
    for (const result of results) {
      if (sequence > this.lastSequence) {
        this.lastSequence = sequence;
        const wait = this.pending.get(result.operationId);
        result.waitedMs += BigInt(wait?.beforeMs ?? 0);
        if (result.refusal) this.refuse(result, result.refusal.code, result.refusal.message, result.refusal.field);
        wait?.resolve(new WaitResult(result));
        this.pending.delete(result.operationId);
      }
      sequence++;
    }
    this.wake();
  }

  /** Notes more time that any caller gave to operations: it is sent if they are registered again. */
  private extend(ids: bigint[], timeoutMs: number): void {
    for (const id of ids) {
      const wait = this.pending.get(id);
      if (!wait || (this.leftMs(wait) ?? 0) >= timeoutMs) continue;
      wait.timeoutMs = Math.ceil(performance.now() - wait.submittedMs) + timeoutMs;
    }
  }

  /** Sends what there is to send, one call at a time, until the connection ends. */
  private async write(signal: AbortSignal): Promise<void> {
    const call: CallOptions = { signal, timeoutMs: CALL_TIMEOUT_MS };
    const session = { sessionId: this.id, incarnation: this.opened?.incarnation };
    while (!signal.aborted) {
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      const operationIds = [...this.cancelling].slice(0, BATCH_MAX);
      const sequence = this.lastSequence;
      if (this.acknowledged < sequence) {
        await this.client.acknowledge({ ...session, sequence }, call);
        this.acknowledged = sequence;
      } else if (operationIds.length) {
        await this.client.cancel({ sessionId: this.id, operationIds }, call);
        for (const id of operationIds) this.cancelling.delete(id);
      } else {
        const operations = this.nextBatch();
        if (operations.length) await this.register(operations, session, call);
        else await woken;
      }
    }
  }

  /** As many operations as fit a message, in the order of ids. Timeouts count from the submission. */
  private nextBatch(): Operation[] {
    const operations: Operation[] = [];
    const bytesMax = (Number(this.opened?.messageBytesMax) || MESSAGE_BYTES_MAX) - ENVELOPE_BYTES - 4 * this.id.length;
    const room = this.held ? 0 : Math.min(this.room, this.opened?.operationsPerBatchMax || BATCH_MAX);
    let bytes = 0;
    for (let id = this.registered + 1n; id <= this.issued && operations.length < room; id++) {
      const wait = this.pending.get(id);
      if (!wait) continue;
      const leftMs = this.leftMs(wait);
      if (leftMs !== undefined && (wait.timeoutMs ?? 1) > 0) wait.operation.timeoutMs = BigInt(Math.max(1, leftMs));
      let size: number;
      try {
        size = toBinary(OperationSchema, wait.operation).length + 8; // its tag and length
      } catch (error) {
        this.refuse(wait.operation, Code.InvalidArgument, `it cannot be sent: ${error}`); // the others must not wait for it
        continue;
      }
      if (size > bytesMax) {
        const message = `an operation of ${size} bytes; the daemon accepts ${bytesMax}: split it`;
        this.refuse(wait.operation, Code.ResourceExhausted, message);
        continue;
      }
      bytes += size;
      if (bytes > bytesMax) break;
      if (wait.isSent) wait.beforeMs = Math.floor(performance.now() - wait.submittedMs);
      wait.isSent = true;
      operations.push(wait.operation);
    }
    return operations;
  }

  /** Undefined: the operation has no timeout of its own, and the daemon's default is not known. */
  private leftMs(wait: Wait): number | undefined {
    const timeoutMs = wait.timeoutMs ?? (Number(this.opened?.timeoutMsDefault) || undefined);
    return timeoutMs && Math.floor(timeoutMs - (performance.now() - wait.submittedMs));
  }

  /** Operations that are refused one by one get results too, so only a batch refused as a whole matters here. */
  private async register(operations: Operation[], session: object, call: CallOptions): Promise<void> {
    const batch = { shape: { case: "rows" as const, value: { operations } } };
    try {
      await this.client.register({ ...session, batch }, call);
      this.registered = operations.at(-1)!.operationId;
      this.room = Math.min(2 * this.room, this.roomMax);
    } catch (thrown) {
      const { code, details, rawMessage } = ConnectError.from(thrown);
      const exhausted = code === Code.ResourceExhausted;
      // The daemon's own refusals have details. One without is the transport's: the message was too large, or the
      // connection broke.
      const again = (exhausted || code === Code.Unavailable) && details.length > 0;
      if (!again && !exhausted && RETRIED.has(code)) throw thrown;
      if (exhausted) this.room = Math.max(1, Math.floor(operations.length / 2));
      if (exhausted && !again) this.roomMax = this.room;
      if (again) this.hold();
      for (const operation of operations) {
        const wait = this.pending.get(operation.operationId);
        const late = again && wait && (this.leftMs(wait) ?? 0) <= 0;
        const tooLarge = exhausted && !again && operations.length === 1;
        if (late || tooLarge || !RETRIED.has(code)) this.refuse(operation, code, rawMessage);
      }
    }
  }

  private hold(): void {
    this.held = true;
    setTimeout(() => {
      this.held = false;
      this.wake();
    }, REFUSED_PAUSE_MS);
  }

  private refuse({ operationId }: { operationId: bigint }, code: Code, message: string, field = ""): void {
    this.pending.get(operationId)?.reject(new RefusedError(message, code, field));
    this.pending.delete(operationId);
  }
}
