"""The archive of a daemon, as its host sees it: numbers the engine calls and hands them to the thread that sends them
away to be kept.

To keep the lists that callers sent would cost the event loop more than to copy their numbers: fresh memory would be
needed for all that comes next. So a call is packed at once, in memory that goes round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from purgatory.archive import words
from purgatory.archive.event_pieces import event_pieces
from purgatory.archive.outcome_pieces import outcome_pieces
from purgatory.archive.pieces import NO_SESSION, Call, CallStamp, Part, Registrant, Row, call_values, marker_values
from purgatory.archive.registration_pieces import registration_pieces
from purgatory.archive.wall_clock import wall_ms
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.completions import Completions
from purgatory.engine.packed_columns import Piece
from purgatory.service.archive import ArchiveStatistics
from purgatory.service.archive_queue import CallQueue, Gap
from purgatory.service.sessions import Session

LOGGER: Final = logging.getLogger(__name__)

ANCHOR_MS: Final = 60_000
"""How long wall-clock time is reckoned from the engine's clock before it is looked at again."""

FULL_MESSAGE: Final = "the archive cannot keep up, and nothing may be lost from it; try again later"


class Recorder:
    """An `Archive` that keeps everything it is told. Used on the event loop only."""

    def __init__(
        self,
        run_id: str,
        queue: CallQueue,
        look: Callable[[], ArchiveStatistics],
        *,
        timeout_ms_default: int,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.run_id: Final = run_id
        self.last_call_number = 0
        self._queue: Final = queue
        self._look: Final = look
        self._timeout_ms_default: Final = timeout_ms_default
        self._wall_ms: Final = wall_ms
        self._wall_offset_ms = 0
        self._anchored_until_ms = -1
        self._called: CallStamp | None = None
        """The call that is being told of, if one is."""
        self._parts: list[Part] = []
        """What it adds to tables."""
        self._writer: Final = queue.writer

    @property
    def keeps(self) -> bool:
        """Yes."""
        return True

    def why_closed(self) -> str:
        """Strict, and the queue is full."""
        return FULL_MESSAGE if self._queue.is_closed else ""

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
            self._add(words.REGISTRATIONS, registration_pieces, whose, kind, batch, receipt, self._timeout_ms_default)

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt, now_ms: int) -> None:
        """A slice of a batch of events. An empty batch changed nothing."""
        if receipt.next_index > start:
            self._begin(now_ms)
            self._add(words.EVENTS, event_pieces, batch, start, receipt)

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
        self._add(words.OUTCOMES, outcome_pieces, registrant_of(session), completions)

    def finish(self) -> None:
        """Hands the call over."""
        called, self._called = self._called, None
        if called is not None:
            self._report(self._queue.put(Call(called, self._parts, self._writer.taken)))

    def mark(self, marker: str, now_ms: int, detail: str | None = None) -> None:
        """A marker at this point of the run. It belongs to no call, so it has the number of the last one."""
        self.finish()
        self._report(self._queue.end_gap())
        stamp = self._stamp(self.last_call_number, now_ms)
        self._queue.force(Call(stamp, [(words.MARKERS, marker_values(marker, detail=detail))]))

    def _other(self, now_ms: int, values: Row) -> None:
        self._begin(now_ms)
        self._parts.append((words.CALLS, values))

    def _begin(self, now_ms: int) -> None:
        self.finish()  # what was interrupted, if anything was, is history too
        self.last_call_number += 1
        self._called, self._parts = self._stamp(self.last_call_number, now_ms), []

    def _add(self, table: str, pack: Callable[..., list[Piece]], *values: Any) -> None:  # noqa: ANN401 - of its kind
        """Packs what the call adds to a table at once, while it is at hand: later it would cost several times as much.

        What cannot be packed is lost; the archive says so, and the call that waits for this one goes on.
        """
        try:
            for piece in pack(self._writer, *values):
                self._parts.append((table, piece))
        except Exception:
            LOGGER.exception("rows of %s of call %d cannot be packed, and are lost", table, self.last_call_number)
            self._queue.rows_dropped[table] += 1  # how many they are, nobody knows
            lost = marker_values(words.DROPPED, table=table, rows=1, last_call_number=self.last_call_number)
            self._parts.append((words.MARKERS, lost))

    def _stamp(self, call_number: int, now_ms: int) -> CallStamp:
        if now_ms >= self._anchored_until_ms:
            self._wall_offset_ms = self._wall_ms() - now_ms
            self._anchored_until_ms = now_ms + ANCHOR_MS
        return CallStamp(self.run_id, call_number, now_ms, now_ms + self._wall_offset_ms)

    def _report(self, gap: Gap | None) -> None:
        """Says in the archive what is missing from it."""
        if gap is None:
            return
        LOGGER.warning(
            "the archive could not keep up: %d rows of calls %d to %d were dropped",
            sum(gap.rows.values()),
            gap.first.call_number,
            gap.last_call_number,
        )
        for table, rows in gap.rows.items():
            values = marker_values(words.DROPPED, table=table, rows=rows, last_call_number=gap.last_call_number)
            self._queue.force(Call(gap.first, [(words.MARKERS, values)]))


def registrant_of(session: Session | None) -> Registrant:
    """Whose operations those of a session are."""
    return NO_SESSION if session is None else Registrant(session.number, session.session_id)
