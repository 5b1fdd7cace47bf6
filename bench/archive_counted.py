"""Work whose instructions `python -m bench.archive --instructions` counts: the same waits with and without rows.

    python -m bench.archive_counted plain 20000     # bytes in, host, engine, bytes out; no network
    python -m bench.archive_counted rows 20000      # and rows of all of it, as the archive's thread makes them
    python -m bench.archive_counted files 20000     # and files of those

Rows are made by whoever holds the interpreter, so they are taken from the event loop wherever they are made; encoding
files is not. All of it runs in one thread here, so that two runs count the same.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any, Final

from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service import intake
from purgatory.service.archive import ArchiveStatistics
from purgatory.service.archive_queue import CallQueue
from purgatory.service.archive_recorder import Recorder
from purgatory.service.archive_thread import NEW_GATHERERS, ROWS_AT_ONCE
from purgatory.service.host import Host
from purgatory.service.limits import HostLimits
from purgatory.service.metrics import Metrics
from purgatory.service.translate_results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

BATCH: Final = 1_000
PARTITIONS: Final = 100
MODES: Final = ("plain", "rows", "files")
NAMES: Final = [operation_pb2.TopicPartition(topic="bench", partition=number) for number in range(PARTITIONS)]
STEP: Final = BATCH // PARTITIONS


class Keeper:
    """What the archive's thread does, done by the caller."""

    def __init__(self, folder: str, *, writes: bool) -> None:
        self._queue: Final = CallQueue(sys.maxsize, strict=False)
        self._gatherers: Final[dict[str, Any]] = {table: make() for table, make in NEW_GATHERERS.items()}
        self._writer: Final = ArchiveWriter(*open_archive(folder), "run") if writes else None
        nothing = ArchiveStatistics({}, {}, 0, 0, 0, 0)
        self.recorder: Final = Recorder("run", self._queue, lambda: nothing, timeout_ms_default=30_000)

    def keep(self) -> None:
        """Makes rows of what has come."""
        while (call := self._queue.take()) is not None:
            for part in call.parts:
                self._gatherers[part.table].add(call.stamp, *part.values)
        self._make_rows(ROWS_AT_ONCE)

    def _make_rows(self, least: int) -> None:
        for table, gatherer in self._gatherers.items():
            if gatherer.rows >= least:
                rows = gatherer.take()
                if self._writer is not None:
                    self._writer.write(table, rows)

    def close(self) -> None:
        """Makes rows of what is left, and writes the files."""
        self._make_rows(1)
        if self._writer is not None:
            self._writer.close()


def registrations(first_id: int, mark: int) -> bytes:
    """A message of a session stream: produce waits that the next mark completes."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=NAMES,
        operation_id=range(first_id, first_id + BATCH),
        timeout_ms=[600_000],
        item_index=[number % PARTITIONS for number in range(BATCH)],
        offset=[mark + number // PARTITIONS + 1 for number in range(BATCH)],
    )
    return wire.RegisterBatch(batch_id=1, columns=columns).SerializeToString()


def marks(mark: int) -> bytes:
    """The events that complete them."""
    columns = event_pb2.EventColumns(
        partitions=NAMES,
        type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * PARTITIONS,
        item_index=range(PARTITIONS),
        offset=[mark],
    )
    return wire.AdvanceRequest(columns=columns).SerializeToString()


def work(operations: int, keeper: Keeper | None) -> None:
    """So many waits, from bytes to bytes."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostLimits(), Metrics())
    if keeper is not None:
        host.archive = keeper.recorder
    session, _ = host.sessions.open("bench", 1)
    for number in range(operations // BATCH):
        clock.jump(2)
        batch = wire.RegisterBatch.FromString(registrations(number * BATCH + 1, number * STEP))
        intake.register_or_refuse(host, session, batch).SerializeToString()
        clock.jump(1)
        applying = intake.advance(host, wire.AdvanceRequest.FromString(marks((number + 1) * STEP)))
        try:
            applying.send(None)
        except StopIteration as answer:
            answer.value.SerializeToString()
        first_sequence, slices = session.outbox.take(BATCH)
        assert sum(map(len, slices)) == BATCH
        results = wire.ResultBatch()
        fill_batch(results, first_sequence, slices, columns=True)
        results.SerializeToString()
        session.acknowledge(session.outbox.last_sequence)
        if keeper is not None:
            keeper.keep()


def main(mode: str, operations: int) -> None:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        keeper = None if mode == MODES[0] else Keeper(folder, writes=mode == MODES[2])
        work(operations, keeper)
        if keeper is not None:
            keeper.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
