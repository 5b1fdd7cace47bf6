"""An archive without a daemon: queue, thread and recorder put together by a test, with any disk and any wall clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from purgatory.archive import layout, schema
from purgatory.archive.files import ArchiveWriter
from purgatory.archive.runs import RunFile, RunState
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.archive import ArchiveStatistics
from purgatory.service.archive_queue import CallQueue
from purgatory.service.archive_recorder import Recorder
from purgatory.service.archive_thread import ArchiveThread
from purgatory.service.host import Host
from purgatory.service.limits import HostLimits
from purgatory.service.observer import Observer, SilentObserver
from purgatory.testing import ManualClock
from tests.service.archive_replay import rows_of

CLOSE_S: Final = 30.0
RUN: Final = "run-a"
AT_MS: Final = 1_700_011_800_000  # 2023-11-15 01:30 UTC


class Kept:
    """A host with an archive in a folder. The thread works from `start` on; `close` completes the archive."""

    def __init__(
        self,
        folder: Path,
        *,
        filesystem: fs.FileSystem | None = None,
        rows_max: int = 100_000,
        strict: bool = False,
        wall_ms: Callable[[], int] = lambda: AT_MS,
        observer: Observer | None = None,
        run_id: str = RUN,
    ) -> None:
        self.folder: Final = folder
        (folder / layout.WRITING).mkdir(exist_ok=True)
        filesystem = filesystem or fs.LocalFileSystem()
        self.clock: Final = ManualClock(1_000)
        self.run: Final = RunFile(filesystem, str(folder), RunState(run_id, "here", 1, 0, 1_000, AT_MS))
        self.queue: Final = CallQueue(rows_max, strict=strict)
        writer = ArchiveWriter(filesystem, str(folder), run_id)
        self.thread: Final = ArchiveThread(self.queue, writer, self.run, roll_s=0.01, retry_s=0.01)
        self.recorder: Final = Recorder(run_id, self.queue, self.look, timeout_ms_default=30_000, wall_ms=wall_ms)
        host_limits = HostLimits(session_ttl_ms=100)
        self.host: Final = Host(Engine(EngineLimits(), 1_000), self.clock, host_limits, observer or SilentObserver())
        self.host.archive = self.recorder

    def look(self) -> ArchiveStatistics:
        """What a daemon's metrics show."""
        writer = self.thread.writer
        dropped = {table: self.queue.rows_dropped[table] + self.thread.rows_lost[table] for table in schema.TABLES}
        return ArchiveStatistics(
            dict(writer.rows), dropped, self.queue.rows, writer.files, writer.bytes, self.thread.errors
        )

    def start(self) -> None:
        """The thread begins to keep."""
        self.thread.start()

    def close(self) -> bool:
        """Ends the run; whether everything could be kept."""
        self.recorder.mark(schema.ENDED, self.clock.now_ms())
        return self.thread.close(CLOSE_S)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What lies in the archive."""
        return rows_of(self.folder, table)
