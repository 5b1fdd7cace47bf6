"""The subject of the engine benchmarks: the engine alone, driven by plain Python from columns to completions.

    python -m bench.subjects.engine_runs        # then lines such as: run expire-all count=100000 keys=100

The caller's cost is included: batches are built and completions taken inside the measured time.
"""

import gc
import time
from collections.abc import Callable
from typing import Final

from bench.measure.worker import Numbers, measured, resident_bytes, serve
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName
from purgatory.engine.calls import Apply, CancelName, PassTime, Register
from purgatory.engine.codes import FETCH, HIGH_WATERMARK, LEADER_APPEND, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner

TIMEOUT_MS: Final = 600_000
BATCH: Final = 500
EXPIRED_PER_CALL: Final = 2_000
MIB: Final = 1 << 20
WATCH_BYTES: Final = 16
"""Bytes for an entry of a watch list (purgatory/engine/waiting/watches.py)."""


class Filled:
    """An engine with `pending` produce waits on each of `keys` partitions, with offsets increasing from 1 on each."""

    def __init__(self, keys: int, pending: int, timeout_ms: int = TIMEOUT_MS) -> None:
        self.start_ms: Final = now_ms()
        self.engine: Final = Engine(EngineLimits(pending_operations_max=2 * keys * pending + 10_000), self.start_ms)
        self.owner: Final[Owner] = self.engine.add_owner()
        self.partitions: Final[list[PartitionName]] = [("bench", partition) for partition in range(keys)]
        self.next_id = 1
        total = keys * pending
        for first in range(0, total, BATCH):
            numbers = range(first, min(first + BATCH, total))
            places = [number % keys for number in numbers]
            near = sorted(set(places))
            narrow = {place: at for at, place in enumerate(near)}
            self.register(
                [self.partitions[place] for place in near],
                [narrow[place] for place in places],
                [number // keys + 1 for number in numbers],
                timeout_ms,
                self.start_ms,
            )

    def register(
        self, partitions: list[PartitionName], indexes: list[int], offsets: list[int], timeout_ms: int, at_ms: int
    ) -> None:
        first = self.next_id
        self.next_id = first + len(indexes)
        batch = OperationBatch(
            list(range(first, self.next_id)),
            partitions=partitions,
            item_indexes=indexes,
            offsets=offsets,
            timeouts_ms=[timeout_ms],
        )
        receipt = self.engine.perform(self.owner, Register(PRODUCE, batch), at_ms)
        assert receipt.accepted == len(indexes), f"{len(receipt.refusals)} refused"

    def take(self) -> int:
        """The number of operations that have ended since the last call."""
        return sum(len(completions) for completions in self.engine.take_completions())


def now_ms() -> int:
    """The daemon's clock, in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def repeated(turn: Callable[[], int], seconds: float) -> Numbers:
    """Call `turn` for a number of seconds; each call returns the number of operations it ended."""
    done, taken_s = 0, 0.0
    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    while taken_s < seconds:
        done += turn()
        taken_s = time.perf_counter() - started
    gc.unfreeze()
    return measured(taken_s, done)


def each_repeated(values: range, times: int) -> list[int]:
    """Repeat each value `times` times, at the least cost to the caller."""
    if times == 1:
        return list(values)
    column: list[int] = []
    for value in values:
        column += [value] * times
    return column


def register_complete(keys: int, hot: int, pending: int, step: int, events: int, seconds: float) -> Numbers:
    """Keep `pending` waits on each of `keys`: `events` marks, raised by `step`, on the `hot` keys, then as many
    waits again.
    """
    filled = Filled(keys, pending)
    engine, partitions = filled.engine, filled.partitions[:hot]
    rounds_each = events // hot
    assert events == rounds_each * hot, f"{events} events do not go round {hot} keys"
    types = [HIGH_WATERMARK] * events
    event_indexes = list(range(hot)) * rounds_each
    indexes = list(range(hot)) * (rounds_each * step)
    mark = 0

    def turn() -> int:
        nonlocal mark
        reached = mark + step * rounds_each
        marks = each_repeated(range(mark + step, reached + 1, step), hot)
        offsets = each_repeated(range(pending + mark + 1, pending + reached + 1), hot)
        mark = reached
        at_ms = now_ms()
        engine.perform(
            None, Apply(EventBatch(types, partitions=partitions, item_indexes=event_indexes, offsets=marks)), at_ms
        )
        ended = filled.take()
        filled.register(partitions, indexes, offsets, TIMEOUT_MS, at_ms)
        engine.perform(None, PassTime(EXPIRED_PER_CALL), at_ms)
        return ended

    numbers = repeated(turn, seconds)
    assert engine.pending == keys * pending, f"{engine.pending} are pending"
    return numbers


def expire_all(count: int, keys: int) -> Numbers:
    """`count` waits on `keys` with one deadline: the time to end all of them, in slices, once they are due."""
    filled = Filled(keys, count // keys, 1_000)
    engine = filled.engine
    gc.collect()
    due_ms = filled.start_ms + 1_000
    ended = 0
    started = time.perf_counter()
    while 0 <= engine.next_expiration_ms() <= due_ms:
        engine.perform(None, PassTime(EXPIRED_PER_CALL), due_ms)
        ended += filled.take()
    seconds = time.perf_counter() - started
    assert ended == count // keys * keys, f"{ended} of {count} expired"
    return measured(seconds, ended)


def cancel_all(count: int, keys: int) -> Numbers:
    """`count` waits on `keys`: the time to cancel all of them, key by key."""
    filled = Filled(keys, count // keys)
    gc.collect()
    ended = 0
    started = time.perf_counter()
    for partition in filled.partitions:
        filled.engine.perform(None, CancelName(partition), filled.start_ms)
        ended += filled.take()
    return measured(time.perf_counter() - started, ended)


def fetch_evaluations(fetches: int, appends: int) -> Numbers:
    """Count the evaluations per fetch: `fetches` long polls of 1 MiB on one partition, fed by `appends` of equal
    size.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    partitions = [("bench", 0)]
    log = EventBatch([LEADER_APPEND], partitions=partitions, offsets=[0], byte_positions=[0], segment_base_offsets=[0])
    engine.perform(None, Apply(log), 0)
    for first in range(0, fetches, BATCH):
        ids = list(range(first + 1, min(first + BATCH, fetches) + 1))
        batch = OperationBatch(
            ids,
            partitions=partitions,
            offsets=[0],
            min_bytes=[MIB],
            partition_max_bytes=[MIB],
            timeouts_ms=[TIMEOUT_MS],
        )
        assert engine.perform(owner, Register(FETCH, batch), 0).accepted == len(ids)
    ended = 0
    started = time.perf_counter()
    for append in range(1, appends + 1):
        position = append * (MIB // appends)
        events = EventBatch(
            [LEADER_APPEND, HIGH_WATERMARK],
            partitions=partitions,
            offsets=[append, append],
            byte_positions=[position, -1],
        )
        engine.perform(None, Apply(events), append)
        ended += sum(len(completions) for completions in engine.take_completions())
    seconds = time.perf_counter() - started
    assert ended == fetches, f"{ended} of {fetches} fetches ended"
    return {**measured(seconds, ended), "evaluations": engine.inspection.counts(FETCH).evaluations / fetches}


def memory(count: int, keys: int) -> Numbers:
    """The memory of a pending wait in this process. Run it once, in a fresh process."""
    Filled(1, 1)
    gc.collect()
    before = resident_bytes()
    filled = Filled(keys, count // keys)
    gc.collect()
    pending = filled.engine.pending
    return {"bytes": (resident_bytes() - before) / pending, "operations": float(pending)}


def leftovers(count: int) -> Numbers:
    """What remains under one key of `count` fetches that were watched on two and ended through the other, one by one.

    "bytes" is what the stored entries take; everything else of an ended operation is used again by the next one.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    partitions = [("bench", 0), ("idle", 0)]
    first = EventBatch(
        [LEADER_APPEND] * 2,
        partitions=partitions,
        item_indexes=[0, 1],
        offsets=[0, 0],
        byte_positions=[0, 0],
        segment_base_offsets=[0, 0],
    )
    engine.perform(None, Apply(first), 0)
    ended = 0
    for end in range(count):
        batch = OperationBatch(
            [end + 1],
            partitions=partitions,
            item_indexes=[0, 1],
            item_counts=[2],
            offsets=[end, 0],
            min_bytes=[1],
            partition_max_bytes=[MIB, MIB],
            timeouts_ms=[TIMEOUT_MS],
        )
        assert engine.perform(owner, Register(FETCH, batch), 0).accepted == 1
        appended = EventBatch(
            [LEADER_APPEND, HIGH_WATERMARK],
            partitions=partitions[:1],
            offsets=[end + 1] * 2,
            byte_positions=[end + 1, -1],
        )
        engine.perform(None, Apply(appended), 0)
        ended += sum(len(completions) for completions in engine.take_completions())
    assert ended == count, f"{ended} of {count} fetches ended"
    idle = engine._partitions.get(partitions[1])  # noqa: SLF001 - no view counts entries of ended operations
    assert idle is not None, "a named partition is kept"
    entries = float(sum([len(watch.entries) for watch in idle.fetch_watches()]))
    return {"entries": entries, "later": entries, "bytes": entries * WATCH_BYTES, "operations": float(count)}


if __name__ == "__main__":
    serve(
        {
            "leftovers": leftovers,
            "register-complete": register_complete,
            "expire-all": expire_all,
            "cancel-all": cancel_all,
            "fetch-evaluations": fetch_evaluations,
            "memory": memory,
        }
    )
