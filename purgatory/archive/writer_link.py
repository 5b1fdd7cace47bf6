"""The daemon's side of the archive's writer process: starts it, sends it records, starts another one when it dies.

Everything is on the event loop and nothing blocks it: what the pipe has no room for waits in the transport's buffer.
How much that may be is the caller's to limit, by `rows_waiting`. Needs no Arrow.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import purgatory
from purgatory.archive.records import Record, row_record
from purgatory.archive.vocabulary import DROPPED, MARKERS, TABLES, CallStamp, CannotArchive, marker_values
from purgatory.archive.writer_protocol import WriterConfig, WriterStatistics, decode_line, encode_frame
from purgatory.engine.batches import PartitionName

LOGGER: Final = logging.getLogger(__name__)

PIPE_BYTES: Final = 1024 * 1024
"""Room for a whole frame: the loop is woken for each part that it has to write later."""
LINE_BYTES_MAX: Final = 1024 * 1024
RETRY_S: Final = 1.0
NO_ROWS: Final = dict.fromkeys(TABLES, 0)
PROGRAM: Final = "purgatory.archive.writer_process"


class Sent(NamedTuple):
    """What was sent at a time, and may not be in its place yet."""

    first: CallStamp
    last_call_number: int
    rows: dict[str, int]
    """By table."""


class WriterLink:
    """A writer process that is started again when it dies. `start` it; `close` it at the end."""

    def __init__(self, config: WriterConfig, *, retry_s: float = RETRY_S) -> None:
        self.statistics = WriterStatistics(0, NO_ROWS, NO_ROWS, 0, 0, 0, 0, 0, 0, {})
        """The last that the process said."""
        self.rows_waiting = 0
        """Rows that were sent, and that no process has made into columns or lost."""
        self.errors = 0
        """Of processes that died, and their deaths."""
        self.rows_lost: Final = dict.fromkeys(TABLES, 0)
        """Rows that such processes could not make, or had not put into their place, by table."""
        self._config: Final = config
        self._retry_s: Final = retry_s
        self._process: asyncio.subprocess.Process
        self._frames: asyncio.WriteTransport | None = None
        """To the process; None while there is none."""
        self._held: Final[list[tuple[Sequence[PartitionName], Sequence[Record]]]] = []
        """What is to be sent once there is one."""
        self._unplaced: Final[deque[Sent]] = deque()
        """What this process was sent and has not said to be in its place."""
        self._is_up: Final = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None]

    async def start(self) -> None:
        """Starts the process, which opens the archive. Raises `CannotArchive` where that cannot be written to."""
        await self._start_process(self._config)
        self._send_held([])
        self._task = asyncio.create_task(self._listen(), name="archive writer")

    def send(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Sends the records of some calls, in order, and the names that they point at."""
        self.rows_waiting += sum(record.rows for record in records)
        if self._frames is None:
            self._held.append((names, records))
            return
        rows = dict.fromkeys(TABLES, 0)
        for record in records:
            rows[record.table] += record.rows
        last = max(record.stamp.call_number for record in records)
        self._unplaced.append(Sent(records[0].stamp, last, rows))
        self._frames.write(encode_frame((names, records)))

    async def close(self, timeout_s: float) -> bool:
        """Says that nothing more comes, and waits for the end; False: it could not be written, or not in this time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_up.wait()
                self._is_closing = True
                assert self._frames is not None, "a process that is up has a pipe"
                self._frames.close()  # once its buffer is written
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
            start_new_session=True,  # Ctrl-C in a terminal is for the daemon
        )  # fmt: skip

    async def _start_process(self, config: WriterConfig) -> None:
        stdin, frames = os.pipe()
        with contextlib.suppress(OSError, AttributeError):  # more than is allowed, or not on Linux
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
        line = await self._read_line()
        if line is None or "statistics" not in line:
            transport.close()
            await self._process.wait()
            raise CannotArchive("the archive's writer process ended at once" if line is None else line["unusable"])
        self.statistics = WriterStatistics(**line["statistics"])
        self._frames = transport
        self._is_up.set()

    async def _read_line(self) -> dict[str, Any] | None:
        """What the process says next, but for what is only to be logged; None: it has ended."""
        assert self._process.stdout is not None, "asked for a pipe"
        while (line := decode_line(await self._process.stdout.readline())) is not None:
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
        """The process died: another one goes on with the run. What the first was sent and did not place is lost."""
        assert self._frames is not None, "it was up"
        if not self._frames.is_closing():  # the loop may have seen first that nobody reads any more
            self._frames.abort()
        self._frames = None
        self._is_up.clear()
        # All before the next await: from here on `send` holds, and counts what it holds.
        self.rows_waiting = 0
        self.errors += self.statistics.errors + 1
        markers = self._mark_unplaced()
        self.statistics = self.statistics._replace(rows_done=0, errors=0, rows_lost=NO_ROWS)  # they are counted here
        code = await self._process.wait()
        LOGGER.error("the archive's writer process died (exit code %d); another one goes on", code)
        while not await self._start_again():
            self.errors += 1
            await asyncio.sleep(self._retry_s)
        self._send_held(markers)

    def _send_held(self, markers: list[Record]) -> None:
        """Sends what was held while there was no process, after these markers."""
        held = self._held.copy()
        self._held.clear()
        self.rows_waiting = 0  # it is counted when it is sent
        if markers:
            self.send((), markers)
        for names, records in held:
            self.send(names, records)

    async def _start_again(self) -> bool:
        try:
            await self._start_process(self._config._replace(continued=self.statistics))
        except (CannotArchive, OSError) as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            return False
        return True

    def _mark_unplaced(self) -> list[Record]:
        """Counts what the process that died did not place as lost, and makes the markers that say so, if any."""
        lost = [sent for sent in self._unplaced if sent.last_call_number > self.statistics.call_number]
        self._unplaced.clear()
        markers: list[Record] = []
        for table in TABLES:
            rows = sum(sent.rows[table] for sent in lost)
            self.rows_lost[table] += rows + self.statistics.rows_lost[table]
            if rows:
                last = lost[-1].last_call_number
                values = marker_values(DROPPED, table=table, rows=rows, last_call_number=last)
                markers.append(row_record(MARKERS, lost[0].first, values))
        return markers
