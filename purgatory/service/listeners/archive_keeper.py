"""The process that keeps the archive, as the daemon sees it: what it is sent, and what it says of itself."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import purgatory
from purgatory.archive.frames import framed, read_line
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.service.listeners.archive import CannotArchive

LOGGER: Final = logging.getLogger(__name__)

PIPE_BYTES: Final = 1024 * 1024
"""Room for several frames, so that mostly nothing has to wait."""
LOOK_MS: Final = 1_000
"""How often whoever waits for room looks whether anybody still reads."""
PROGRAM: Final = "purgatory.archive.keeping_process"


class Link(Protocol):
    """The way to a keeper and back."""

    frames: BinaryIO
    """To the keeper."""
    lines: BinaryIO
    """From the keeper."""

    def wait(self) -> bool:
        """Waits until it has ended; whether it could write all, and the end."""

    def kill(self) -> None:
        """Ends it at once."""


class KeeperProcess:
    """A `Link` to a new process. It belongs to no terminal's foreground: Ctrl-C is for the daemon."""

    def __init__(self) -> None:
        found_in = str(Path(purgatory.__file__).parents[1])
        path = os.pathsep.join(filter(None, (found_in, os.environ.get("PYTHONPATH"))))
        self._process: Final = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-P", "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        assert self._process.stdin is not None, "asked for a pipe"
        assert self._process.stdout is not None, "asked for a pipe"
        self.frames: BinaryIO = self._process.stdin  # type: ignore[assignment]
        self.lines: BinaryIO = self._process.stdout  # type: ignore[assignment]
        with contextlib.suppress(OSError, AttributeError):  # more than is allowed, or not on Linux
            fcntl.fcntl(self.frames, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def wait(self) -> bool:
        """Waits until it has ended; whether it could write all, and the end."""
        return self._process.wait() == 0

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()


class RemoteKeeper:
    """A keeper that is open. What it says is heard on a thread of its own: there `heard` is called with rows that are
    done, and `ended` when it says nothing any more.
    """

    def __init__(self, link: Link, opening: Opening, heard: Callable[[int], None], ended: Callable[[], None]) -> None:
        """Opens the archive. Raises `CannotArchive` where it cannot be written to."""
        self.has_ended = False
        """It says nothing any more."""
        self.told: KeeperStatistics
        """The last that it said of itself."""
        self._link: Final = link
        self._heard: Final = heard
        self._ended: Final = ended
        os.set_blocking(link.frames.fileno(), False)
        self.told = self._open(opening)
        self._listener: Final = threading.Thread(target=self._listen, name="archive-told", daemon=True)
        self._listener.start()

    def write_some(self, parts: list[memoryview]) -> list[memoryview]:
        """Writes as much of a frame as there is room for, and returns the rest: the same list if it is all of it.

        Raises OSError when the keeper is no more.
        """
        if self._link.frames.closed:
            raise BrokenPipeError("nothing is sent to it any more")
        try:
            written = os.writev(self._link.frames.fileno(), parts)
        except BlockingIOError:
            return parts
        rest = parts.copy()
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]
        return rest

    def write(self, parts: list[memoryview]) -> None:
        """Writes a frame, or the rest of one, and waits for room. Raises OSError when the keeper is no more."""
        while parts := self.write_some(parts):
            waiting = select.poll()
            waiting.register(self._link.frames, select.POLLOUT)
            waiting.poll(LOOK_MS)

    def end(self) -> bool:
        """Says that nothing more comes, and waits until it has ended; whether it could write all, and the end."""
        with contextlib.suppress(OSError):
            self._link.frames.close()
        all_kept = self._link.wait()
        self._listener.join()
        self._link.lines.close()
        return all_kept

    def kill(self) -> None:
        """Ends it at once."""
        self._link.kill()

    def _open(self, opening: Opening) -> KeeperStatistics:
        line = None
        with contextlib.suppress(OSError):
            self.write(framed(opening))
            line = read_line(self._link.lines)
        if line is not None and "statistics" in line:
            return KeeperStatistics(**line["statistics"])
        self._link.kill()
        self._link.wait()
        self._link.lines.close()
        why_not = "the process that should keep it ended at once" if line is None else line["unusable"]
        raise CannotArchive(why_not)

    def _listen(self) -> None:
        while (line := read_line(self._link.lines)) is not None:
            if "message" in line:
                LOGGER.log(line["level"], "%s", line["message"])
                continue
            before, self.told = self.told, KeeperStatistics(**line["statistics"])
            self._heard(self.told.rows_done - before.rows_done)
        self.has_ended = True
        self._ended()
