"""What keeping history costs in instructions: the same waits, kept up to some point.

    python -m bench.archive_instructions                # counts all of these, beside each other
    python -m bench.archive_instructions plain 20000    # bytes in, host, engine, bytes out; no network
    python -m bench.archive_instructions records 20000  # and made records of, and sent
    python -m bench.archive_instructions rows 20000     # and rows of all of it, as the writer process makes them
    python -m bench.archive_instructions files 20000    # and files of those

A daemon pays for the records; rows and files are the writer process's. All of it runs in one thread here, so that two
runs count the same. By the clock `archive/columns` measures it, beside the same daemon without an archive.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from typing import Final, cast

from bench.measure.instructions import CountingMissing, count, counting_tool
from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.archive.records import Record
from purgatory.archive.rows import rows_by_table
from purgatory.archive.run_details import RunDetails
from purgatory.archive.writer_link import WriterLink
from purgatory.archive.writer_protocol import WriterConfig, WriterStatistics, decode_frame, encode_frame
from purgatory.engine.batches import PartitionName
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive.archive_listener import ArchiveListener
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc import event_calls, session_requests
from purgatory.service.rpc.call import Call, Context
from purgatory.service.settings import ArchiveSettings, HostSettings
from purgatory.service.translate.results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

BATCH: Final = 1_000
FEW: Final = 20_000
MANY: Final = 70_000
PARTITIONS: Final = 100
MODES: Final = ("plain", "records", "rows", "files")
NAMES: Final = [operation_pb2.TopicPartition(topic="bench", partition=number) for number in range(PARTITIONS)]
STEP: Final = BATCH // PARTITIONS


class SameThreadLink(WriterLink):
    """A writer process's work, done by the caller."""

    def __init__(self, folder: str, mode: str) -> None:
        super().__init__(
            WriterConfig(folder, "run", RunDetails("bench"), WriterStatistics(), 60.0, 1, low_priority=False)
        )
        self._has_process.set()
        self._makes_rows: Final = mode != "records"
        self._files: Final = ArchiveWriter(*open_archive(folder), "run") if mode == "files" else None
        self.listener: Final = ArchiveListener(self, ArchiveSettings(), 30_000)

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Keeps a frame."""
        received_names, received = decode_frame(encode_frame((names, records))[8:])
        if not self._makes_rows:
            return
        for table, rows in rows_by_table(received, received_names).items():
            if self._files is not None:
                self._files.write(table, rows)

    def finish(self) -> None:
        """Sends what is left, and writes the files."""
        self.listener.send()
        if self._files is not None:
            self._files.roll()


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


async def work(operations: int, link: SameThreadLink | None) -> None:
    """So many waits, from bytes to bytes."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostSettings(), Metrics())
    if link is not None:
        host.listeners.append(link.listener)
    session, _ = host.sessions.open("bench", 1)
    call = Call(cast(Context, None), session.account)  # events make nothing of the context
    for number in range(operations // BATCH):
        clock.jump(2)
        batch = wire.RegisterBatch.FromString(registrations(number * BATCH + 1, number * STEP))
        (await session_requests.register_or_refuse(host, session, batch)).SerializeToString()
        clock.jump(1)
        receipt = await event_calls.advance(host, wire.AdvanceRequest.FromString(marks((number + 1) * STEP)), call)
        receipt.SerializeToString()
        first_sequence, slices = session.outbox.take(BATCH)
        assert sum(map(len, slices)) == BATCH
        results = wire.ResultBatch()
        fill_batch(results, first_sequence, slices, columns=True)
        results.SerializeToString()
        session.acknowledge(session.outbox.last_sequence)


async def run(mode: str, operations: int) -> None:
    """One run. It never waits, so what would be sent after a time is not: only what is enough."""
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        link = None if mode == MODES[0] else SameThreadLink(folder, mode)
        await work(operations, link)
        if link is not None:
            link.finish()


def count_all() -> None:
    """Prints what a wait takes, and what records, rows and files add to it."""
    tool, each = counting_tool(), dict.fromkeys(MODES, 0.0)
    for mode in MODES:
        few, many = (count(tool, mode, operations, "bench.archive_instructions") for operations in (FEW, MANY))
        each[mode] = (many - few) / (MANY - FEW)
        added = (each[mode] / each[MODES[0]] - 1) * 100
        print(f"  {mode:7} {each[mode]:8,.0f} instructions a wait, {added:.1f} % more than plain", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(run(sys.argv[1], int(sys.argv[2])))
    else:
        try:
            count_all()
        except CountingMissing as missing:
            raise SystemExit(str(missing)) from None
