"""Work whose instructions `python -m bench.archive --instructions` counts: the same waits, kept up to some point.

    python -m bench.archive_counted plain 20000     # bytes in, host, engine, bytes out; no network
    python -m bench.archive_counted pieces 20000    # and packed and unpacked, as they are sent to the keeper
    python -m bench.archive_counted rows 20000      # and rows of all of it, as the keeper makes them
    python -m bench.archive_counted files 20000     # and files of those

A daemon pays for the pieces; rows and files are the keeper's, in a process of its own. All of it runs in one thread
here, so that two runs count the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from purgatory.archive import words
from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.archive.frames import framed, read_frame
from purgatory.archive.keeper import NEW_GATHERERS
from purgatory.archive.packing import Chunk
from purgatory.archive.pieces import pieces_in
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.host_limits import HostLimits
from purgatory.service.listeners.archive import ArchiveStatistics
from purgatory.service.listeners.archive_opening import ROWS_AT_ONCE
from purgatory.service.listeners.archive_recorder import Recorder
from purgatory.service.listeners.archive_room import Room
from purgatory.service.listeners.archive_sender import Sent
from purgatory.service.listeners.metrics import Metrics
from purgatory.service.rpc import intake
from purgatory.service.translate.results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

BATCH: Final = 1_000
PARTITIONS: Final = 100
MODES: Final = ("plain", "pieces", "rows", "files")
NAMES: Final = [operation_pb2.TopicPartition(topic="bench", partition=number) for number in range(PARTITIONS)]
STEP: Final = BATCH // PARTITIONS


class Keeper:
    """What sends and keeps, done by the caller."""

    def __init__(self, folder: str, mode: str) -> None:
        self._gatherers: Final[dict[str, Any]] = {table: make() for table, make in NEW_GATHERERS.items()}
        self._makes_rows: Final = mode != "pieces"
        self._writer: Final = ArchiveWriter(*open_archive(folder), "run") if mode == "files" else None
        self._file: Final = Path(folder, "frame").open("w+b")  # noqa: SIM115 - closed with the process
        nothing = ArchiveStatistics({}, {}, 0, 0, 0, 0)
        room = Room(sys.maxsize, strict=False)
        self.recorder: Final = Recorder(
            "run", room, self._keep, lambda: nothing, timeout_ms_default=30_000, send_rows=1
        )

    def _keep(self, chunk: Chunk, _sent: Sent) -> None:
        """Keeps what has come: a call, or as many as make a frame."""
        self._file.seek(0)
        self._file.writelines(framed(chunk))
        self._file.seek(0)
        frame = read_frame(self._file)
        assert frame is not None, "a whole frame was written"
        received: Chunk = frame.unpacked()
        if self._makes_rows:
            numbers = np.frombuffer(received.numbers, np.int64)
            for number, starts in pieces_in(numbers).items():
                self._gatherers[words.TABLES[number]].add(received, numbers, starts)
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


def main(mode: str, operations: int) -> None:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        keeper = None if mode == MODES[0] else Keeper(folder, mode)
        work(operations, keeper)
        if keeper is not None:
            keeper.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
