// What to wait for, how a wait has ended, and why it was not accepted: short forms of the messages of the contract.
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import type { OperationSchema, TermSchema, TopicPartition } from "./gen/purgatory/v1/operation_pb.js";
import { Outcome, type Result } from "./gen/purgatory/v1/result_pb.js";

export { Code, Outcome };

/** Names of sources without partitions, which may contain dashes. */
const WHOLE = /^(pg|mysql|redis|poll)\//;
/** Kafka's REQUEST_TIMED_OUT: also of terms that were not needed. */
const NOT_IN_TIME = 7;

/** Any operation of the contract, or one made by `mark`, `signal`, `all`, `any` or `atLeast`. */
export type Operation = MessageInitShape<typeof OperationSchema>;
type TermInit = MessageInitShape<typeof TermSchema>;
type Condition = NonNullable<Operation["condition"]>;

/** One condition: see `mark` and `signal`. */
export interface Term {
  readonly term: TermInit;
  readonly condition: Condition;
}

/** Several conditions: see `all`, `any` and `atLeast`. */
export class Several {
  constructor(readonly requiredTerms: number, readonly terms: Term[], readonly failures: Term[] = []) {}

  /** Adds terms of which any one ends the wait as failed. */
  unless(...terms: Term[]): Several {
    return new Several(this.requiredTerms, this.terms, [...this.failures, ...terms]);
  }

  get condition(): Condition {
    const [terms, unless] = [this.terms, this.failures].map((all) => all.map((one) => one.term));
    return { case: "composite", value: { terms, unless, requiredTerms: this.requiredTerms } };
  }
}

/**
 * True when the high watermark of a partition such as "orders-3" has reached the offset, which is exclusive: wait for 42 to
 * see the record at 41. Throws RefusedError if that is not the name of a partition, or not an offset.
 */
export function mark(partition: string, offset: number | bigint): Term {
  const one = { topicPartition: partitionOf(partition), requiredOffset: offsetOf(offset) };
  return {
    term: { condition: { case: "mark", value: one } },
    condition: { case: "produce", value: { partitions: [one] } },
  };
}

/** True when the key has been signalled. Earlier signals count. */
export function signal(key: string): Term {
  return {
    term: { condition: { case: "signal", value: { key } } },
    condition: { case: "signal", value: { keys: [{ key }] } },
  };
}

export const all = (...terms: Term[]): Several => new Several(terms.length, terms);
export const any = (...terms: Term[]): Several => new Several(1, terms);
export const atLeast = (required: number, ...terms: Term[]): Several => new Several(required, terms);

export function partitionOf(name: string): { topic: string; partition: number } {
  if (WHOLE.test(name)) return { topic: name, partition: 0 };
  const [, topic, partition] = /^(.+)-(\d{1,10})$/.exec(name) ?? [];
  if (topic && Number(partition) < 2 ** 31) return { topic, partition: Number(partition) };
  const message = `"${name}" is not a partition; write the topic, a dash and the partition number, like "orders-3"`;
  throw new RefusedError(message, Code.InvalidArgument, "topic_partition");
}

/** A whole number of 64 bits: no other can be sent. */
export function offsetOf(offset: number | bigint): bigint {
  if (typeof offset === "bigint" ? BigInt.asIntN(64, offset) === offset : Number.isSafeInteger(offset)) return BigInt(offset);
  throw new RefusedError(`${offset} is not a whole number of 64 bits`, Code.InvalidArgument, "offset");
}

function nameOf({ topic, partition }: TopicPartition): string {
  return WHOLE.test(topic) && !partition ? topic : `${topic}-${partition}`;
}

/** A wait or an event was not accepted, and has changed nothing. */
export class RefusedError extends Error {
  /** `field`: as a path in the request; may be empty. */
  constructor(message: string, readonly code: Code, readonly field: string) {
    super(field ? `${field}: ${message}` : message);
    this.name = "RefusedError";
  }
}

export interface WaitResult extends Result {}

/** How a wait has ended, with all fields of the message. Running out of time is an outcome, not an error. */
export class WaitResult {
  constructor(result: Result) {
    Object.assign(this, result);
  }

  get satisfied(): boolean {
    return this.outcome === Outcome.SATISFIED;
  }

  /** The value of a signalled key, or the reason of its failure; empty if it has none. */
  value(key: string): Uint8Array {
    return this.partitions.find((one) => !one.topicPartition && one.key === key)?.signalValue ?? new Uint8Array();
  }

  /** The value of a key as text. */
  text(key: string): string {
    return new TextDecoder().decode(this.value(key));
  }

  /** One line: the outcome, the time, and what each mark and key had reached. */
  toString(): string {
    const items = this.partitions.map((one) => {
      const name = one.topicPartition ? nameOf(one.topicPartition) : one.key;
      const reached = one.reachedOffset < 0n ? "no mark reported" : `reached ${one.reachedOffset}`;
      const error = [0, NOT_IN_TIME].includes(one.errorCode) ? "" : `, error ${one.errorCode}`;
      const stale = one.staleMs === undefined ? "" : `, stale for ${one.staleMs} ms ${one.staleReason}`;
      const value = one.signalValue.length ? `, value ${new TextDecoder().decode(one.signalValue)}` : "";
      return `; ${name}: ${reached} of ${one.requiredOffset}${error}${stale}${value}`;
    });
    return `${String(Outcome[this.outcome] ?? this.outcome).toLowerCase()} after ${this.waitedMs} ms${items.join("")}`;
  }

  /** As Node's console prints it. */
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
