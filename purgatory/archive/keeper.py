"""Keeps the history of one run: takes its calls, makes rows of many at once, writes the files.

All tables are rolled together, between two batches of calls: what lies at its place is everything up to one call. While
files cannot be written it waits and tries again; calls pile up meanwhile before whoever hands them over.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.archive import schema, words
from purgatory.archive.calls import CallStamp, marker_values
from purgatory.archive.files import ArchiveUnusable, ArchiveWriter, open_archive
from purgatory.archive.opening import KeeperStatistics, Opening
from purgatory.archive.packing import Chunk
from purgatory.archive.pieces import Numbers, extra_at, pieces_in, rows_at, stamp_at
from purgatory.archive.rows import EventRows, OutcomeRows, RegistrationRows, SingleRows, single_row
from purgatory.archive.runs import RENEW_S, RunFile, RunState, claim_dead_runs, remove_unfinished

__all__ = ["Keeper", "open_keeper"]

LOGGER: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0
TRIES_AT_END: Final = 3
TELL_S: Final = 1.0
"""Rows that are made are told of so often, or when there are `rows_untold_max`."""

CANNOT_WRITE: Final = (OSError, pa.ArrowException)
NEW_GATHERERS: Final[dict[str, Callable[[], Any]]] = {
    schema.REGISTRATIONS: RegistrationRows,
    schema.OUTCOMES: OutcomeRows,
    schema.EVENTS: EventRows,
    schema.CALLS: lambda: SingleRows(schema.CALLS),
    schema.MARKERS: lambda: SingleRows(schema.MARKERS),
}


def open_keeper(opening: Opening, tell: Callable[[KeeperStatistics], None]) -> Keeper:
    """Begins a run in its archive, or goes on with one. Raises `ArchiveUnusable` where it cannot be written to."""
    filesystem, root = open_archive(opening.place)
    kept = opening.kept
    state = RunState(opening.run_id, opening.host, opening.pid, 0, opening.started_ms, opening.started_at_ms)
    writer = ArchiveWriter(filesystem, root, opening.run_id, roll_s=opening.roll_s, roll_bytes=opening.roll_bytes)
    try:
        if kept is not None:
            state.call_number, state.time_ms, state.at_ms = kept.call_number, kept.time_ms, kept.at_ms
            writer.go_on(kept.file_numbers, kept.rows_kept, kept.files, kept.bytes)
            remove_unfinished(filesystem, root, opening.run_id)
        run = RunFile(filesystem, root, state)
        try:
            if kept is None:
                started = CallStamp(opening.run_id, 0, opening.started_ms, opening.started_at_ms)
                values = marker_values(schema.STARTED, detail=opening.details)
                writer.write(schema.MARKERS, single_row(schema.MARKERS, started, values))
                writer.roll()
        except CANNOT_WRITE:
            run.remove()
            raise
    except CANNOT_WRITE as error:
        raise ArchiveUnusable(f"cannot write an archive to {opening.place}: {error}") from None
    return Keeper(
        writer,
        run,
        tell,
        roll_s=opening.roll_s,
        rows_at_once=opening.rows_at_once,
        rows_untold_max=opening.rows_untold_max,
    )


class Keeper:
    """Keeps calls. What becomes of them it tells now and then, and whenever files have been placed.

    `ending` is set by whoever knows that nothing more comes: then what cannot be written is no longer tried for ever.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        run: RunFile,
        tell: Callable[[KeeperStatistics], None],
        *,
        roll_s: float,
        rows_at_once: int,
        rows_untold_max: int = 1,
        retry_s: float = RETRY_S,
    ) -> None:
        self.ending: Final = threading.Event()
        self._writer: Final = writer
        self._run: Final = run
        self._tell: Final = tell
        self._roll_s: Final = roll_s
        self._rows_at_once: Final = rows_at_once
        self._rows_untold_max: Final = rows_untold_max
        self._retry_s: Final = retry_s
        self._gatherers: Final[dict[str, Any]] = {table: make() for table, make in NEW_GATHERERS.items()}
        self._first_gathered: Final[dict[str, CallStamp]] = {}
        """The first call that is gathered, by table."""
        self._last_call: CallStamp | None = None
        self._has_ended = False
        self._unrolled_since_s: float | None = None
        self._looked_s = -RENEW_S
        """When it last said that it is alive, and looked who is not."""
        self._rows_done = self._rows_told = 0
        self._told_s = 0.0
        self._rows_lost: Final = dict.fromkeys(schema.TABLES, 0)
        self._errors = 0
        self._is_failing = False

    def statistics(self) -> KeeperStatistics:
        """What became of the rows so far."""
        writer, state = self._writer, self._run.state
        return KeeperStatistics(
            self._rows_done,
            dict(writer.rows),
            dict(self._rows_lost),
            writer.files,
            writer.bytes,
            self._errors,
            state.call_number,
            state.time_ms,
            state.at_ms,
            dict(writer.last_numbers),
        )

    def tell(self) -> None:
        """Tells what became of the rows, if that has changed. Whoever is told has to interrupt its work for it."""
        if self._rows_told != self._rows_done:
            self._tell_all()

    def _tell_all(self) -> None:
        self._rows_told, self._told_s = self._rows_done, time.monotonic()
        self._tell(self.statistics())

    def keep(self, chunk: Chunk) -> None:
        """Keeps some more calls, in order. After it, `look_after` what is due."""
        if self._unrolled_since_s is None:
            self._unrolled_since_s = time.monotonic()
        numbers = np.frombuffer(chunk.numbers, np.int64)
        for number, starts in pieces_in(numbers).items():
            table = words.TABLES[number]
            last = stamp_at(chunk, numbers, starts[-1])
            self._first_gathered.setdefault(table, stamp_at(chunk, numbers, starts[0]))
            self._gather(table, chunk, numbers, starts, last)
            if self._last_call is None or last.call_number >= self._last_call.call_number:
                self._last_call = last

    @property
    def is_due(self) -> bool:
        """Whether there is something to look after."""
        return self._is_roll_due or time.monotonic() - self._looked_s >= RENEW_S

    @property
    def _is_roll_due(self) -> bool:
        since_s = self._unrolled_since_s
        return self._writer.is_due or (since_s is not None and time.monotonic() - since_s >= self._roll_s)

    def look_after(self) -> None:
        """What is to be done now and then: rolls if it is time, and looks after its own run and dead ones.

        Blocks while a file that is due cannot be written.
        """
        if self._is_roll_due:
            self._roll()
        if time.monotonic() - self._looked_s >= RENEW_S:
            self._looked_s = time.monotonic()
            try:
                self._run.renew()
                self._bury_dead_runs()
            except CANNOT_WRITE as error:
                self._note_failure(error)

    def end(self) -> None:
        """Nothing more comes. A run that did not say that it has ended (the marker ENDED) has crashed.

        Raises OSError (or ArrowException) where the end cannot be written.
        """
        self.ending.set()
        try:
            self._roll()
            if not self._has_ended:
                self._write_crashed(self._run.state, 0)
                self._roll()
            self._run.remove()
        finally:
            self._run.release()

    def _gather(self, table: str, chunk: Chunk, numbers: Numbers, starts: list[int], last: CallStamp) -> None:
        gatherer = self._gatherers[table]
        rows = gatherer.rows + rows_at(numbers, starts)
        try:
            gatherer.add(chunk, numbers, starts)
        except Exception:
            LOGGER.exception("calls up to %d cannot be kept", last.call_number)
            self._lose(table, rows, last)
            return
        if table == schema.MARKERS:
            self._has_ended = extra_at(chunk, numbers, starts[-1])["marker"] == schema.ENDED
        if gatherer.rows >= self._rows_at_once:
            self._make_rows(table)

    def _make_rows(self, table: str) -> None:
        """Makes rows of what is gathered for a table, into the file that is being encoded."""
        gatherer = self._gatherers[table]
        rows = gatherer.rows
        try:
            self._writer.write(table, gatherer.take())
        except Exception:
            LOGGER.exception("%d rows of %s cannot be kept", rows, table)
            self._lose(table, rows, self._last_call)
            return
        del self._first_gathered[table]
        self._rows_done += rows
        untold = self._rows_done - self._rows_told
        if untold >= self._rows_untold_max or time.monotonic() - self._told_s >= TELL_S:
            self.tell()

    def _lose(self, table: str, rows: int, last: CallStamp | None) -> None:
        """Rows that cannot be made, through no fault of the disk: the archive says so, and the rest goes on."""
        self._errors += 1
        self._rows_lost[table] += rows
        first = self._first_gathered.pop(table)
        self._gatherers[table] = NEW_GATHERERS[table]()
        self._rows_done += rows
        last_call_number = first.call_number if last is None else max(first.call_number, last.call_number)
        values = marker_values(schema.DROPPED, table=table, rows=rows, last_call_number=last_call_number)
        self._writer.write(schema.MARKERS, single_row(schema.MARKERS, first, values))

    def _roll(self) -> None:
        """Puts everything so far at its place. Tries until it is done; at the end of the run only some times."""
        for table in list(self._first_gathered):
            self._make_rows(table)
        tries = 0
        while True:
            try:
                self._tell_all()  # numbers of files are known before the files are there
                self._writer.roll()
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
        self._tell_all()

    def _note_failure(self, error: Exception) -> None:
        """Says once that something is wrong with the disk, and counts every time."""
        self._errors += 1
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("cannot write the archive; history waits in memory: %s", error)

    def _bury_dead_runs(self) -> None:
        """Says in the archive which runs crashed, and removes what is left of them that nobody could read."""
        dead_runs = claim_dead_runs(self._writer.filesystem, self._writer.root, self._writer.run_id)
        try:
            for dead in dead_runs:
                self._write_crashed(dead.state, dead.remove_leftovers())
            if dead_runs:
                self._roll()
                for dead in dead_runs:
                    dead.forget()
        finally:
            for dead in dead_runs:
                dead.release()

    def _write_crashed(self, state: RunState, leftovers: int) -> None:
        detail = {"host": state.host, "pid": state.pid, "found_by": self._writer.run_id, "leftovers": leftovers}
        stamp = CallStamp(state.run_id, state.call_number, state.time_ms, state.at_ms)
        values = marker_values(schema.CRASHED, detail=json.dumps(detail))
        self._writer.write(schema.MARKERS, single_row(schema.MARKERS, stamp, values))
        LOGGER.warning(
            "archive: run %s (%s, pid %d) crashed; its history ends with call %d",
            state.run_id, state.host, state.pid, state.call_number,
        )  # fmt: skip
