"""The process that keeps a daemon's archive, begun by the daemon.

Frames come in on stdin, the first says what is opened, all others are calls; lines go out on stdout, the first says
whether it could be opened. It ends when its input does: with the daemon, however that ended. So it outlives a daemon
that was killed for as long as it takes to keep what it was given.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final

import pyarrow as pa

from purgatory.archive.files import ArchiveUnusable
from purgatory.archive.frames import Frame, read_frame, write_line
from purgatory.archive.keeper import Keeper, open_keeper
from purgatory.archive.opening import KeeperStatistics, Opening

__all__ = ["main", "serve"]

LAG_MAX_S: Final = 5.0
"""How long what has come may wait before the keeper no longer gives way."""
YOUNG_MAX: Final = 100_000
"""Objects that may come together before garbage is looked for: hardly anything here is in a cycle."""
LOOK_S: Final = 0.2
"""How often it looks whether it is time to roll while nothing comes."""

Waiting = tuple[float, Frame]
"""When it came, and what."""

LOGGER: Final = logging.getLogger(__name__)


class Teller:
    """Writes lines to the daemon. Once that is gone there is nobody to tell."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: Final = stream
        self._lock: Final = threading.Lock()

    def unusable(self, why: str) -> None:
        """The first line, and the last."""
        self._write({"unusable": why})

    def statistics(self, statistics: KeeperStatistics) -> None:
        """What became of the rows."""
        self._write({"statistics": statistics._asdict()})

    def log(self, level: int, message: str) -> None:
        """A line for the daemon's log."""
        self._write({"level": level, "message": message})

    def _write(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError), self._lock:
            write_line(self._stream, line)


class LogToDaemon(logging.Handler):
    """Passes what is logged on to the daemon, which knows where its log goes and how it looks."""

    def __init__(self, teller: Teller) -> None:
        super().__init__()
        self._teller: Final = teller

    def emit(self, record: logging.LogRecord) -> None:
        """One line, or several with a traceback."""
        self._teller.log(record.levelno, self.format(record))


class Turns:
    """Two threads that take turns: one to which everything else comes first, and one like any other.

    The first does all the work until it lags behind by `LAG_MAX_S`, which it does where all processors are busy.
    """

    def __init__(self, *, gives_way: bool) -> None:
        self._first: Final = ThreadPoolExecutor(1, "archive-keeper", give_way if gives_way else None)
        self._second: Final = ThreadPoolExecutor(1, "archive-keeper-late") if gives_way else self._first

    def do(self, work: Callable[..., None], *values: Any, lag_s: float = 0.0) -> None:  # noqa: ANN401
        """Has something done, and waits for it. Raises what it raises."""
        (self._second if lag_s > LAG_MAX_S else self._first).submit(work, *values).result()


def give_way() -> None:
    """Lets everything else that wants a processor have it before this thread, where the system knows how to."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def serve(frames: BinaryIO, teller: Teller) -> bool:
    """Keeps what comes until there is no more; whether the end could be written."""
    first = read_frame(frames)
    if first is None:
        return False
    opening: Opening = first.unpacked()
    try:
        keeper = open_keeper(opening, teller.statistics)
    except ArchiveUnusable as error:
        teller.unusable(str(error))
        return False
    teller.statistics(keeper.statistics())
    return keep_all(frames, keeper, gives_way=opening.gives_way)


def keep_all(frames: BinaryIO, keeper: Keeper, *, gives_way: bool) -> bool:
    """The same with a keeper that is open."""
    waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
    threading.Thread(target=read_all, args=(frames, waiting, keeper), name="archive-frames", daemon=True).start()
    try:
        keep_until_end(waiting, keeper, Turns(gives_way=gives_way))
        keeper.end()
    except (OSError, pa.ArrowException):
        LOGGER.exception("the end of the archive cannot be written")
        return False
    return True


def keep_until_end(waiting: queue.SimpleQueue[Waiting | None], keeper: Keeper, turns: Turns) -> None:
    """Keeps frame after frame, until None."""
    while True:
        if keeper.is_due:
            turns.do(keeper.look_after, lag_s=math.inf)  # soon done, and it must not wait
        try:
            one = waiting.get(timeout=LOOK_S)
        except queue.Empty:
            keeper.tell()
            continue
        if one is None:
            return
        since_s, frame = one
        lag_s = math.inf if keeper.ending.is_set() else time.monotonic() - since_s  # at the end somebody waits
        turns.do(keep, keeper, frame, lag_s=lag_s)


def keep(keeper: Keeper, frame: Frame) -> None:
    """Keeps what is in a frame."""
    keeper.keep(frame.unpacked())


def read_all(frames: BinaryIO, waiting: queue.SimpleQueue[Waiting | None], keeper: Keeper) -> None:
    """Takes frames in as they come: packed, they need far less room here than before they were."""
    while (frame := read_frame(frames)) is not None:
        waiting.put((time.monotonic(), frame))
    keeper.ending.set()
    waiting.put(None)


def main() -> int:
    """Exit code 0: all was kept, and the run's end is written."""
    # Only the daemon decides when it ends: these are sent to all processes of a terminal, or of a service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.set_threshold(YOUNG_MAX)
    teller = Teller(sys.stdout.buffer)
    logger = logging.getLogger("purgatory.archive")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(LogToDaemon(teller))
    return 0 if serve(sys.stdin.buffer, teller) else 1


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        LOGGER.exception("keeping the archive failed")
        code = 1
    os._exit(code)  # the thread that reads may still be waiting, and the interpreter would wait for it
