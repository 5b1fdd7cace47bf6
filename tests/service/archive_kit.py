"""An archive without a daemon: recorder, sender and keeper put together, with any disk and any wall clock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyarrow import fs

from purgatory.archive import layout, schema
from purgatory.archive.files import ArchiveWriter
from purgatory.archive.frames import read_frame
from purgatory.archive.keeper import Keeper
from purgatory.archive.keeping_process import Teller, keep_all, serve
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.archive.runs import RunFile, RunState
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.host import Host
from purgatory.service.host_limits import HostLimits
from purgatory.service.listeners.archive_recorder import Recorder
from purgatory.service.listeners.archive_room import Room
from purgatory.service.listeners.archive_sender import ArchiveSender
from purgatory.service.listeners.observer import Observer, SilentObserver
from purgatory.testing import ManualClock
from tests.service.archive_replay import rows_of

CLOSE_S: Final = 30.0
RUN: Final = "run-a"
AT_MS: Final = 1_700_011_800_000  # 2023-11-15 01:30 UTC


class ThreadLink:
    """A link to what keeps an archive in this process: all that a process would do, on a thread."""

    def __init__(self, keep: Callable[[BinaryIO, Teller], bool] = serve) -> None:
        frames, self.frames = pipe()
        self.lines, lines = pipe()
        self._kept = False
        self._thread: Final = threading.Thread(target=self._run, args=(keep, frames, lines))
        self._thread.start()

    def _run(self, keep: Callable[[BinaryIO, Teller], bool], frames: BinaryIO, lines: BinaryIO) -> None:
        with frames, lines:
            self._kept = keep(frames, Teller(lines))

    def wait(self) -> bool:
        """Waits until it has ended; whether it could write all, and the end."""
        self._thread.join()
        return self._kept

    def kill(self) -> None:
        """Lets it see its end."""
        self.frames.close()


def pipe() -> tuple[BinaryIO, BinaryIO]:
    """Where to read, and where to write."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")


class Kept:
    """A host with an archive in a folder. It is kept from `start` on; `close` completes the archive."""

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
        self.room: Final = Room(rows_max, strict=strict)
        self._teller: Teller | None = None
        self.keeper: Final = Keeper(
            ArchiveWriter(filesystem, str(folder), run_id),
            self.run,
            self._tell,
            roll_s=0.01,
            rows_at_once=1_000,
            retry_s=0.01,
        )
        opening = Opening(str(folder), run_id, "here", 1, 1_000, AT_MS, "{}", 0.01, 1 << 20, 1_000, 1, gives_way=False)
        self.sender: Final = ArchiveSender(self.room, opening, lambda: ThreadLink(self._keep))
        self.recorder: Final = Recorder(
            run_id,
            self.room,
            self.sender.send,
            self.sender.statistics,
            timeout_ms_default=30_000,
            wall_ms=wall_ms,
            send_rows=1,  # each call is a frame of its own
        )
        host_limits = HostLimits(session_ttl_ms=100)
        self.host: Final = Host(Engine(EngineLimits(), 1_000), self.clock, host_limits, observer or SilentObserver())
        self.host.archive = self.recorder

    def _tell(self, statistics: KeeperStatistics) -> None:
        if self._teller is not None:
            self._teller.statistics(statistics)

    def _keep(self, frames: BinaryIO, teller: Teller) -> bool:
        """What the process does, with this keeper."""
        self._teller = teller
        assert read_frame(frames) is not None, "the opening comes first"
        teller.statistics(self.keeper.statistics())
        return keep_all(frames, self.keeper, gives_way=False)

    def keep_by_hand(self, calls: int) -> None:
        """So many calls are kept, and lie in their files, without the sender."""
        waiting = self.sender._waiting
        for sent, (head, *buffers) in [waiting.popleft() for _ in range(min(calls, len(waiting)))]:
            assert sent is not None, "a whole frame"
            frame = read_frame(BytesIO(b"".join([head, *buffers])))
            assert frame is not None, "a whole frame"
            self.keeper.keep(frame.unpacked())
            self.room.done(sum(sent.rows.values()))
        self.keeper._roll()

    def start(self) -> None:
        """Everything is kept from now on."""
        self.sender.start()

    def close(self) -> bool:
        """Ends the run; whether everything could be kept."""
        self.recorder.mark(schema.ENDED, self.clock.now_ms())
        return self.sender.close(CLOSE_S)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What lies in the archive."""
        return rows_of(self.folder, table)
