"""The archive of a daemon, as its host sees it: numbers the engine calls and hands them to the thread that keeps them.

A call costs what it takes to note references to its lists, whatever is in them; rows are made in `archive_thread`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from purgatory.archive import schema
from purgatory.archive.rows import (
    NO_SESSION,
    CallStamp,
    Registrant,
    call_values,
    marker_values,
    registration_rows_count,
)
from purgatory.archive.wall_clock import wall_ms
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.completions import Completions
from purgatory.service.archive import ArchiveStatistics
from purgatory.service.archive_queue import Call, CallQueue, Gap, Part
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
        self._call: Call | None = None

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
        rows = registration_rows_count(kind, batch, receipt)
        if rows:
            values = (registrant_of(session), kind, batch, receipt, self._timeout_ms_default)
            self._begin(now_ms, schema.REGISTRATIONS, rows, values)

    def applied(self, batch: EventBatch, start: int, receipt: EventsReceipt, now_ms: int) -> None:
        """A slice of a batch of events. An empty batch changed nothing."""
        rows = receipt.next_index - start
        if rows:
            self._begin(now_ms, schema.EVENTS, rows, (batch, start, receipt))

    def cancelled(self, session: Session | None, operation_ids: list[int], ended: int, now_ms: int) -> None:
        """Some operations were cancelled by id."""
        number = registrant_of(session).session_number
        self._other(now_ms, call_values(schema.CANCEL, session_number=number, operation_ids=operation_ids, ended=ended))

    def cancelled_session(self, session: Session, ended: int, now_ms: int) -> None:
        """All of a session was cancelled."""
        self._other(now_ms, call_values(schema.CANCEL_SESSION, session_number=session.number, ended=ended))

    def cancelled_partition(self, name: PartitionName, ended: int, now_ms: int) -> None:
        """All that waited on a partition was cancelled."""
        topic, partition = name
        self._other(now_ms, call_values(schema.CANCEL_PARTITION, topic=topic, partition=partition, ended=ended))

    def cancelled_key(self, key: str, ended: int, now_ms: int) -> None:
        """All that waited on a key was cancelled."""
        values = call_values(schema.CANCEL_KEY, topic=key, partition=schema.NO_PARTITION, ended=ended)
        self._other(now_ms, values)

    def shut_down(self, ended: int, now_ms: int) -> None:
        """A slice of what was pending ended because the daemon ends."""
        self._other(now_ms, call_values(schema.SHUT_DOWN, ended=ended))

    def expired(self, now_ms: int) -> None:
        """The clock was advanced, and something expired: the call has no row of its own, only what it ended."""
        self.finish()
        self._call = Call(self._next_stamp(now_ms), [])

    def ended(self, session: Session | None, completions: Completions) -> None:
        """What the call ended, of one owner."""
        assert self._call is not None, f"{len(completions)} operations ended by no call"
        part = Part(schema.OUTCOMES, len(completions.item_partitions), (registrant_of(session), completions))
        self._call.parts.append(part)

    def finish(self) -> None:
        """Hands the call over."""
        call, self._call = self._call, None
        if call is not None:
            self._report(self._queue.put(call))

    def mark(self, marker: str, now_ms: int, detail: str | None = None) -> None:
        """A marker at this point of the run. It belongs to no call, so it has the number of the last one."""
        self.finish()
        self._report(self._queue.end_gap())
        stamp = self._stamp(self.last_call_number, now_ms)
        self._queue.force(Call(stamp, [Part(schema.MARKERS, 1, (marker_values(marker, detail=detail),))]))

    def _other(self, now_ms: int, values: dict[str, Any]) -> None:
        self._begin(now_ms, schema.CALLS, 1, (values,))

    def _begin(self, now_ms: int, table: str, rows: int, values: tuple[Any, ...]) -> None:
        self.finish()  # what was interrupted, if anything was, is history too
        self._call = Call(self._next_stamp(now_ms), [Part(table, rows, values)])

    def _next_stamp(self, now_ms: int) -> CallStamp:
        self.last_call_number += 1
        return self._stamp(self.last_call_number, now_ms)

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
            values = marker_values(schema.DROPPED, table=table, rows=rows, last_call_number=gap.last_call_number)
            self._queue.force(Call(gap.first, [Part(schema.MARKERS, 1, (values,))]))


def registrant_of(session: Session | None) -> Registrant:
    """Whose operations those of a session are."""
    return NO_SESSION if session is None else Registrant(session.number, session.session_id)
