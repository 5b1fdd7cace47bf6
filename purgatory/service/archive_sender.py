"""Sends the history away, to the keeper: a process of its own (`purgatory.archive.keeping_process`).

What rows and files cost is not taken from the event loop. The loop itself writes to the pipe, without waiting: each
time another thread did, the two would have to pass the interpreter to and fro. What the pipe has no room for, a thread
writes, and all that comes until it is through; the same thread begins another keeper when one has died, and the archive
says what was lost.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from purgatory.archive import words
from purgatory.archive.calls import CallStamp, marker_values
from purgatory.archive.frames import framed
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.archive.packing import Chunk, Packer
from purgatory.service.archive import ArchiveStatistics, CannotArchive
from purgatory.service.archive_keeper import Link, RemoteKeeper
from purgatory.service.archive_room import Room

LOGGER: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0


class Sent(NamedTuple):
    """What is sent in one frame, and may not be in its place yet."""

    first: CallStamp
    last_call_number: int
    rows: dict[str, int]
    """By table."""


class Outgoing(NamedTuple):
    """A frame that is still to be written; or the rest of one that was begun, of which `sent` is None."""

    sent: Sent | None
    parts: list[memoryview]


class ArchiveSender:
    """Sends what it is given to a keeper at the end of a new link. `start` it, `close` it at the end."""

    def __init__(self, room: Room, opening: Opening, new_link: Callable[[], Link], *, retry_s: float = RETRY_S) -> None:
        self._room: Final = room
        self._opening: Final = opening
        self._new_link: Final = new_link
        self._retry_s: Final = retry_s
        self._keeper: RemoteKeeper
        self._lock: Final = threading.Lock()
        """Of who writes: the thread, while there is anything that waits; else whoever sends."""
        self._waiting: Final[deque[Outgoing]] = deque()
        self._writes_itself = False
        """Whoever sends."""
        self._unrolled: Final[deque[Sent]] = deque()
        self._rows_sent = 0
        """To this keeper."""
        self._errors = 0
        """Those of keepers that are no more included."""
        self._rows_lost: Final = dict.fromkeys(words.TABLES, 0)
        """The same of rows."""
        self._closing: Final = threading.Event()
        self._is_late = False
        self._all_kept = False
        self._wake: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._work, name="archive", daemon=True)

    def start(self) -> None:
        """Begins to keep. Raises `CannotArchive` when the place cannot be written to."""
        self._keeper = self._new_keeper(self._opening)
        self._thread.start()
        self._wake.set()

    def send(self, chunk: Chunk, sent: Sent) -> None:
        """Sends a chunk, whose numbers need not stay valid. Never waits."""
        parts = framed(chunk)
        with self._lock:
            outgoing = Outgoing(sent, parts)
            if self._writes_itself:
                rest = self._write_now(outgoing)
                if rest is None:
                    return
                outgoing = rest
                self._writes_itself = False
            self._waiting.append(Outgoing(outgoing.sent, [memoryview(bytes(part)) for part in outgoing.parts]))
        self._wake.set()

    def close(self, timeout_s: float) -> bool:
        """Keeps what is left and ends; False: it could not, or not in this time."""
        self._closing.set()
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
        lost = (self._room.rows_dropped, self._rows_lost, told.rows_lost)
        return ArchiveStatistics(
            rows_kept=told.rows_kept,
            rows_dropped={table: sum(rows[table] for rows in lost) for table in words.TABLES},
            rows_waiting=self._room.rows,
            files=told.files,
            bytes=told.bytes,
            errors=self._errors + told.errors,
        )

    def _write_now(self, outgoing: Outgoing) -> Outgoing | None:
        """Writes as much as there is room for; returns what is left, if anything is."""
        try:
            rest = self._keeper.write_some(outgoing.parts)
        except OSError:
            return outgoing  # nothing of it will be kept: it is for the next keeper
        if rest is outgoing.parts:
            return outgoing
        self._note(outgoing.sent)
        return Outgoing(None, rest) if rest else None

    def _note(self, sent: Sent | None) -> None:
        """A frame was written, or begun: if the keeper dies now, it is lost."""
        if sent is not None:
            while self._unrolled and self._unrolled[0].last_call_number <= self._keeper.told.call_number:
                self._unrolled.popleft()
            self._unrolled.append(sent)
            self._rows_sent += sum(sent.rows.values())

    # The thread.

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait()
            self._wake.clear()
            is_last = self._closing.is_set()
            try:
                self._write_waiting()
            except OSError as error:
                is_last = not self._go_on(error)
                self._wake.set()
        self._all_kept = self._keeper.end() and not self._is_late

    def _write_waiting(self) -> None:
        """Writes all that waits. Raises OSError: the keeper is no more."""
        while True:
            if self._keeper.has_ended:
                raise BrokenPipeError("it has ended")
            with self._lock:
                if not self._waiting:
                    self._writes_itself = True
                    return
                sent, parts = self._waiting[0]
            self._keeper.write(parts)
            with self._lock:
                self._waiting.popleft()
                self._note(sent)

    def _go_on(self, error: OSError) -> bool:
        """The keeper is no more: begins another one, and says what was lost. False: there is no time left for it."""
        LOGGER.error("the process that keeps the archive has died (%s); another one goes on", error)
        self._errors += 1
        with self._lock:
            self._writes_itself = False
            if self._waiting and self._waiting[0].sent is None:
                self._waiting.popleft()
        told = self._bury()
        lost = [sent for sent in self._unrolled if sent.last_call_number > told.call_number]
        self._unrolled.clear()
        kept = told._replace(rows_done=0, errors=0, rows_lost=dict.fromkeys(words.TABLES, 0))
        markers = self._marked(lost) if lost else None
        while not self._is_late:
            if self._begin_again(self._opening._replace(kept=kept), markers):
                return True
            self._errors += 1
            if self._closing.is_set():
                return False
            self._closing.wait(self._retry_s)
        return False

    def _begin_again(self, opening: Opening, markers: Packer | None) -> bool:
        """Whether there is another keeper, and it could be sent these markers."""
        try:
            self._keeper = self._new_keeper(opening)
        except (CannotArchive, OSError) as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            return False
        if markers is None:
            return True
        self._rows_sent = sum(markers.rows.values())
        self._room.give_up(-self._rows_sent)
        try:
            self._keeper.write(framed(markers.take()))
        except OSError as reason:
            LOGGER.warning("cannot go on with the archive: %s", reason)
            self._bury()
            return False
        return True

    def _new_keeper(self, opening: Opening) -> RemoteKeeper:
        return RemoteKeeper(self._new_link(), opening, self._room.done, self._wake.set)

    def _bury(self) -> KeeperStatistics:
        """What the keeper had last said; what it was sent and said nothing of is lost."""
        self._keeper.end()
        told = self._keeper.told
        self._room.give_up(self._rows_sent - told.rows_done)
        self._rows_sent = 0
        return told

    def _marked(self, lost: list[Sent]) -> Packer:
        """Markers that say what the keeper before had been sent and had not put into its place."""
        packer = Packer()
        packer.begin_call(lost[0].first)
        for table in words.TABLES:
            rows = sum(sent.rows[table] for sent in lost)
            if rows:
                self._rows_lost[table] += rows
                last = lost[-1].last_call_number
                packer.add_row(
                    words.MARKERS, marker_values(words.DROPPED, table=table, rows=rows, last_call_number=last)
                )
        return packer
