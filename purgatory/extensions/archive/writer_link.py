"""The daemon's side of the archive's writer process: starts it, sends it records, and restarts it when it dies.

Everything runs on the event loop and nothing blocks it: data that does not fit into the pipe waits in the transport's
buffer. The caller limits that buffer with `rows_waiting`. Needs no Arrow.
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
from purgatory.engine.batches import PartitionName
from purgatory.extensions.archive.records import Record, Span
from purgatory.extensions.archive.vocabulary import CannotArchive
from purgatory.extensions.archive.writer_protocol import WriterConfig, WriterStatistics, encode_frame, no_rows

LOGGER: Final = logging.getLogger(__name__)

PIPE_BYTES: Final = 1024 * 1024
"""Pipe size, enough for a whole frame: each part that has to be written later wakes the event loop."""
LINE_BYTES_MAX: Final = 1024 * 1024
RETRY_S: Final = 1.0
OPEN_S: Final = 15.0
"""Timeout for opening an object store. The store's own client would retry for three minutes."""
PROGRAM: Final = "purgatory.extensions.archive.writer_process"


class WriterLink:
    """A writer process that is restarted when it dies. Call `start` first and `close` at the end."""

    def __init__(self, config: WriterConfig, *, retry_s: float = RETRY_S) -> None:
        self.run_id: Final = config.run_id
        self.statistics = config.statistics
        """The last statistics that the process reported."""
        self.rows_waiting = 0
        """Rows that were sent and that no process has yet converted or lost."""
        self.errors = 0
        """Errors of processes that have died, plus one for each death and each failed restart."""
        self.rows_lost: Final[Counter[str]] = Counter()
        """Rows that such processes could not convert or had not moved into place, by table."""
        self._config: Final = config
        self._retry_s: Final = retry_s
        self._process: asyncio.subprocess.Process
        self._frames: asyncio.WriteTransport
        """Write end of the pipe to the process."""
        self._unplaced: Final[deque[Span]] = deque()
        """Records sent to this process and not yet reported to be in place."""
        self._has_process: Final = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None]

    @property
    def is_up(self) -> bool:
        return self._has_process.is_set()

    async def start(self) -> None:
        """Start the process. Raises `CannotArchive` if the archive cannot be opened, or not within `OPEN_S`."""
        await self._start_process(self._config)
        self._task = asyncio.create_task(self._listen(), name="archive writer")

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Send the records of some calls, in order, with the names that they refer to. Only allowed while `is_up`."""
        span, frame = Span(records), encode_frame((names, records))
        self.rows_waiting += span.rows.total()
        self._unplaced.append(span)
        self._frames.write(frame)

    async def close(self, timeout_s: float, send_rest: Callable[[], None]) -> bool:
        """Send the remaining records once there is a process, close the pipe, and wait for the process to exit.

        Return whether the end of the archive was written, and within `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_process.wait()
                send_rest()
                self._is_closing = True
                self._frames.close()  # after its buffer has been written
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
        """The next line from the process; lines for the log are logged and skipped. None: the process has ended."""
        assert self._process.stdout is not None, "asked for a pipe"
        while (text := await self._process.stdout.readline()).endswith(b"\n"):  # a truncated line also means the end
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
        """Continue the run in a new process after the current one died. Records not yet in place are lost."""
        if not self._frames.is_closing():  # the loop may already have noticed that the reader is gone
            self._frames.abort()
        self._has_process.clear()
        # `is_up` is false from here on, so nothing is sent. All counters change before the next await, so that metrics
        # never count a row twice or not at all.
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
        self.statistics = replace(died, rows_done=0, errors=0, rows_lost=no_rows())  # counted above
        code = await self._process.wait()
        LOGGER.error("the archive's writer process died (exit code %d); starting another", code)
        while not self.is_up:
            try:
                await self._start_process(self._config._replace(statistics=self.statistics, is_continued=True))
            except (CannotArchive, OSError) as reason:
                LOGGER.warning("cannot continue the archive: %s", reason)
                self.errors += 1
                await asyncio.sleep(self._retry_s)
        if lost:
            self.send((), lost[0].dropped_markers())
