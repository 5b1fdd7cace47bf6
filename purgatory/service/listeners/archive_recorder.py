"""The archive of a daemon, as its host sees it: numbers the engine calls, packs them, and has them sent to be kept.

To keep the lists that callers sent would cost the event loop more than to copy their numbers: fresh memory would be
needed for all that comes next. So a call is packed at once, behind those before it, and many are sent together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from purgatory.archive import words
from purgatory.archive.calls import NO_SESSION, CallStamp, Registrant, Row, call_values, marker_values
from purgatory.archive.packing import Chunk, Packer
from purgatory.archive.wall_clock import wall_ms
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.completions import Completions
from purgatory.service.listeners.archive import ArchiveStatistics
from purgatory.service.listeners.archive_room import Room
from purgatory.service.listeners.archive_sender import Sent
from purgatory.service.sessions.session import Session

LOGGER: Final = logging.getLogger(__name__)

ANCHOR_MS: Final = 60_000
"""How long wall-clock time is reckoned from the engine's clock before it is looked at again."""

SEND_AFTER_S: Final = 0.1
"""What has come is sent at the latest then: a process that wakes up ten times a second costs all others less than one
that does so a hundred times,"""
SEND_NUMBERS: Final = 32_768
SEND_ROWS: Final = 262_144
"""or when it is so much: a frame that stays in the processor's nearest memory."""

FULL_MESSAGE: Final = "the archive cannot keep up, and nothing may be lost from it; try again later"


class Recorder:
    """An `Archive` that keeps everything it is told. Used on the event loop only."""

    def __init__(
        self,
        run_id: str,
        room: Room,
        send: Callable[[Chunk, Sent], None],
        look: Callable[[], ArchiveStatistics],
        *,
        timeout_ms_default: int,
        wall_ms: Callable[[], int] = wall_ms,
        send_rows: int = SEND_ROWS,
    ) -> None:
        self.run_id: Final = run_id
        self.last_call_number = 0
        self._room: Final = room
        self._send: Final = send
        self._look: Final = look
        self._timeout_ms_default: Final = timeout_ms_default
        self._wall_ms: Final = wall_ms
        self._send_rows: Final = send_rows
        self._wall_offset_ms = 0
        self._anchored_until_ms = -1
        self._packer: Final = Packer()
        self._called: CallStamp | None = None
        """The call that is being told of, if one is."""
        self._call_rows = 0
        """That it has made, behind these numbers and rows:"""
        self._numbers_before = 0
        self._rows_before: dict[str, int] = {}
        self._first: CallStamp | None = None
        """Of what is to be sent: the first call, the number of the last one, and how many rows there are."""
        self._last_number = 0
        self._rows = 0
        self._is_due = False
        """Whether what there is will be sent by itself."""

    @property
    def keeps(self) -> bool:
        """Yes."""
        return True

    def why_closed(self) -> str:
        """Strict, and the queue is full."""
        return FULL_MESSAGE if self._room.is_closed else ""

    def statistics(self) -> ArchiveStatistics | None:
        """What became of the rows so far."""
        return self._look()

    def registered(
        self, session: Session | None, kind: int, batch: OperationBatch, receipt: RegisterReceipt, now_ms: int
    ) -> None:
        """A batch of registrations. One of which all was known already changed nothing."""
        if len(batch.operation_ids) > receipt.already_known:
            self._begin(now_ms)
            whose = registrant_of(session)
            self._add(
                words.REGISTRATIONS, self._packer.add_batch, whose, kind, batch, receipt, self._timeout_ms_default
            )

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt, now_ms: int) -> None:
        """A slice of a batch of events. An empty batch changed nothing."""
        if receipt.next_index > start:
            self._begin(now_ms)
            self._add(words.EVENTS, self._packer.add_slice, batch, start, receipt)

    def cancelled(self, session: Session | None, operation_ids: list[int], ended: int, now_ms: int) -> None:
        """Some operations were cancelled by id."""
        number = registrant_of(session).session_number
        self._other(now_ms, call_values(words.CANCEL, session_number=number, operation_ids=operation_ids, ended=ended))

    def cancelled_session(self, session: Session, ended: int, now_ms: int) -> None:
        """All of a session was cancelled."""
        self._other(now_ms, call_values(words.CANCEL_SESSION, session_number=session.number, ended=ended))

    def cancelled_partition(self, name: PartitionName, ended: int, now_ms: int) -> None:
        """All that waited on a partition was cancelled."""
        topic, partition = name
        self._other(now_ms, call_values(words.CANCEL_PARTITION, topic=topic, partition=partition, ended=ended))

    def cancelled_key(self, key: str, ended: int, now_ms: int) -> None:
        """All that waited on a key was cancelled."""
        values = call_values(words.CANCEL_KEY, topic=key, partition=words.NO_PARTITION, ended=ended)
        self._other(now_ms, values)

    def shut_down(self, ended: int, now_ms: int) -> None:
        """A slice of what was pending ended because the daemon ends."""
        self._other(now_ms, call_values(words.SHUT_DOWN, ended=ended))

    def expired(self, now_ms: int) -> None:
        """The clock was advanced, and something expired: the call has no row of its own, only what it ended."""
        self._begin(now_ms)

    def ended(self, session: Session | None, completions: Completions) -> None:
        """What the call ended, of one owner."""
        assert self._called is not None, f"{len(completions)} operations ended by no call"
        self._add(words.OUTCOMES, self._packer.add_completions, registrant_of(session), completions)

    def finish(self) -> None:
        """Keeps the call, or drops it when there is no room. Sends what there is when it is enough."""
        called, self._called = self._called, None
        if called is None:
            return
        packer = self._packer
        if not self._room.take(self._call_rows):
            before = self._rows_before
            self._room.drop(called, {table: rows - before[table] for table, rows in packer.rows.items()})
            if self._first is None:
                packer.clear()  # names and all: it may be long until something is sent
            else:
                packer.cut(self._numbers_before, before)
            return
        self._rows += self._call_rows
        self._last_number = called.call_number
        if self._first is None:
            self._first = called
        self._report_gap()
        if self._rows >= self._send_rows or packer.numbers >= SEND_NUMBERS:
            self.send()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SEND_AFTER_S, self._send_late)

    def mark(self, marker: str, now_ms: int, detail: str | None = None) -> None:
        """A marker at this point of the run. It belongs to no call, so it has the number of the last one. Sends all."""
        self.finish()
        self._report_gap()
        self._mark(self._stamp(self.last_call_number, now_ms), marker_values(marker, detail=detail))
        self.send()

    def send(self) -> None:
        """Sends what there is."""
        if self._first is not None:
            packer = self._packer
            self._send(packer.take(), Sent(self._first, self._last_number, dict(packer.rows)))
            packer.clear()
            self._first, self._rows = None, 0

    def _send_late(self) -> None:
        self._is_due = False
        if self._called is None:
            self.send()

    def _other(self, now_ms: int, values: Row) -> None:
        self._begin(now_ms)
        self._call_rows += self._packer.add_row(words.CALLS, values)

    def _begin(self, now_ms: int) -> None:
        if self._called is not None:
            self.finish()  # what was interrupted is history too
        self.last_call_number += 1
        self._called = called = self._stamp(self.last_call_number, now_ms)
        packer = self._packer
        packer.begin_call(called)
        self._call_rows, self._numbers_before, self._rows_before = 0, packer.numbers, packer.rows.copy()

    def _add(self, table: str, pack: Callable[..., int], *values: Any) -> None:  # noqa: ANN401 - of its kind
        """Packs what the call adds to a table.

        What cannot be packed is lost; the archive says so, and the call that waits for this one goes on.
        """
        try:
            self._call_rows += pack(*values)
        except Exception:
            LOGGER.exception("rows of %s of call %d cannot be packed, and are lost", table, self.last_call_number)
            self._room.rows_dropped[table] += 1  # how many they are, nobody knows
            lost = marker_values(words.DROPPED, table=table, rows=1, last_call_number=self.last_call_number)
            self._call_rows += self._packer.add_row(words.MARKERS, lost)

    def _stamp(self, call_number: int, now_ms: int) -> CallStamp:
        if now_ms >= self._anchored_until_ms:
            self._wall_offset_ms = self._wall_ms() - now_ms
            self._anchored_until_ms = now_ms + ANCHOR_MS
        return CallStamp(self.run_id, call_number, now_ms, now_ms + self._wall_offset_ms)

    def _mark(self, stamp: CallStamp, values: Row) -> None:
        self._packer.begin_call(stamp)
        self._room.force(self._packer.add_row(words.MARKERS, values))
        if self._first is None:
            self._first, self._last_number = stamp, stamp.call_number

    def _report_gap(self) -> None:
        """Says in the archive what is missing from it, if anything was dropped until now."""
        gap = self._room.end_gap()
        if gap is None:
            return
        LOGGER.warning(
            "the archive could not keep up: %d rows of calls %d to %d were dropped",
            sum(gap.rows.values()),
            gap.first.call_number,
            gap.last_call_number,
        )
        for table, rows in gap.rows.items():
            if rows:
                last = gap.last_call_number
                self._mark(gap.first, marker_values(words.DROPPED, table=table, rows=rows, last_call_number=last))


def registrant_of(session: Session | None) -> Registrant:
    """Whose operations those of a session are."""
    return NO_SESSION if session is None else _registrant(session.number, session.session_id)


@lru_cache(1_024)
def _registrant(number: int, session_id: str) -> Registrant:
    return Registrant(number, session_id)
