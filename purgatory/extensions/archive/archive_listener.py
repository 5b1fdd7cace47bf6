"""Host listener that numbers the engine calls, turns them into records, and sends these to the writer process.

At most `QUEUE_ROWS_MAX` rows wait. When the queue is full, whole calls are dropped until half of it is free again: one
long gap is easier to work with than many short ones. With `strict` nothing is dropped; instead, `reason_to_refuse`
reports that no new work should be accepted.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import compress
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from purgatory import __version__, sizes
from purgatory.engine import calls, codes
from purgatory.engine.batches import Refusal
from purgatory.engine.limits import EngineLimits
from purgatory.engine.snapshot.snapshots import Snapshots
from purgatory.extensions.archive import vocabulary
from purgatory.extensions.archive.records import (
    Names,
    Record,
    Span,
    completion_records,
    event_records,
    registration_records,
    row_record,
)
from purgatory.extensions.archive.run_details import LIMIT_NAMES, RunDetails, new_run_id, saved_marks, wall_ms
from purgatory.extensions.archive.vocabulary import NO_SESSION, CallStamp, CannotArchive, Registrant
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.extensions.archive.writer_protocol import WriterConfig, WriterStatistics
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.recovery import OpenJournal
from purgatory.service.sessions.session import Session
from purgatory.service.settings import DurationMs, EngineSettings, SettingsGroup, setting

LOGGER: Final = logging.getLogger(__name__)

ANCHOR_MS: Final = 60_000
"""Wall-clock time is derived from the engine's clock for at most this long before the wall clock is read again."""
SEND_AFTER_S: Final = 0.1
"""Maximum delay before recorded rows are sent. A writer process that wakes ten times a second costs other processes
less than one that wakes a hundred times.
"""
SEND_ROWS: Final = 16_384
"""Number of rows that are sent immediately; pickling and writing them takes the event loop about a millisecond."""

QUEUE_ROWS_MAX: Final = 4_000_000
"""Rows that may wait in memory for the disk: 50 to 150 bytes each."""
ROW_BYTES: Final = 100
"""Estimated memory of a row that waits to be sent."""

FULL_MESSAGE: Final = "the archive cannot keep up, and nothing may be lost from it; try again later"


class ArchiveSettings(SettingsGroup):
    """Archive: the history of all calls and outcomes, as Parquet (docs/archive.md)."""

    uri: str | None = setting(
        None,
        "Keep history here: a folder, or a URI (file, s3, gs, hdfs). Short flag: --archive.",
        short_flag="--archive",
        min_length=1,
    )
    strict: bool = setting(
        False, "If history cannot be written fast enough, refuse registrations and events instead of dropping history."
    )
    roll_ms: DurationMs = setting(60_000, "Complete files this often; a crash loses at most this much history.")


class ArchiveListener(Listener):
    """Records every call. Use it on the event loop only, and call `close` at the end."""

    def __init__(
        self,
        link: WriterLink,
        settings: ArchiveSettings,
        timeout_ms_default: int,
        wall_ms: Callable[[], int] = wall_ms,
        rows_max: int = QUEUE_ROWS_MAX,
    ) -> None:
        self.last_call_number = 0
        self._run_id: Final = link.run_id
        self._link: Final = link
        self._rows_max: Final = rows_max
        self._is_strict: Final = settings.strict
        self._timeout_ms_default: Final = timeout_ms_default
        self._wall_ms: Final = wall_ms
        self._wall_offset_ms = 0
        self._anchored_until_ms = -1
        self._call: CallStamp | None = None
        """The call in progress, if any."""
        self._records: Final[list[Record]] = []
        """Records not yet sent. Those from index `_call_start` on belong to the call in progress."""
        self._call_start = 0
        self._names: Final[Names] = {}
        """Names used by the records; from position `_call_first_name` on, only by the call in progress."""
        self._call_first_name = 0
        self._unsent_rows = 0
        """Unsent rows of finished calls."""
        self._timer: asyncio.TimerHandle | None = None
        self._gap: Span | None = None
        """Consecutive calls that were dropped and are not yet recorded as a gap."""
        self._rows_dropped: Final[Counter[str]] = Counter()
        """Dropped rows by table, including those of the current gap."""
        self._was_closed = False

    @property
    def rows_waiting(self) -> int:
        """Rows that have not been converted by the writer process yet."""
        return self._link.rows_waiting + self._unsent_rows

    def held_bytes(self) -> int:
        """Memory of the unsent rows; rows already sent are held by the writer process."""
        return self._unsent_rows * ROW_BYTES

    def reason_to_refuse(self) -> Refusal | None:
        """With `strict`, refuse from the moment the queue is full until it is half empty."""
        if self._is_strict:
            limit = self._rows_max // 2 if self._was_closed else self._rows_max - 1
            self._was_closed = self.rows_waiting > limit
        return Refusal(0, codes.UNAVAILABLE, "", FULL_MESSAGE) if self._was_closed else None

    def rows_dropped(self, table: str) -> int:
        """Rows of a table that were dropped because the queue was full, or that could not be built or written."""
        link = self._link
        return self._rows_dropped[table] + link.rows_lost[table] + link.statistics.rows_lost[table]

    def metrics(self) -> Iterable[Metric]:
        statistics = self._link.statistics
        kept = CounterMetricFamily("purgatory_archive_rows", "Rows of history written to files.", labels=["table"])
        dropped = CounterMetricFamily("purgatory_archive_dropped_rows", "Rows of history lost.", labels=["table"])
        for table in vocabulary.TABLES:
            kept.add_metric([table], statistics.rows_kept[table])
            dropped.add_metric([table], self.rows_dropped(table))
        errors = self._link.errors + statistics.errors
        return (
            kept,
            dropped,
            GaugeMetricFamily("purgatory_archive_queue_rows", "Rows of history waiting in memory.", self.rows_waiting),
            CounterMetricFamily("purgatory_archive_files", "Files of history written.", statistics.files),
            CounterMetricFamily("purgatory_archive_bytes", "Bytes of history written.", statistics.bytes),
            CounterMetricFamily("purgatory_archive_errors", "Failed attempts to write history.", errors),
        )

    # Engine calls.

    def called(self, event: Called) -> None:
        """Record a call, unless it has changed nothing: all operations of a batch were known, or nothing was due."""
        receipt, now_ms, session = event.receipt, event.now_ms, event.session
        number = NO_SESSION.session_number if session is None else session.number
        match event.call:
            case calls.Register(kind=kind, batch=batch):
                if len(batch.operation_ids) > receipt.already_known:
                    call, whose = self._begin(now_ms), registrant_of(session, event.principal)
                    default_ms = self._timeout_ms_default
                    self._add(
                        vocabulary.REGISTRATIONS, registration_records, call, whose, kind, batch, receipt, default_ms
                    )
            case calls.Apply(batch=events, start=start):
                if receipt.next_index > start:
                    call, whose = self._begin(now_ms), registrant_of(None, event.principal)
                    self._add(vocabulary.EVENTS, event_records, call, whose, events, start, receipt)
            case calls.PassTime():
                # The call itself has no row, only the outcomes have.
                if receipt.ended:
                    self._begin(now_ms)
            case calls.Cancel(operation_ids=ids):
                # A call of Wait that ends cancels what is left of it, which is nothing most of the time.
                if session is not None or receipt.ended:
                    ids = [min(one, vocabulary.INT64_MAX) for one in ids[: len(receipt.were_pending)]]
                    self._add_call(event, session_number=number, operation_ids=ids)
            case calls.CancelAll():
                assert session is not None, "unary waits are cancelled by id"
                if receipt.ended or not session.dropped:
                    self._add_call(event, session_number=number)
            case calls.CancelName(name=(topic, partition)):
                self._add_call(event, topic=topic, partition=partition)
            case calls.Extend(operation_ids=ids, timeout_ms=timeout_ms):
                if extended := list(compress(ids, receipt.were_pending)):
                    self._add_call(event, session_number=number, operation_ids=extended, timeout_ms=timeout_ms)
            case calls.FailStale(operation_ids=ids, stale=stale):
                # A row for each stale partition. Only the first has the operations, so that they are counted once.
                stamp, ids, ended = self._begin(now_ms), ids[: len(receipt.were_pending)], receipt.ended
                for topic, partition in sorted(stale):
                    self._add_row(
                        stamp, event.call, ended, session_number=number, topic=topic, partition=partition,
                        operation_ids=ids,
                    )  # fmt: skip
                    ids, ended = [], 0
            case calls.ShutDown():
                if receipt.ended:
                    self._add_call(event)
            case calls.Pause(pause_ms=pause_ms):
                if not receipt.unchanged:
                    self._add_call(event, timeout_ms=pause_ms)

    def refused_unseen(self, event: Called) -> None:
        """Record the batch, unless the archive itself is the reason for the refusal: then its queue is full."""
        if self.reason_to_refuse() is None:
            self.called(event)
            self.call_finished()

    def completed(self, event: Completed) -> None:
        call, whose, completions = self._call, registrant_of(event.session, event.principal), event.completions
        assert call is not None, f"{len(completions)} operations ended by no call"
        self._add(vocabulary.OUTCOMES, completion_records, call, whose, completions)

    def discarded(self, event: Completed) -> None:
        self.completed(event)

    def call_finished(self) -> None:
        """Keep the call, or drop it if the queue is full. Send the records if there are enough."""
        if self._call is None:
            return
        self._call = None
        records = self._records[self._call_start :]
        if not records:
            return
        rows = sum(record.rows for record in records)
        if not self._has_room(rows):
            self._drop(records)
            return
        self._unsent_rows += rows
        # The marker follows the records of this call, although its call number is lower (see `Span`).
        self._report_gap()
        if self._unsent_rows >= SEND_ROWS:
            self.send()
        else:
            self._send_soon()

    # The beginning and the end of the run.

    def mark_state(self, snapshots: Snapshots, now_ms: int) -> None:
        """Add what the engine knows before the first call, for a run that continues a journal."""
        stamp = self._stamp(self.last_call_number, now_ms)
        marks = saved_marks(snapshots)
        self._add_markers([row_record(vocabulary.MARKERS, stamp, marker=vocabulary.MARKS, detail=one) for one in marks])
        self.send()

    def mark(self, marker: str, now_ms: int) -> None:
        """Add a marker at this point of the run and send everything.

        A marker belongs to no call, so it gets the number of the last call.
        """
        self.call_finished()
        self._report_gap()
        self._add_markers([row_record(vocabulary.MARKERS, self._stamp(self.last_call_number, now_ms), marker=marker)])
        self.send()

    async def close(self, now_ms: int, timeout_s: float) -> None:
        """Record the end of the run, and write the remaining records within `timeout_s`."""
        self.mark(vocabulary.ENDED, now_ms)
        if not await self._link.close(timeout_s, self.send):
            LOGGER.error(
                "the end of the history could not be written; the next start will report that this run crashed"
            )

    def send(self) -> None:
        """Send all unsent records, or try again later if the writer process is down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._records and not self._link.is_up:
            self._send_soon()
        elif self._records:
            self._link.send(list(self._names), self._records)
            self._records.clear()
            self._names.clear()
            self._unsent_rows = 0

    def _send_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SEND_AFTER_S, self._send_late)

    def _send_late(self) -> None:
        self._timer = None
        if self._call is None:  # sending would clear names that the call's records refer to
            self.send()

    # Internals.

    def _add_call(self, event: Called, **values: object) -> None:
        self._add_row(self._begin(event.now_ms), event.call, event.receipt.ended, **values)

    def _add_row(self, stamp: CallStamp, call: calls.Call, ended: int, **values: object) -> None:
        name = vocabulary.CALL_NAMES[type(call)]
        self._records.append(row_record(vocabulary.CALLS, stamp, call=name, ended=ended, **values))

    def _begin(self, now_ms: int) -> CallStamp:
        self.call_finished()  # an interrupted call is recorded too
        self.last_call_number += 1
        self._call_start, self._call_first_name = len(self._records), len(self._names)
        self._call = self._stamp(self.last_call_number, now_ms)
        return self._call

    def _add(self, table: str, make: Callable[..., list[Record]], call: CallStamp, *given: object) -> None:
        """Add the call's records to a table: `make` is called with the names, the call and `given`.

        Records that cannot be built are lost. The archive gets a DROPPED marker, and the call itself continues.
        """
        try:
            self._records.extend(make(self._names, call, *given))
        except Exception:
            LOGGER.exception("cannot store rows of %s of call %d", table, call.call_number)
            self._rows_dropped[table] += 1  # a lower bound: the number of rows is unknown
            marker = {"marker": vocabulary.DROPPED, "table": table, "rows": 1, "last_call_number": call.call_number}
            self._records.append(row_record(vocabulary.MARKERS, call, **marker))

    def _stamp(self, call_number: int, now_ms: int) -> CallStamp:
        if now_ms >= self._anchored_until_ms:
            self._wall_offset_ms = self._wall_ms() - now_ms
            self._anchored_until_ms = now_ms + ANCHOR_MS
        return CallStamp(self._run_id, call_number, now_ms, now_ms + self._wall_offset_ms)

    def _add_markers(self, markers: list[Record]) -> None:
        self._records.extend(markers)
        self._unsent_rows += len(markers)

    def _has_room(self, rows: int) -> bool:
        """Whether the queue has space. An empty queue accepts any call, or large calls would never be recorded."""
        waiting = self.rows_waiting
        if self._is_strict or not waiting:
            return True
        return waiting + rows <= self._rows_max and (self._gap is None or waiting <= self._rows_max // 2)

    def _drop(self, records: list[Record]) -> None:
        del self._records[self._call_start :]
        while len(self._names) > self._call_first_name:  # otherwise unused names would remain until the next send
            self._names.popitem()
        dropped = Span(records)
        self._rows_dropped.update(dropped.rows)
        if self._gap is None:
            self._gap = dropped
        else:
            self._gap.extend(dropped)

    def _report_gap(self) -> None:
        gap = self._gap
        if gap is None:
            return
        self._add_markers(gap.dropped_markers())
        self._gap = None
        LOGGER.warning(
            "the archive could not keep up: %d rows of calls %d to %d were dropped",
            gap.rows.total(), gap.first.call_number, gap.last_call_number,
        )  # fmt: skip


def registrant_of(session: Session | None, principal: str) -> Registrant:
    """The session of a call, or a registrant with only the principal for a call without a session."""
    if session is None:
        return NO_SESSION._replace(principal=principal)
    return Registrant(session.number, session.session_id, session.account.principal)


def writer_config(
    settings: ArchiveSettings,
    engine: EngineSettings,
    limits: EngineLimits,
    engine_started_ms: int,
    journal: OpenJournal | None = None,
) -> WriterConfig:
    assert settings.uri is not None, "no archive is configured"
    details = RunDetails(
        version=__version__,
        tick_ms=engine.tick_ms,
        strict_partitions=engine.strict_partitions,
        replica_lag_time_max_ms=engine.replica_lag_time_max_ms,
        expired_per_slice=sizes.EXPIRED_PER_SLICE,
        limits={name: getattr(limits, name) for name in LIMIT_NAMES},
        journal=journal is not None,
        continued=journal is not None and journal.is_continued,
    )
    return WriterConfig(
        place=settings.uri,
        run_id=new_run_id(),
        details=details,
        statistics=WriterStatistics(time_ms=engine_started_ms, at_ms=wall_ms()),
        roll_s=settings.roll_ms / 1_000,
        low_priority=not settings.strict,  # with `strict`, admission waits for the archive
    )


async def start_archive(settings: ArchiveSettings, config: WriterConfig, timeout_ms_default: int) -> ArchiveListener:
    """Raises `CannotArchive` if the archive cannot be written to, or Arrow is not installed."""
    for package in ("numpy", "pyarrow"):
        if find_spec(package) is None:
            raise CannotArchive(
                f"an archive needs {package}: pip install 'purgatory-waits[server,archive]', in a container the image"
                " purgatory:archive (docker build --target archive)"
            )
    link = WriterLink(config)
    await link.start()
    LOGGER.info("archive: run %s in %s", config.run_id, settings.uri)
    return ArchiveListener(link, settings, timeout_ms_default)
