"""An archive without a daemon: listener, link and history writer, on a disk that may fail and with any wall clock."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyarrow import fs

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.extensions.archive import layout, schema
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings
from purgatory.extensions.archive.files import ArchiveWriter
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.runs import RunFile, RunState
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.extensions.archive.writer_process import HistoryWriter, LineOutput, keep_all, serve
from purgatory.extensions.archive.writer_protocol import WriterConfig, WriterStatistics, read_frame
from purgatory.service.host import Host
from purgatory.service.registration import BatchReceipt
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings, SessionSettings
from purgatory.service.translate.operations import OperationRun
from purgatory.testing import ManualClock
from tests.archive.archive_replay import rows_of

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
            ArchiveWriter(filesystem, str(folder), run_id, roll_s=0.01),
            self.run,
            self._report,
            retry_s=0.01,
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
