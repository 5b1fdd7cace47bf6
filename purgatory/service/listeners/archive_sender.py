"""Sends the history away, to the keeper: a process of its own (`purgatory.archive.keeping_process`).

What rows and files cost is not taken from the event loop. The loop itself writes to the pipe, without waiting: each
time another thread did, the two would have to pass the interpreter to and fro. What the pipe has no room for, a thread
writes, and all that comes until it is through; the same thread begins another keeper when one has died, and the archive
says what was lost.

There is no lock: the thread writes while anything is in `_waiting`, and takes a frame out when it is through with it;
else whoever sends does. So one of them alone has the pipe, and what is noted of it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from purgatory.service.listeners.archive import ArchiveStatistics, CannotArchive
from purgatory.service.listeners.archive_keeper import Link, RemoteKeeper
from purgatory.service.listeners.archive_room import Room

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
        self._loop: asyncio.AbstractEventLoop
        """That sends."""
        self._waiting: Final[deque[Outgoing]] = deque()
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
        """Begins to keep what the running loop sends. Raises `CannotArchive` when the place cannot be written to."""
        self._loop = asyncio.get_running_loop()
        self._keeper = self._new_keeper(self._opening)
        self._thread.start()
        self._wake.set()

    def send(self, chunk: Chunk, sent: Sent) -> None:
        """Sends a chunk, whose numbers need not stay valid. Never waits."""
        outgoing = Outgoing(sent, framed(chunk))
        rest = outgoing if self._waiting or not self._thread.is_alive() else self._write_now(outgoing)
        if rest is not None:
            self._hand_over(Outgoing(rest.sent, [memoryview(bytes(part)) for part in rest.parts]))

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

    def _hand_over(self, outgoing: Outgoing) -> None:
        """From now on the thread writes, until it is through."""
        self._waiting.append(outgoing)
        self._wake.set()

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
            if not (is_last or self._waiting):
                self._ask()
                continue
            try:
                self._write_waiting()
            except OSError as error:
                is_last = not self._go_on(error)
                self._wake.set()
        self._all_kept = self._keeper.end() and not self._is_late

    def _ask(self) -> None:
        """If the keeper is no more, whoever sends is to hand over. Once the loop is closed, nobody sends."""
        if self._keeper.has_ended:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over, Outgoing(None, []))

    def _write_waiting(self) -> None:
        """Writes all that waits. Raises OSError: the keeper is no more."""
        while True:
            if not (self._waiting or self._closing.is_set()):
                return
            if self._keeper.has_ended:
                raise BrokenPipeError("it has ended")
            if not self._waiting:
                return
            sent, parts = self._waiting[0]
            self._keeper.write(parts)
            self._note(sent)
            self._waiting.popleft()

    def _go_on(self, error: OSError) -> bool:
        """The keeper is no more: begins another one, and says what was lost. False: there is no time left for it."""
        LOGGER.error("the process that keeps the archive has died (%s); another one goes on", error)
        self._errors += 1
        told = self._bury()
        lost = [sent for sent in self._unrolled if sent.last_call_number > told.call_number]
        self._unrolled.clear()
        kept = told._replace(rows_done=0, errors=0, rows_lost=dict.fromkeys(words.TABLES, 0))
        markers = self._marked(lost) if lost else None
        while not self._is_late:
            if self._begin_again(self._opening._replace(kept=kept), markers):
                if self._waiting and self._waiting[0].sent is None:  # the rest of one that is lost
                    self._waiting.popleft()
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
