"""The engine under uneven load: several partitions per operation, a few hot keys among many, and falling offsets.
Driven as in bench/subjects/engine_runs.py; bench/peers/kafka has the same workloads.

    python -m bench.subjects.engine_patterns        # then lines such as: run zipf keys=1000 pending=20 seconds=1
"""

from bisect import bisect_right
from itertools import accumulate, count
from typing import Final

from bench.measure.worker import Numbers, serve
from bench.subjects.engine_runs import BATCH, EXPIRED_PER_CALL, TIMEOUT_MS, Filled, now_ms, repeated
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits

ZIPF_EXPONENT: Final = 1.1
ZIPF_BATCH: Final = 500
ZIPF_BATCHES: Final = 120
"""Batches of keys that are drawn in advance and used repeatedly."""


def five_partitions(partitions: int, pending: int, seconds: float) -> Numbers:
    """`pending` operations on five of `partitions` each: a mark per partition, then as many are registered again."""
    row = partitions // 5
    engine = Engine(EngineLimits(), now_ms())
    owner = engine.add_owner()
    names = [("bench", partition) for partition in range(partitions)]
    places, types = list(range(partitions)), [HIGH_WATERMARK] * partitions
    first, mark = 1, 0

    def register(offset: int, at_ms: int) -> None:
        nonlocal first
        batch = OperationBatch(
            list(range(first, first + row)),
            partitions=names,
            item_indexes=places,
            item_counts=[5],
            offsets=[offset] * partitions,
            timeouts_ms=[TIMEOUT_MS],
        )
        first += row
        assert engine.perform(owner, Register(PRODUCE, batch), at_ms).accepted == row

    def turn() -> int:
        nonlocal mark
        mark += 1
        at_ms = now_ms()
        events = EventBatch(types, partitions=names, item_indexes=places, offsets=[mark] * partitions)
        engine.perform(None, Apply(events), at_ms)
        ended = sum(len(completions) for completions in engine.take_completions())
        register(pending // row + mark, at_ms)
        engine.perform(None, PassTime(EXPIRED_PER_CALL), at_ms)
        return ended

    for offset in range(1, pending // row + 1):
        register(offset, now_ms())
    numbers = repeated(turn, seconds)
    assert engine.pending == pending, f"{engine.pending} are pending"
    return numbers


def zipf(keys: int, pending: int, seconds: float) -> Numbers:
    """`pending` waits on each of `keys`, whose marks move by Zipf's law, and one is registered for each mark.

    A batch may contain a key more often than `pending`: its waits all end, and of those registered afterwards, those
    for offsets that it has passed end at once.
    """
    filled = Filled(keys, pending)
    engine, partitions = filled.engine, filled.partitions
    drawn = draw(keys)
    marks_of = [count(1) for _ in range(keys)]
    types = [HIGH_WATERMARK] * ZIPF_BATCH
    turns = 0

    def turn() -> int:
        nonlocal turns
        indexes = drawn[turns % ZIPF_BATCHES]
        turns += 1
        marks = list(map(next, map(marks_of.__getitem__, indexes)))
        at_ms = now_ms()
        engine.perform(
            None, Apply(EventBatch(types, partitions=partitions, item_indexes=indexes, offsets=marks)), at_ms
        )
        filled.register(partitions, indexes, [mark + pending for mark in marks], TIMEOUT_MS, at_ms)
        ended = filled.take()
        engine.perform(None, PassTime(EXPIRED_PER_CALL), at_ms)
        return ended

    numbers = repeated(turn, seconds)
    assert engine.pending == keys * pending, f"{engine.pending} are pending"
    return numbers


def draw(keys: int) -> list[list[int]]:
    """Batches of keys by Zipf's law, the same in every language."""
    shares = list(accumulate((rank + 1.0) ** -ZIPF_EXPONENT for rank in range(keys)))
    batches: list[list[int]] = []
    state = 1
    for _ in range(ZIPF_BATCHES):
        batch: list[int] = []
        while len(batch) < ZIPF_BATCH:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            batch.append(min(bisect_right(shares, (state >> 11) / 2**53 * shares[-1]), keys - 1))
        batches.append(batch)
    return batches


def falling(pending: int, step: int, seconds: float) -> Numbers:
    """`pending` waits on one key, registered in falling order of their offsets, then ended by marks that rise by
    `step`.
    """
    filled = Filled(1, 0)
    engine, partitions = filled.engine, filled.partitions
    per_call = BATCH // step
    types, indexes = [HIGH_WATERMARK] * per_call, [0] * BATCH
    base = 0

    def turn() -> int:
        nonlocal base
        at_ms = now_ms()
        for highest in range(base + pending, base, -BATCH):
            filled.register(partitions, indexes, list(range(highest, highest - BATCH, -1)), TIMEOUT_MS, at_ms)
        ended = 0
        for reached in range(base, base + pending, BATCH):
            marks = list(range(reached + step, reached + BATCH + 1, step))
            engine.perform(None, Apply(EventBatch(types, partitions=partitions, offsets=marks)), at_ms)
            ended += filled.take()
        base += pending
        engine.perform(None, PassTime(EXPIRED_PER_CALL), now_ms())
        return ended

    numbers = repeated(turn, seconds)
    assert engine.pending == 0, f"{engine.pending} are pending"
    return numbers


if __name__ == "__main__":
    serve({"five-partitions": five_partitions, "zipf": zipf, "falling": falling})
