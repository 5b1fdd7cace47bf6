"""Measures the engine alone: does the cost of events follow what they complete, and how does it grow with what waits?

    make bench                       # compiled, if the engine was compiled
    make bench ARGS="--pending 20000"

Everything is a ratio of two measurements of this one run: the machine drifts, the ratio stays. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from purgatory.engine import COMPILED
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits

TIMEOUT_MS = 600_000
BATCH = 500


def fill(pending: int, keys: int) -> Engine:
    """An engine with `pending` produce waits spread over `keys` partitions, offsets rising from 1 on each."""
    engine = Engine(EngineLimits(pending_operations_max=pending + 1), 0)
    owner = engine.add_owner()
    partitions = [("bench", partition) for partition in range(keys)]
    for first in range(0, pending, BATCH):
        numbers = range(first, min(first + BATCH, pending))
        batch = OperationBatch(
            [number + 1 for number in numbers],
            partitions=partitions,
            item_indexes=[number % keys for number in numbers],
            offsets=[number // keys + 1 for number in numbers],
            timeouts_ms=[TIMEOUT_MS],
        )
        engine.register(owner, PRODUCE, batch, 0)
    return engine


def advance(engine: Engine, last_offset: int, step: int, events_per_call: int = BATCH) -> float:
    """Raises the high watermark of one partition by `step` an event up to `last_offset`; seconds of processor time."""
    partitions = [("bench", 0)]
    offsets = list(range(step, last_offset + 1, step))
    calls = [offsets[first : first + events_per_call] for first in range(0, len(offsets), events_per_call)]
    ended = 0
    started = time.process_time()
    for part in calls:
        batch = EventBatch([HIGH_WATERMARK] * len(part), partitions=partitions, offsets=part)
        ended += sum(engine.apply(batch, 0).ended)
        engine.take_completions()
    seconds = time.process_time() - started
    assert ended == last_offset, f"{ended} operations ended instead of {last_offset}"
    return seconds


def turn_over(pending_per_key: int, keys: int, operations: int) -> float:
    """Keeps `pending_per_key` waits pending on each key, completes and registers as many; nanoseconds an operation."""
    engine = fill(pending_per_key * keys, keys)
    owner = engine.add_owner()
    partitions = [("bench", partition) for partition in range(keys)]
    step = max(1, BATCH // keys)
    indexes = list(range(keys))
    next_id = 1
    offset = 0
    done = 0
    started = time.process_time()
    while done < operations:
        offset += step
        events = EventBatch([HIGH_WATERMARK] * keys, partitions=partitions, item_indexes=indexes, offsets=[offset])
        done += sum(engine.apply(events, 0).ended)
        engine.take_completions()
        count = keys * step
        batch = OperationBatch(
            list(range(next_id, next_id + count)),
            partitions=partitions,
            item_indexes=indexes * step,
            offsets=[pending_per_key + offset - step + 1 + number // keys for number in range(count)],
            timeouts_ms=[TIMEOUT_MS],
        )
        engine.register(owner, PRODUCE, batch, 0)
        next_id += count
    return (time.process_time() - started) / done * 1e9


def paired(first: Callable[[], float], second: Callable[[], float], runs: int) -> tuple[float, float, float]:
    """Medians of both and the median of their ratios, measured in turn: A B A B ..."""
    pairs = [(first(), second()) for _ in range(runs)]
    ratios = [one / other for one, other in pairs]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), statistics.median(ratios)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pending", type=int, default=100_000, help="operations pending on one partition")
    parser.add_argument("--runs", type=int, default=3, help="pairs of runs; the median is printed")
    arguments = parser.parse_args()
    pending = arguments.pending
    print(f"engine: {'compiled' if COMPILED else 'UNCOMPILED'}; medians of {arguments.runs} pairs of runs")

    step = max(1, pending // 1_000)
    single, batched, ratio = paired(
        lambda: advance(fill(pending, 1), pending, 1),
        lambda: advance(fill(pending, 1), pending // step * step, step),
        arguments.runs,
    )
    apart = advance(fill(pending, 1), pending, 1, events_per_call=1)
    print(f"\n{pending:,} waits pending on one partition, completed by a rising high watermark")
    for events, by, seconds in ((pending, 1, single), (pending // step, step, batched)):
        print(f"  {events:>9,} events of +{by}: {seconds * 1e3:8.0f} ms, {seconds / pending * 1e9:6.0f} ns a wait")
    print(f"  ratio {ratio:.2f} (cost follows completions, not watchers)")
    print(f"  {pending:,} calls with one event of +1 each: {apart * 1e3:.0f} ms, {apart / pending * 1e9:.0f} ns a wait")

    operations = 200_000 if COMPILED else 20_000
    print("\nregister and complete, nanoseconds an operation")
    base = turn_over(10, 100, operations)
    for per_key, keys in ((10, 100), (100, 100), (10_000, 1), (50_000, 1)):
        figure = turn_over(per_key, keys, operations)
        print(f"  {per_key:>6,} pending on each of {keys:>3} keys: {figure:6.0f} ns, {figure / base:4.2f} x the first")


if __name__ == "__main__":
    main()
