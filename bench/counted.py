"""Workloads whose instructions are counted: `python -m bench.counted WORKLOAD OPERATIONS`, under valgrind.

Each performs exactly the given number of operations and nothing that depends on time, so two runs have the same count.
The difference of two runs with different numbers of operations excludes the cost of starting and importing.
"""

import sys
from collections.abc import Callable
from typing import Final

from purgatory.engine import calls
from purgatory.engine import tape as tapes
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.codes import (
    COMPOSITE,
    FOLLOWER_PROGRESS,
    HIGH_WATERMARK,
    KEY_SIGNALLED,
    LEADER_APPEND,
    PRODUCE,
    SIGNAL,
    UNKNOWN,
)
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wheel import TimingWheel

# ruff: noqa: PLC0415 - each workload imports only its own modules; imports take longest under valgrind

BATCH: Final = 500
NOW_MS: Final = 1_000
TIMEOUT_MS: Final = 600_000


def register_complete(operations: int) -> None:
    """The engine alone: registers batches of produce waits, completes them with marks, and takes the completions."""
    engine = Engine(EngineLimits(), NOW_MS)
    owner = engine.add_owner()
    partitions = [("bench", partition) for partition in range(10)]
    indexes = list(range(10)) * (BATCH // 10)
    each = BATCH // 10
    for first in range(0, operations, BATCH):
        mark = first // 10
        offsets = sorted(list(range(mark + 1, mark + each + 1)) * 10)
        ids = list(range(first + 1, first + BATCH + 1))
        batch = OperationBatch(
            ids, partitions=partitions, item_indexes=indexes, offsets=offsets, timeouts_ms=[TIMEOUT_MS]
        )
        engine.perform(owner, Register(PRODUCE, batch), NOW_MS)
        marks = [mark + each] * 10
        events = EventBatch([HIGH_WATERMARK] * 10, partitions=partitions, item_indexes=indexes[:10], offsets=marks)
        assert engine.perform(None, Apply(events), NOW_MS).ended == BATCH
        engine.take_completions()


def five_partitions(operations: int) -> None:
    """As `register_complete`, with five partitions per operation: rows of twenty operations over a hundred
    partitions, then a row of marks.
    """
    engine = Engine(EngineLimits(), NOW_MS)
    owner = engine.add_owner()
    partitions = [("bench", partition) for partition in range(100)]
    places = list(range(100))
    for first in range(0, operations, 20):
        mark = first // 20 + 1
        batch = OperationBatch(
            list(range(first + 1, first + 21)),
            partitions=partitions,
            item_indexes=places,
            item_counts=[5],
            offsets=[mark],
            timeouts_ms=[TIMEOUT_MS],
        )
        engine.perform(owner, Register(PRODUCE, batch), NOW_MS)
        events = EventBatch([HIGH_WATERMARK] * 100, partitions=partitions, item_indexes=places, offsets=[mark])
        assert engine.perform(None, Apply(events), NOW_MS).ended == 20
        engine.take_completions()


def composites_of_five(operations: int) -> None:
    """Batches of twenty composites, each of three marks and two signals, ended by a mark or a signal for each term."""
    engine, owner, partitions, keys = mixed_names()
    places = [place for wait in range(20) for place in (*range(wait * 3, wait * 3 + 3), 60 + wait * 2, 61 + wait * 2)]
    for first in range(0, operations, 20):
        mark = first // 20 + 1
        batch = OperationBatch(
            list(range(first + 1, first + 21)),
            partitions=partitions,
            keys=keys,
            item_indexes=places,
            item_counts=[5],
            offsets=[mark],
            timeouts_ms=[TIMEOUT_MS],
        )
        engine.perform(owner, Register(COMPOSITE, batch), NOW_MS)
        end_mixed(engine, partitions, keys, mark, ended=20)


def five_single_waits(operations: int) -> None:
    """The same terms as `composites_of_five`, as waits of their own; five of them are one operation here."""
    engine, owner, partitions, keys = mixed_names()
    for first in range(0, operations, 20):
        mark = first // 20 + 1
        first_id = first * 5 + 1
        marks = OperationBatch(
            list(range(first_id, first_id + 60)),
            partitions=partitions,
            item_indexes=list(range(60)),
            offsets=[mark],
            timeouts_ms=[TIMEOUT_MS],
        )
        signals = OperationBatch(
            list(range(first_id + 60, first_id + 100)),
            keys=keys,
            item_indexes=list(range(40)),
            offsets=[mark],
            timeouts_ms=[TIMEOUT_MS],
        )
        engine.perform(owner, Register(PRODUCE, marks), NOW_MS)
        engine.perform(owner, Register(SIGNAL, signals), NOW_MS)
        end_mixed(engine, partitions, keys, mark, ended=100)


def mixed_names() -> tuple[Engine, Owner, list[PartitionName], list[str]]:
    """An engine with an owner, and names for twenty waits on three partitions and two keys each."""
    engine = Engine(EngineLimits(), NOW_MS)
    partitions = [("bench", partition) for partition in range(60)]
    return engine, engine.add_owner(), partitions, [f"job-{number}" for number in range(40)]


def end_mixed(engine: Engine, partitions: list[PartitionName], keys: list[str], mark: int, ended: int) -> None:
    """Report `mark` for all partitions, and signal all keys."""
    marks = EventBatch([HIGH_WATERMARK] * 60, partitions=partitions, item_indexes=list(range(60)), offsets=[mark])
    signals = EventBatch([KEY_SIGNALLED] * 40, keys=keys, item_indexes=list(range(40)), offsets=[1])
    done = engine.perform(None, Apply(marks), NOW_MS).ended + engine.perform(None, Apply(signals), NOW_MS).ended
    assert done == ended, f"{done} ended, not {ended}"
    engine.take_completions()


def expire(operations: int) -> None:
    """The engine alone: registers batches of produce waits and lets all of them expire."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    for first in range(0, operations, BATCH):
        ids = list(range(first + 1, first + BATCH + 1))
        timeouts_ms = [1 + number % 300 for number in range(BATCH)]
        batch = OperationBatch(ids, partitions=[("bench", 0)], offsets=[1], timeouts_ms=timeouts_ms)
        engine.perform(owner, Register(PRODUCE, batch), first)
        assert engine.perform(None, PassTime(BATCH), first + 300).ended == BATCH
        engine.take_completions()


def translate(operations: int) -> None:
    """The daemon's part of the column path, without a network: decode, engine, encode."""
    from purgatory.service.translate.operations import parts_from_columns
    from purgatory.service.translate.result_slices import slices_of
    from purgatory.service.translate.results import fill_batch
    from purgatory.v1 import operation_pb2
    from purgatory.v1 import purgatory_service_pb2 as wire

    engine = Engine(EngineLimits(), NOW_MS)
    owner = engine.add_owner()
    name = operation_pb2.TopicPartition(topic="bench", partition=0)
    for first in range(0, operations, BATCH):
        columns = operation_pb2.OperationColumns(
            kind=operation_pb2.OPERATION_KIND_PRODUCE,
            partitions=[name],
            operation_id=range(first + 1, first + BATCH + 1),
            offset=range(first + 1, first + BATCH + 1),
            timeout_ms=[TIMEOUT_MS],
        )
        arrived = operation_pb2.OperationColumns.FromString(columns.SerializeToString())
        [part] = parts_from_columns(arrived)
        for run in part.runs:
            engine.perform(owner, Register(run.kind, run.batch), NOW_MS)
        engine.perform(
            None, Apply(EventBatch([HIGH_WATERMARK], partitions=[("bench", 0)], offsets=[first + BATCH])), NOW_MS
        )
        for completions in engine.take_completions():
            assert len(completions) == BATCH
            results = wire.ResultBatch()
            fill_batch(results, first + 1, slices_of(completions), columns=True)
            results.SerializeToString()


def tape(operations: int) -> None:
    """Plays a history as a replay does: for each wait an append, the wait, the progress of two followers, and the
    mark.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    partitions = [("bench", 0)]
    for first in range(0, operations, BATCH):
        ids = list(range(first + 1, first + BATCH + 1))
        waits = OperationBatch(ids, partitions=partitions, offsets=ids, timeouts_ms=[TIMEOUT_MS])
        events = EventBatch(
            [LEADER_APPEND, FOLLOWER_PROGRESS, FOLLOWER_PROGRESS, HIGH_WATERMARK] * BATCH,
            partitions=partitions,
            offsets=[offset for offset in ids for _ in range(4)],
            replica_ids=[UNKNOWN, 2, 3, UNKNOWN] * BATCH,
        )
        steps = [calls.APPLY, calls.REGISTER + PRODUCE, calls.APPLY] * BATCH
        times_ms = [at for number in ids for at in (number, number, number + 1)]
        engine.play(
            owner, tapes.Tape(steps, times_ms, [1, 1, 3] * BATCH, operations=[None, waits], events=events), False
        )
        assert sum(len(completions) for completions in engine.take_completions()) == BATCH


def client(operations: int) -> None:
    """The client's part: batches are submitted, sent and answered, without a network."""
    from purgatory_client.batches import partition_columns
    from purgatory_client.results import OperationKind
    from purgatory_client.session.session_core import SessionCore

    from bench.drivers.messages import echoed
    from purgatory.v1 import purgatory_service_pb2 as wire

    core = SessionCore("bench", 1_000_000)
    core.open_message()
    core.receive(wire.SessionResponse(opened=wire.SessionOpened(heartbeat_interval_ms=3_600_000)), 1.0)
    for first in range(0, operations, BATCH):
        offsets = range(first + 1, first + BATCH + 1)
        core.submit(partition_columns(OperationKind.PRODUCE, [("bench", 0)], None, offsets, [TIMEOUT_MS], None), 1.0)
        message = core.next_message(1.0)
        while message is not None and message.WhichOneof("message") != "register":
            message = core.next_message(1.0)
        assert message is not None
        batch = wire.RegisterBatch.FromString(message.register.SerializeToString())
        receipt = wire.Receipt(batch_id=batch.batch_id, highest_operation_id=first + BATCH, accepted=BATCH)
        core.receive(wire.SessionResponse(receipt=receipt), 1.0)
        results = wire.ResultBatch(first_sequence=first + 1, columns=echoed(batch))
        ended = core.receive(
            wire.SessionResponse(results=wire.ResultBatch.FromString(results.SerializeToString())), 1.0
        )
        assert len(ended) == 1


def wheel(operations: int) -> None:
    """The timing wheel alone: add and cancel, add and fire."""
    timers = TimingWheel(1, 20, 0)
    timers.ensure(BATCH)
    fired: list[int] = []
    for first in range(0, operations, BATCH):
        for slot in range(BATCH):
            timers.add(slot, first + 30_000 + slot)
        for slot in range(BATCH):
            timers.add(slot, first + 1 + slot)  # forgets the one before
        timers.advance(first + BATCH, BATCH, fired)
        fired.clear()


WORKLOADS: Final[dict[str, Callable[[int], None]]] = {
    "engine-register-complete": register_complete,
    "engine-five-partitions": five_partitions,
    "engine-composites-of-five": composites_of_five,
    "engine-five-single-waits": five_single_waits,
    "engine-expire": expire,
    "daemon-columns": translate,
    "client-columns": client,
    "wheel": wheel,
    "replay-tape": tape,
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](int(sys.argv[2]))
