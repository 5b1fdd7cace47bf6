"""The daemon's side of the archive writer: starts the process, sends it records, and restarts it when it dies.

Everything runs on the event loop without blocking it: data that does not fit into the pipe stays in the transport's
buffer. The caller limits its size by `rows_waiting`. Needs no Arrow.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import purgatory
from purgatory.archive.records import Record, Span
from purgatory.archive.vocabulary import CannotArchive
from purgatory.archive.writer_protocol import WriterConfig, WriterStatistics, encode_frame, no_rows
from purgatory.engine.batches import PartitionName

LOGGER: Final = logging.getLogger(__name__)

PIPE_BYTES: Final = 1024 * 1024
"""Enough for a whole frame. With a smaller pipe the loop wakes up again for each remaining part."""
LINE_BYTES_MAX: Final = 1024 * 1024
RETRY_S: Final = 1.0
OPEN_S: Final = 15.0
"""Timeout for opening the archive; the client of an object store would try for three minutes."""
PROGRAM: Final = "purgatory.archive.writer_process"


class WriterLink:
    """A writer process that is restarted when it dies. Call `start` first and `close` at the end."""

    def __init__(self, config: WriterConfig, *, retry_s: float = RETRY_S) -> None:
        self.run_id: Final = config.run_id
        self.statistics = config.statistics
        """The statistics last reported by the process."""
        self.rows_waiting = 0
        """Rows that were sent and are neither converted to columns nor lost yet."""
        self.errors = 0
        """Errors of processes that have died, plus one for each death."""
        self.rows_lost: Final[Counter[str]] = Counter()
        """Rows by table that such processes could not convert, or had not stored in complete files."""
        self._config: Final = config
        self._retry_s: Final = retry_s
        self._process: asyncio.subprocess.Process
        self._frames: asyncio.WriteTransport
        """Write end of the process's stdin."""
        self._unplaced: Final[deque[Span]] = deque()
        """Calls that were sent to this process and that it has not reported as stored."""
        self._has_process: Final = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None]

    @property
    def is_up(self) -> bool:
        """Whether a process is running that accepts records."""
        return self._has_process.is_set()

    async def start(self) -> None:
        """Starts the process, which opens the archive.

        Raises:
            CannotArchive: The archive cannot be written to, or its store did not answer within `OPEN_S`.
        """
        await self._start_process(self._config)
        self._task = asyncio.create_task(self._listen(), name="archive writer")

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Sends the records of further calls, in order, with the names they refer to. Call it only while `is_up`."""
        span = Span(records)
        self.rows_waiting += span.rows.total()
        self._unplaced.append(span)
        self._frames.write(encode_frame((names, records)))

    async def close(self, timeout_s: float, send_rest: Callable[[], None]) -> bool:
        """Sends the rest, closes the pipe, and waits until the process has ended.

        Args:
            timeout_s: After this time (seconds) the process is killed.
            send_rest: Called once a process is running; sends the records that the caller still has.

        Returns:
            Whether everything was stored in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_process.wait()
                send_rest()
                self._is_closing = True
                self._frames.close()  # closes after the buffer has been written
                await self._task
                return await self._process.wait() == 0
        except TimeoutError:
            self._task.cancel()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            return False

    async def _spawn(self, stdin: int) -> asyncio.subprocess.Process:
        found_in = str(Path(purgatory.__file__).parents[1])
        path = os.pathsep.join(filter(None, (found_in, os.environ.get("PYTHONPATH"))))
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", PROGRAM,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            limit=LINE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C in a terminal must reach the daemon only
        )  # fmt: skip

    async def _start_process(self, config: WriterConfig) -> None:
        stdin, frames = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # above the system's limit, or not on Linux
            fcntl.fcntl(frames, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            self._process = await self._spawn(stdin)
        except BaseException:
            os.close(frames)
            raise
        finally:
            os.close(stdin)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(frames, "wb", 0))
        transport.write(encode_frame(config))
        try:
            async with asyncio.timeout(OPEN_S):
                line = await self._read_line()
        except TimeoutError:
            self._process.kill()
            line = {"unusable": f"the store of the archive {config.place} did not answer within {OPEN_S:g} s"}
        if line is None or "statistics" not in line:
            transport.close()
            await self._process.wait()
            raise CannotArchive("the archive's writer process ended at once" if line is None else line["unusable"])
        self.statistics = WriterStatistics(**line["statistics"])
        self._frames = transport
        self._has_process.set()

    async def _read_line(self) -> dict[str, Any] | None:
        """The next statistics from the process; lines for the log are logged. None: the process has ended."""
        assert self._process.stdout is not None, "asked for a pipe"
        while (text := await self._process.stdout.readline()).endswith(b"\n"):  # an incomplete line means the end, too
            line: dict[str, Any] = json.loads(text)
            if "message" not in line:
                return line
            LOGGER.log(line["level"], "%s", line["message"])
        return None

    async def _listen(self) -> None:
        while True:
            while (line := await self._read_line()) is not None:
                before, self.statistics = self.statistics, WriterStatistics(**line["statistics"])
                self.rows_waiting -= self.statistics.rows_done - before.rows_done
                while self._unplaced and self._unplaced[0].last_call_number <= self.statistics.call_number:
                    self._unplaced.popleft()
            if self._is_closing:
                return
            await self._start_another()

    async def _start_another(self) -> None:
        """Replaces a process that died; the new one continues the run. Records not stored by the old one are lost."""
        if not self._frames.is_closing():  # the loop may have noticed the broken pipe before us
            self._frames.abort()
        self._has_process.clear()
        # Before the next await, so that no record is sent in between.
        died = self.statistics
        self.rows_waiting = 0
        self.errors += died.errors + 1
        self.rows_lost.update(died.rows_lost)
        lost = list(self._unplaced)
        self._unplaced.clear()
        for span in lost[1:]:
            lost[0].extend(span)
        if lost:
            self.rows_lost.update(lost[0].rows)
        self.statistics = replace(
            died, rows_done=0, errors=0, rows_lost=no_rows()
        )  # this object has added them to its own counts
        code = await self._process.wait()
        LOGGER.error("the archive's writer process died (exit code %d); another one goes on", code)
        while not await self._start_again():
            self.errors += 1
            await asyncio.sleep(self._retry_s)
        if lost:
            self.send((), lost[0].dropped_markers())

    async def _start_again(self) -> bool:
        try:
            await self._start_process(self._config._replace(statistics=self.statistics, is_continued=True))
        except (CannotArchive, OSError) as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            return False
        return True
