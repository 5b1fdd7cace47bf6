"""Writes the history of one run: takes records of its calls, makes rows of many at once, writes the files.

All tables roll together, between two frames: what lies at its place is everything up to one call. While files cannot be
written it waits and tries again; frames pile up meanwhile before whoever hands them over.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from purgatory.archive import schema
from purgatory.archive.files import ArchiveWriter, open_archive
from purgatory.archive.records import Record
from purgatory.archive.rows import SingleRows, TableRows, new_table_rows, single_row
from purgatory.archive.runs import RENEW_S, RunFile, RunState, claim_dead_runs, remove_unfinished
from purgatory.archive.vocabulary import CallStamp, CannotArchive, marker_values
from purgatory.archive.writer_protocol import WriterConfig, WriterStatistics
from purgatory.engine.batches import PartitionName

LOGGER: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0
TRIES_AT_END: Final = 3
REPORT_S: Final = 1.0
"""Rows that are made are reported so often, or when there are `unreported_rows_max`: each report wakes the daemon."""

CANNOT_WRITE: Final = (OSError, pa.ArrowException)


def open_history(config: WriterConfig, report: Callable[[WriterStatistics], None]) -> HistoryWriter:
    """Begins a run in its archive, or goes on with one. Raises `CannotArchive` where it cannot be written to."""
    filesystem, root = open_archive(config.place)
    continued = config.continued
    state = RunState(config.run_id, config.host, config.pid, 0, config.started_ms, config.started_at_ms)
    files = ArchiveWriter(filesystem, root, config.run_id, roll_s=config.roll_s, roll_bytes=config.roll_bytes)
    try:
        if continued is not None:
            state.call_number, state.time_ms, state.at_ms = continued.call_number, continued.time_ms, continued.at_ms
            files.go_on(continued.file_numbers, continued.rows_kept, continued.files, continued.bytes)
            remove_unfinished(filesystem, root, config.run_id)
        run = RunFile.create(filesystem, root, state)
        try:
            if continued is None:
                started = CallStamp(config.run_id, 0, config.started_ms, config.started_at_ms)
                values = marker_values(schema.STARTED, detail=config.details)
                files.write(schema.MARKERS, single_row(schema.MARKERS, started, values))
                files.roll()
        except CANNOT_WRITE:
            run.remove()
            raise
    except CANNOT_WRITE as error:
        raise CannotArchive(f"cannot write an archive to {config.place}: {error}") from None
    return HistoryWriter(
        files,
        run,
        report,
        roll_s=config.roll_s,
        rows_at_once=config.rows_at_once,
        unreported_rows_max=config.unreported_rows_max,
    )


class HistoryWriter:
    """Keeps the records it is given, in order, and reports now and then, and whenever files have been placed.

    `ending` is set by whoever knows that nothing more comes: then what cannot be written is no longer tried for ever.
    """

    def __init__(
        self,
        files: ArchiveWriter,
        run: RunFile,
        report: Callable[[WriterStatistics], None],
        *,
        roll_s: float,
        rows_at_once: int,
        unreported_rows_max: int = 1,
        retry_s: float = RETRY_S,
    ) -> None:
        self.ending: Final = threading.Event()
        self._files: Final = files
        self._run: Final = run
        self._report: Final = report
        self._roll_s: Final = roll_s
        self._rows_at_once: Final = rows_at_once
        self._unreported_rows_max: Final = unreported_rows_max
        self._retry_s: Final = retry_s
        self._tables: Final[dict[str, TableRows | SingleRows]] = {name: new_table_rows(name) for name in schema.TABLES}
        self._first_calls: Final[dict[str, CallStamp]] = {}
        """By table, the first call whose rows have not been made."""
        self._last_call: CallStamp | None = None
        self._has_ended = False
        self._unrolled_since_s: float | None = None
        self._maintained_s = -RENEW_S
        """When it last renewed the run's file and looked for dead runs."""
        self._rows_done = self._rows_reported = 0
        self._reported_s = 0.0
        self._rows_lost: Final = dict.fromkeys(schema.TABLES, 0)
        self._errors = 0
        self._is_failing = False

    def statistics(self) -> WriterStatistics:
        """What became of the rows so far."""
        files, state = self._files, self._run.state
        return WriterStatistics(
            self._rows_done,
            dict(files.rows),
            dict(self._rows_lost),
            files.files,
            files.bytes,
            self._errors,
            state.call_number,
            state.time_ms,
            state.at_ms,
            dict(files.last_numbers),
        )

    def report_changes(self) -> None:
        """Reports what became of the rows, if that has changed."""
        if self._rows_reported != self._rows_done:
            self._report_now()

    def _report_now(self) -> None:
        self._rows_reported, self._reported_s = self._rows_done, time.monotonic()
        self._report(self.statistics())

    def keep(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Keeps a frame: the records of some more calls, in order. After it, `maintain` what `is_due`."""
        if self._unrolled_since_s is None:
            self._unrolled_since_s = time.monotonic()
        for record in records:
            table, stamp = record.table, record.stamp
            self._first_calls.setdefault(table, stamp)
            rows = self._tables[table]
            try:
                rows.add(record, names)
            except Exception:
                LOGGER.exception("rows of %s up to call %d cannot be kept", table, stamp.call_number)
                self._lose(table, rows.rows + record.rows, stamp)
                continue
            finally:
                # Markers of gaps carry the number of the gap's first call, which may be behind.
                if self._last_call is None or stamp.call_number >= self._last_call.call_number:
                    self._last_call = stamp
            if table == schema.MARKERS:
                self._has_ended = record.extra["marker"] == schema.ENDED
            if rows.rows >= self._rows_at_once:
                self._make_rows(table)

    @property
    def is_due(self) -> bool:
        """Whether `maintain` has something to do."""
        return self._is_roll_due or time.monotonic() - self._maintained_s >= RENEW_S

    @property
    def _is_roll_due(self) -> bool:
        since_s = self._unrolled_since_s
        return self._files.is_due or (since_s is not None and time.monotonic() - since_s >= self._roll_s)

    def maintain(self) -> None:
        """Rolls if it is time; says that its own run lives, and which runs have crashed.

        Blocks while a file that is due cannot be written.
        """
        if self._is_roll_due:
            self.roll()
        if time.monotonic() - self._maintained_s >= RENEW_S:
            self._maintained_s = time.monotonic()
            try:
                self._run.renew()
                self._mark_crashed_runs()
            except CANNOT_WRITE as error:
                self._note_failure(error)

    def end(self) -> None:
        """Nothing more comes. A run that did not say that it has ended (the marker ENDED) has crashed.

        Raises OSError (or ArrowException) where the end cannot be written.
        """
        self.ending.set()
        try:
            self.roll()
            if not self._has_ended:
                self._write_crashed(self._run.state, 0)
                self.roll()
            self._run.remove()
        finally:
            self._run.release()

    def _make_rows(self, table: str) -> None:
        """Makes rows of a table's records, into the file that is being encoded."""
        collected = self._tables[table]
        rows = collected.rows
        try:
            self._files.write(table, collected.take())
        except Exception:
            LOGGER.exception("%d rows of %s cannot be kept", rows, table)
            self._lose(table, rows, self._last_call)
            return
        del self._first_calls[table]
        self._rows_done += rows
        unreported = self._rows_done - self._rows_reported
        if unreported >= self._unreported_rows_max or time.monotonic() - self._reported_s >= REPORT_S:
            self.report_changes()

    def _lose(self, table: str, rows: int, last: CallStamp | None) -> None:
        """Rows that cannot be made, through no fault of the disk: the archive says so, and the rest goes on."""
        self._errors += 1
        self._rows_lost[table] += rows
        first = self._first_calls.pop(table)
        self._tables[table] = new_table_rows(table)
        self._rows_done += rows
        last_call_number = first.call_number if last is None else max(first.call_number, last.call_number)
        values = marker_values(schema.DROPPED, table=table, rows=rows, last_call_number=last_call_number)
        self._files.write(schema.MARKERS, single_row(schema.MARKERS, first, values))

    def roll(self) -> None:
        """Puts everything so far at its place. Tries until it is done; at the end of the run only some times."""
        for table in list(self._first_calls):
            self._make_rows(table)
        tries = 0
        while True:
            try:
                # Before the files are there the daemon knows their numbers: a successor must not give one twice.
                self._report_now()
                self._files.roll()
                if self._last_call is not None:
                    state, last = self._run.state, self._last_call
                    state.call_number, state.time_ms, state.at_ms = last.call_number, last.time_ms, last.at_ms
                self._run.renew()
                break
            except CANNOT_WRITE as error:
                self._note_failure(error)
                tries += 1
                if self.ending.is_set() and tries >= TRIES_AT_END:
                    raise
                self.ending.wait(self._retry_s)
        self._unrolled_since_s = None
        if self._is_failing:
            self._is_failing = False
            LOGGER.info("the archive is being written again")
        self._report_now()

    def _note_failure(self, error: Exception) -> None:
        """Says once that something is wrong with the disk, and counts every time."""
        self._errors += 1
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("cannot write the archive; history waits in memory: %s", error)

    def _mark_crashed_runs(self) -> None:
        """Says in the archive which runs crashed, and removes their files that are not whole."""
        dead_runs = claim_dead_runs(self._files.filesystem, self._files.root, self._files.run_id)
        try:
            for dead in dead_runs:
                leftovers = remove_unfinished(self._files.filesystem, self._files.root, dead.state.run_id)
                self._write_crashed(dead.state, leftovers)
            if dead_runs:
                self.roll()  # the marker must be at its place before the run's file, which asks for it, goes
                for dead in dead_runs:
                    dead.remove()
        finally:
            for dead in dead_runs:
                dead.release()

    def _write_crashed(self, state: RunState, leftovers: int) -> None:
        detail = {"host": state.host, "pid": state.pid, "found_by": self._files.run_id, "leftovers": leftovers}
        stamp = CallStamp(state.run_id, state.call_number, state.time_ms, state.at_ms)
        values = marker_values(schema.CRASHED, detail=json.dumps(detail))
        self._files.write(schema.MARKERS, single_row(schema.MARKERS, stamp, values))
        LOGGER.warning(
            "archive: run %s (%s, pid %d) crashed; its history ends with call %d",
            state.run_id, state.host, state.pid, state.call_number,
        )  # fmt: skip
