"""An archive without a daemon: listener, link and history writer, on a disk that may fail and with any wall clock.

`Replay` feeds an archive's calls to a new engine, in order and at their times, and collects the outcomes. It is written
from the archive's schema (purgatory.extensions.archive.schema) with lists and loops, one row at a time.
"""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from purgatory.engine import calls, codes
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, ReplicaSets
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import OPERATION, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings
from purgatory.extensions.archive.files import ArchiveWriter
from purgatory.extensions.archive.records import REPLICA_COLUMNS, Names, completion_records
from purgatory.extensions.archive.rows import make_rows
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.runs import RunFile, RunState
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.extensions.archive.writer_process import HistoryWriter, LineOutput, keep_all, serve
from purgatory.extensions.archive.writer_protocol import WriterConfig, WriterStatistics, read_frame
from purgatory.service.host import Host
from purgatory.service.registration import BatchReceipt
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock

CLOSE_S: Final = 30.0
RUN: Final = "run-a"
AT_MS: Final = 1_700_011_800_000  # 2023-11-15 01:30 UTC
NOWHERE: Final = WriterConfig("nowhere", RUN, RunDetails("test"), WriterStatistics(), 60.0, low_priority=False)

Serve = Callable[[BinaryIO, LineOutput], bool]


class ThreadProcess:
    """Runs a writer process's work on a thread of this process, with real pipes."""

    def __init__(self, serve: Serve, stdin: int) -> None:
        self.stdout: Final = asyncio.StreamReader()
        self._frames: Final = os.fdopen(os.dup(stdin), "rb")
        self._kept = False
        self._thread: Final = threading.Thread(target=self._run, args=(serve,), daemon=True)

    async def start(self) -> None:
        reading, writing = os.pipe()
        protocol = asyncio.StreamReaderProtocol(self.stdout)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        self._lines = os.fdopen(writing, "wb")
        self._thread.start()

    def _run(self, serve: Serve) -> None:
        with self._frames, self._lines:
            self._kept = serve(self._frames, LineOutput(self._lines))

    async def wait(self) -> int:
        await asyncio.to_thread(self._thread.join)
        return 0 if self._kept else 1

    def kill(self) -> None:
        """A thread cannot be killed; it sees the end of its input."""


class ThreadLink(WriterLink):
    """A link to such threads. Each runs the next of `serves`; when none is left, it runs the code of a real process."""

    def __init__(self, config: WriterConfig, *serves: Serve) -> None:
        super().__init__(config, retry_s=0.01)
        self._serves: Final = list(serves)

    async def _spawn(self, stdin: int) -> Any:  # noqa: ANN401 - in place of a process
        process = ThreadProcess(self._serves.pop(0) if self._serves else serve, stdin)
        await process.start()
        return process


def produces(first_id: int, count: int = 1, timeout_ms: int = 1_000) -> OperationRun:
    """A run of waits for offset 10 of orders-0."""
    ids = list(range(first_id, first_id + count))
    return OperationRun(
        codes.PRODUCE, OperationBatch(ids, partitions=[("orders", 0)], offsets=[10], timeouts_ms=[timeout_ms])
    )


class ArchivedHost:
    """A host with an archive in a folder. Records are written from `start` on; `close` completes the archive."""

    def __init__(
        self,
        folder: Path,
        *,
        rows_max: int = 100_000,
        strict: bool = False,
        wall_ms: Callable[[], int] = lambda: AT_MS,
        run_id: str = RUN,
    ) -> None:
        self.folder: Final = folder
        (folder / layout.WRITING).mkdir(exist_ok=True)
        filesystem = fs.LocalFileSystem()
        self.clock: Final = ManualClock(1_000)
        self.run: Final = RunFile.create(filesystem, str(folder), RunState(run_id, "here", 1, 0, 1_000, AT_MS))
        self._output: LineOutput | None = None
        self.history: Final = HistoryWriter(
            ArchiveWriter(filesystem, str(folder), run_id, roll_s=0.01), self.run, self._report, retry_s=0.01
        )
        self.link: Final = ThreadLink(NOWHERE._replace(run_id=run_id), self._serve)
        settings = ArchiveSettings(strict=strict)
        self.listener: Final = ArchiveListener(self.link, settings, 30_000, wall_ms, rows_max)
        host_settings = HostSettings(session=SessionSettings(ttl_ms=100))
        self.host: Final = Host(Engine(EngineLimits(), 1_000), self.clock, host_settings)
        self.host.listeners.append(self.listener)

    def _report(self, statistics: WriterStatistics) -> None:
        if self._output is not None:
            self._output.report(statistics)

    def _serve(self, frames: BinaryIO, output: LineOutput) -> bool:
        self._output = output
        assert read_frame(frames) is not None, "the configuration comes first"
        output.report(self.history.statistics)
        return keep_all(frames, self.history, low_priority=False)

    def keep_by_hand(self, calls: int) -> None:
        """Write the calls up to this one to files, before the start."""
        listener = self.listener
        kept = [record for record in listener._records if record.stamp.call_number <= calls]
        self.history.keep(list(listener._names), kept)
        self.history.roll()
        del listener._records[: len(kept)]
        listener._unsent_rows -= sum(record.rows for record in kept)

    @property
    def session(self) -> Session:
        return self.host.sessions.open("s", self.clock.now_ms())[0]

    def register(self, *runs: OperationRun) -> BatchReceipt:
        return self.host.registration(self.session).register(list(runs), [])

    def fill(self, *, calls: int = 1, each: int) -> None:
        for _ in range(calls):
            assert self.register(produces(self.session.owner.highest_operation_id + 1, each)).accepted

    async def start(self) -> None:
        """Start the writer, which writes everything recorded before and after."""
        await self.link.start()

    async def close(self) -> bool:
        """End the run. Returns whether everything was written."""
        self.listener.mark(schema.ENDED, self.clock.now_ms())
        return await self.link.close(CLOSE_S, self.listener.send)

    async def start_and_close(self) -> None:
        await self.start()
        assert await self.close()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows_of(self.folder, table)

    def markers(self, marker: str) -> list[dict[str, Any]]:
        return [row for row in self.rows(schema.MARKERS) if row["marker"] == marker]

    def dropped(self) -> list[tuple[str, int, int, int]]:
        """The gaps according to the markers: table, rows, first and last call."""
        columns = ("table", "rows", "call_number", "last_call_number")
        return [tuple(row[name] for name in columns) for row in self.markers(schema.DROPPED)]


@contextlib.contextmanager
def failing_disk(folder: Path) -> Iterator[None]:
    """In the block nothing can be written to an archive: a file is in the place of its folder for unfinished files."""
    writing, aside = folder / layout.WRITING, folder / "aside"
    writing.rename(aside)
    writing.touch()
    yield
    writing.unlink()
    aside.rename(writing)


Row = dict[str, Any]

CALL_OF = {name: call for call, name in schema.CALL_NAMES.items()}
KIND_OF = {name: kind for kind, name in codes.KIND_NAMES.items()}
EVENT_OF = {name: event_type for event_type, name in codes.EVENT_NAMES.items()}


def read_table(folder: Path, table: str) -> pa.Table:
    paths = sorted((folder / table).rglob("*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in paths]
    whole = pa.concat_tables(tables) if tables else schema.SCHEMAS[table].empty_table()
    assert [(field.name, field.type) for field in whole.schema] == [
        (field.name, field.type) for field in schema.SCHEMAS[table]
    ]
    return whole


def rows_of(folder: Path, table: str) -> list[Row]:
    """The rows as dictionaries. Calls are in order within a file, and files in the order of their names."""
    rows: list[Row] = read_table(folder, table).to_pylist()
    return sorted(rows, key=lambda row: (row["run_id"], row["call_number"]))


def without(rows: Iterable[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


class Replay:
    """One run replayed on a new engine; `outcomes` are the rows of the operations that ended."""

    def __init__(self, folder: Path) -> None:
        self.outcomes: list[Row] = []
        started = next(row for row in rows_of(folder, schema.MARKERS) if row["marker"] == schema.STARTED)
        self._details = RunDetails.from_json(started["detail"])
        self._engine: Engine = self._details.make_engine(started["time_ms"])
        self._owners: dict[int, Owner] = {}
        self._registrants: dict[int, Registrant] = {}
        # Clock calls have no rows of their own, only outcomes, which are sorted after other rows of the same call.
        tables = (schema.REGISTRATIONS, schema.EVENTS, schema.CALLS, schema.OUTCOMES)
        rows = [row | {"table": table} for table in tables for row in rows_of(folder, table)]
        rows.sort(key=lambda row: row["call_number"])
        for _, call in itertools.groupby(rows, key=lambda row: row["call_number"]):
            self._replay(list(call))

    def _replay(self, rows: list[Row]) -> None:
        first = rows[0]
        now_ms = first["time_ms"]
        cause = [row for row in rows if row["table"] == first["table"]]
        if first["table"] == schema.REGISTRATIONS:
            self._register(cause, now_ms)
        elif first["table"] == schema.EVENTS:
            self._engine.perform(None, calls.Apply(events_of(cause)), now_ms, 10**9)
        elif first["table"] == schema.CALLS:
            self._call(first, now_ms, {(row["topic"], row["partition"]) for row in cause})
        else:
            expired = {(row["session_number"], row["operation_id"]) for row in rows}
            self._engine.perform(None, calls.PassTime(len(expired)), now_ms)
        stamp = CallStamp(first["run_id"], first["call_number"], now_ms, 0)
        for completions in self._engine.take_completions():
            number = next(n for n, owner in self._owners.items() if owner.owner_id == completions.owner_id)
            names: Names = {}
            ended = completion_records(names, stamp, self._registrants[number], completions)
            self.outcomes += make_rows(schema.OUTCOMES, ended, list(names)).to_pylist()

    def _register(self, rows: list[Row], now_ms: int) -> None:
        first = rows[0]
        number = first["session_number"]
        self._registrants[number] = Registrant(number, first["session_id"], first["principal"])
        owner = self._owner(first)
        accepted = [row for row in rows if row["refusal_code"] == schema.ACCEPTED]
        if accepted:
            batch = operations_of(accepted)
            receipt = self._engine.perform(owner, calls.Register(KIND_OF[first["kind"]], batch), now_ms)
            assert receipt.accepted == len(batch.operation_ids), [refusal.message for refusal in receipt.refusals]

    def _call(self, row: Row, now_ms: int, names: set[PartitionName]) -> None:
        ended = repeat_call(self._engine, lambda: self._owner(row), row, names, now_ms)
        assert ended == row["ended"], f"{row}: {ended} ended"

    def _owner(self, row: Row) -> Owner:
        number = row["session_number"]
        if number not in self._owners:
            self._owners[number] = self._engine.add_owner()
        return self._owners[number]


def repeat_call(
    engine: Engine, owner: Callable[[], Owner], row: Row, names: set[PartitionName], now_ms: int, limit: int = 0
) -> int:
    """Make the call of a row of `calls`; returns how many operations it ended.

    `names` are the stale marks of a call that has several rows. `limit`: how many operations a shutdown may end, if not
    as many as recorded.
    """
    match CALL_OF[row["call"]]:
        case calls.Cancel:
            return engine.perform(owner(), calls.Cancel(row["operation_ids"]), now_ms).ended
        case calls.CancelAll:
            return engine.perform(owner(), calls.CancelAll(), now_ms).ended
        case calls.CancelName:
            return engine.perform(None, calls.CancelName((row["topic"], row["partition"])), now_ms).ended
        case calls.Extend:
            engine.perform(owner(), calls.Extend(row["operation_ids"], row["timeout_ms"]), now_ms)
            return 0
        case calls.Pause:
            engine.perform(None, calls.Pause(row["timeout_ms"]), now_ms)
            return 0
        case calls.FailStale:
            return engine.perform(owner(), calls.FailStale(row["operation_ids"], names), now_ms).ended
        case call:
            assert call is calls.ShutDown, call
            return engine.perform(None, calls.ShutDown(limit or row["ended"]), now_ms).ended


def operations_of(rows: list[Row]) -> OperationBatch:
    """A batch made of the rows of its operations, with every value given explicitly."""
    heads = [row for row in rows if row["item"] == 0]
    given = {(row["topic"], row["partition"]) for row in rows}
    partitions = sorted(name for name in given if name[1] != schema.NO_PARTITION)
    keys = sorted(key for key, partition in given if partition == schema.NO_PARTITION)
    names: list[PartitionName] = [*partitions, *((key, schema.NO_PARTITION) for key in keys)]
    places = [names.index((row["topic"], row["partition"])) for row in rows]
    kind = KIND_OF[rows[0]["kind"]]

    def column(of: list[Row], name: str, default: Any) -> list[Any]:  # noqa: ANN401 - any column
        return [default if row[name] is None else row[name] for row in of]

    details = {
        of.batch_name: column(heads if of.level == OPERATION else rows, of.name, of.default) for of in columns_of(kind)
    }
    return OperationBatch(
        column(heads, "operation_id", None),
        partitions=partitions,
        keys=keys,
        timeouts_ms=column(heads, "timeout_ms", None),
        item_counts=column(heads, "item_count", None),
        item_indexes=places,
        **details,
    )


def events_of(rows: list[Row]) -> EventBatch:
    rows = [row for row in rows if row["refusal_code"] == schema.ACCEPTED]
    names = [(row["topic"], row["partition"]) for row in rows]

    def column(name: str, default: int) -> list[int]:
        return [default if row[name] is None else row[name] for row in rows]

    return EventBatch(
        [EVENT_OF[row["type"]] for row in rows],
        partitions=names,
        keys=[topic for topic, _ in names],
        item_indexes=list(range(len(rows))),
        offsets=column("offset", -1),
        leader_epochs=column("leader_epoch", -1),
        replica_ids=column("replica_id", -1),
        byte_positions=column("byte_position", -1),
        segment_base_offsets=column("segment_base_offset", -1),
        log_start_offsets=column("log_start_offset", -1),
        flags=column("flags", 0),
        replica_sets=[
            None if row["leader_id"] is None else ReplicaSets(**{name: row[name] for name in REPLICA_COLUMNS})
            for row in rows
        ],
    )
