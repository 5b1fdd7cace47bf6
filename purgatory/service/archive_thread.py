"""The thread that sends the history away: takes engine calls from the queue and hands them to the keeper.

The keeper is a process of its own (`purgatory.archive.keeping_process`): what rows and files cost is not taken from the
event loop. The thread looks every `TURN_S` rather than being told, so handing a call over costs no more than an append.
If the keeper dies, another one goes on, and the archive says what was lost.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.archive import words
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.archive.pieces import Call, CallStamp, Part, marker_values, rows_of
from purgatory.service.archive import ArchiveStatistics, CannotArchive
from purgatory.service.archive_keeper import Link, RemoteKeeper
from purgatory.service.archive_queue import CallQueue

LOGGER: Final = logging.getLogger(__name__)

TURN_S: Final = 0.01
IDLE_S: Final = 0.2
"""It looks less and less often while there is nothing."""
FRAMES_PER_TURN: Final = 1_000
FRAME_ROWS: Final = 16_384
RETRY_S: Final = 1.0


class Sent(NamedTuple):
    """What was sent and may not be in its place yet."""

    first: CallStamp
    last_call_number: int
    rows: dict[str, int]
    """By table."""


class ArchiveThread:
    """Sends what comes through `queue` to a keeper at the end of a new link. `start` it, `close` it at the end."""

    def __init__(
        self, queue: CallQueue, opening: Opening, new_link: Callable[[], Link], *, retry_s: float = RETRY_S
    ) -> None:
        self._queue: Final = queue
        self._opening: Final = opening
        self._new_link: Final = new_link
        self._retry_s: Final = retry_s
        self._keeper: RemoteKeeper
        self._unrolled: Final[deque[Sent]] = deque()
        self._rows_sent = 0
        """To this keeper."""
        self._errors = 0
        """Those of keepers that are no more included."""
        self._rows_lost: Final = dict.fromkeys(words.TABLES, 0)
        """The same of rows."""
        self._is_closing = False
        self._is_late = False
        self._all_kept = False
        self._wake: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._work, name="archive", daemon=True)

    def start(self) -> None:
        """Begins to keep. Raises `CannotArchive` when the place cannot be written to."""
        self._keeper = RemoteKeeper(self._new_link(), self._opening, self._queue.done)
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Keeps what is left and ends; False: it could not, or not in this time."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._is_late = True
            self._keeper.kill()
            self._thread.join()
        return self._all_kept

    def statistics(self) -> ArchiveStatistics:
        """What became of the rows so far."""
        told = self._keeper.told
        lost = (self._queue.rows_dropped, self._rows_lost, told.rows_lost)
        return ArchiveStatistics(
            rows_kept=told.rows_kept,
            rows_dropped={table: sum(rows[table] for rows in lost) for table in words.TABLES},
            rows_waiting=self._queue.rows,
            files=told.files,
            bytes=told.bytes,
            errors=self._errors + told.errors,
        )

    # The thread.

    def _work(self) -> None:
        pause_s, is_last = TURN_S, False
        while not is_last:
            self._wake.wait(pause_s)
            is_last = self._is_closing
            try:
                frames = self._turn(sys.maxsize if is_last else FRAMES_PER_TURN)
                pause_s = TURN_S if frames else min(pause_s * 2, IDLE_S)
            except OSError as error:
                is_last = not self._go_on(error)
        self._all_kept = self._keeper.end() and not self._is_late

    def _turn(self, frames_max: int) -> int:
        """Sends what has come, at most so many frames; returns how many there were. Raises OSError: no keeper."""
        if self._keeper.has_ended:
            raise BrokenPipeError("it has ended")
        frames = 0
        while frames < frames_max and self._send_next():
            frames += 1
        return frames

    def _send_next(self) -> bool:
        """Sends a frame of the next calls; False: there are none."""
        calls: list[Call] = []
        rows = dict.fromkeys(words.TABLES, 0)
        count = 0
        while count < FRAME_ROWS and (call := self._queue.take()) is not None:
            calls.append(call)
            for table, content in call.parts:
                more = rows_of(content)
                rows[table] += more
                count += more
        if not calls:
            return False
        while self._unrolled and self._unrolled[0].last_call_number <= self._keeper.told.call_number:
            self._unrolled.popleft()
        self._unrolled.append(Sent(calls[0].stamp, calls[-1].stamp.call_number, rows))
        self._rows_sent += count
        self._keeper.send([call.flat() for call in calls])
        self._queue.writer.give_back(calls[-1].taken)
        return True

    def _go_on(self, error: OSError) -> bool:
        """The keeper is no more: begins another one, and says what was lost. False: there is no time left for it."""
        LOGGER.error("the process that keeps the archive has died (%s); another one goes on", error)
        self._errors += 1
        told = self._bury()
        kept = told._replace(rows_done=0, errors=0, rows_lost=dict.fromkeys(words.TABLES, 0))
        opening = self._opening._replace(kept=kept)
        lost = [frame for frame in self._unrolled if frame.last_call_number > told.call_number]
        self._unrolled.clear()
        calls = [self._marked(lost)] if lost else []
        while not self._is_late:
            if self._begin_again(opening, calls):
                return True
            self._errors += 1
            if self._is_closing:
                return False
            self._wake.wait(self._retry_s)
        return False

    def _begin_again(self, opening: Opening, calls: list[Call]) -> bool:
        """Whether there is another keeper that could be sent these calls, of markers."""
        try:
            self._keeper = RemoteKeeper(self._new_link(), opening, self._queue.done)
        except (CannotArchive, OSError) as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            return False
        self._rows_sent = sum(len(call.parts) for call in calls)
        self._queue.give_up(-self._rows_sent)
        try:
            self._keeper.send([call.flat() for call in calls])
        except OSError as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            self._bury()
            return False
        return True

    def _bury(self) -> KeeperStatistics:
        """What the keeper had last said; what it was sent and said nothing of is lost."""
        self._keeper.end()
        told = self._keeper.told
        self._queue.give_up(self._rows_sent - told.rows_done)
        self._rows_sent = 0
        return told

    def _marked(self, lost: list[Sent]) -> Call:
        """Markers that say what the keeper before had been sent and had not put into its place."""
        tables = {table: sum(frame.rows[table] for frame in lost) for table in words.TABLES}
        parts: list[Part] = []
        for table, rows in tables.items():
            if rows:
                self._rows_lost[table] += rows
                values = marker_values(
                    words.DROPPED, table=table, rows=rows, last_call_number=lost[-1].last_call_number
                )
                parts.append((words.MARKERS, values))
        return Call(lost[0].first, parts)
