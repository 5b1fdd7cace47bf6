"""The thread that keeps the archive: takes engine calls from the queue, makes rows of many at once, writes the files.

It looks every `TURN_S` rather than being told, so handing a call over costs no more than an append. While files
cannot be written it waits and tries again; the queue fills up meanwhile, and what then happens is the queue's affair.
All tables are rolled together, between two calls: what lies at its place is everything up to one call.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any, Final

import pyarrow as pa

from purgatory.archive import schema
from purgatory.archive.files import HOUR_MS, ArchiveWriter
from purgatory.archive.rows import CallStamp, EventRows, OutcomeRows, RegistrationRows, SingleRows, marker_row
from purgatory.archive.runs import RENEW_S, RunFile, claim_dead_runs
from purgatory.service.archive_queue import Call, CallQueue

LOGGER: Final = logging.getLogger(__name__)

TURN_S: Final = 0.01
IDLE_S: Final = 0.2
"""It looks less and less often while there is nothing."""
CALLS_PER_TURN: Final = 10_000
RETRY_S: Final = 1.0
TRIES_AT_END: Final = 3
ROWS_AT_ONCE: Final = 32_768
"""Rows that are gathered before Arrow arrays are made of them."""

ROWS_BETWEEN_PAUSES: Final = 4_096
PAUSE_S: Final = 0.000_1
"""Long enough for the event loop to take the interpreter back; otherwise it would have to wait for up to 5 ms."""

CANNOT_WRITE: Final = (OSError, pa.ArrowException)
NEW_GATHERERS: Final[dict[str, Any]] = {
    schema.REGISTRATIONS: RegistrationRows,
    schema.OUTCOMES: OutcomeRows,
    schema.EVENTS: EventRows,
    schema.CALLS: lambda: SingleRows(schema.CALLS),
    schema.MARKERS: lambda: SingleRows(schema.MARKERS),
}


class ArchiveThread:
    """Keeps what comes through `queue`. `start` it, `close` it at the end."""

    def __init__(
        self, queue: CallQueue, writer: ArchiveWriter, run: RunFile, *, roll_s: float, retry_s: float = RETRY_S
    ) -> None:
        self.errors = 0
        """Times that files could not be written, or rows not be made."""
        self.rows_lost: Final = dict.fromkeys(schema.TABLES, 0)
        """Rows that could not be made."""
        self.writer: Final = writer
        self._queue: Final = queue
        self._run: Final = run
        self._roll_s: Final = roll_s
        self._retry_s: Final = retry_s
        self._gatherers: Final[dict[str, Any]] = {table: make() for table, make in NEW_GATHERERS.items()}
        self._first_gathered: Final[dict[str, CallStamp]] = {}
        """The first call that is gathered, by table."""
        self._last_call: CallStamp | None = None
        self._hour = -1
        self._unrolled_since_s: float | None = None
        self._looked_s = -RENEW_S
        """When it last said that it is alive, and looked who is not."""
        self._is_failing = False
        self._is_closing = False
        self._wake: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._work, name="archive", daemon=True)

    def start(self) -> None:
        """Begins to keep."""
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Keeps what is left and ends; False: it could not, or not in this time."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._is_failing

    # The thread.

    def _work(self) -> None:
        pause_s = TURN_S
        is_last = False
        while not is_last:
            self._wake.wait(pause_s)
            is_last = self._is_closing
            try:
                calls = self._turn(sys.maxsize if is_last else CALLS_PER_TURN)
                pause_s = TURN_S if calls else min(pause_s * 2, IDLE_S)
                if is_last:
                    self._roll()
                    self._run.remove()
            except Exception:
                self.errors += 1
                LOGGER.exception("a turn of the archive failed; it goes on")
        self._run.release()

    def _turn(self, calls_max: int) -> int:
        """Keeps what has come, at most so many calls, and rolls if it is time; returns how many calls there were."""
        calls = rows = 0
        while calls < calls_max and (call := self._queue.take()) is not None:
            self._keep(call)
            calls += 1
            rows += sum(part.rows for part in call.parts)
            if rows >= ROWS_BETWEEN_PAUSES:
                rows = 0
                time.sleep(PAUSE_S)
        now_s = time.monotonic()
        since_s = self._unrolled_since_s
        if self.writer.is_due or (since_s is not None and now_s - since_s >= self._roll_s):
            self._roll()
        if now_s - self._looked_s >= RENEW_S:
            self._looked_s = now_s
            try:
                self._run.renew()
                self._bury_dead_runs()
            except CANNOT_WRITE as error:
                self._note_failure(error)
        return calls

    def _keep(self, call: Call) -> None:
        stamp = call.stamp
        hour = stamp.at_ms // HOUR_MS
        if hour != self._hour:
            if self._unrolled_since_s is not None:
                self._roll()
            self._hour = hour
        if self._unrolled_since_s is None:
            self._unrolled_since_s = time.monotonic()
        for part in call.parts:
            self._first_gathered.setdefault(part.table, stamp)
            rows = self._gathered(part.table)
            try:
                self._gatherers[part.table].add(stamp, *part.values)
            except Exception:
                LOGGER.exception("call %d cannot be kept", stamp.call_number)
                self._lose(part.table, rows + part.rows, stamp)
        if self._last_call is None or stamp.call_number >= self._last_call.call_number:
            self._last_call = stamp
        for part in call.parts:
            if self._gathered(part.table) >= ROWS_AT_ONCE:
                self._make_rows(part.table)
        if self.writer.is_due:
            self._roll()

    def _gathered(self, table: str) -> int:
        return int(self._gatherers[table].rows)

    def _make_rows(self, table: str) -> None:
        """Makes rows of what is gathered for a table, into the file that is being encoded."""
        rows = self._gathered(table)
        try:
            self.writer.write(table, self._gatherers[table].take())
        except Exception:
            LOGGER.exception("%d rows of %s cannot be kept", rows, table)
            self._lose(table, rows, self._last_call)
            return
        del self._first_gathered[table]
        self._queue.done(rows)

    def _lose(self, table: str, rows: int, last: CallStamp | None) -> None:
        """Rows that cannot be made, through no fault of the disk: the archive says so, and the rest goes on."""
        self.errors += 1
        self.rows_lost[table] += rows
        first = self._first_gathered.pop(table)
        self._gatherers[table] = NEW_GATHERERS[table]()
        self._queue.done(rows)
        last_call_number = first.call_number if last is None else last.call_number
        marker = marker_row(first, schema.DROPPED, table=table, rows=rows, last_call_number=last_call_number)
        self.writer.write(schema.MARKERS, marker)

    def _roll(self) -> None:
        """Puts everything so far at its place. Tries until it is done; at the end of the run only some times."""
        for table in list(self._first_gathered):
            if self._gathered(table):
                self._make_rows(table)
        tries = 0
        while True:
            try:
                self.writer.roll()
                if self._last_call is not None:
                    state, last = self._run.state, self._last_call
                    state.call_number, state.time_ms, state.at_ms = last.call_number, last.time_ms, last.at_ms
                self._run.renew()
                break
            except CANNOT_WRITE as error:
                self._note_failure(error)
                tries += 1
                if self._is_closing and tries >= TRIES_AT_END:
                    raise
                self._wake.wait(self._retry_s)
        self._unrolled_since_s = None
        if self._is_failing:
            self._is_failing = False
            LOGGER.info("the archive is being written again")

    def _note_failure(self, error: Exception) -> None:
        """Says once that something is wrong with the disk, and counts every time."""
        self.errors += 1
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("cannot write the archive; history waits in memory: %s", error)

    def _bury_dead_runs(self) -> None:
        """Says in the archive which runs crashed, and removes what is left of them that nobody could read."""
        dead_runs = claim_dead_runs(self.writer.filesystem, self.writer.root, self.writer.run_id)
        try:
            for dead in dead_runs:
                state = dead.state
                leftovers = dead.remove_leftovers()
                detail = {"host": state.host, "pid": state.pid, "found_by": self.writer.run_id, "leftovers": leftovers}
                stamp = CallStamp(state.run_id, state.call_number, state.time_ms, state.at_ms)
                self.writer.write(schema.MARKERS, marker_row(stamp, schema.CRASHED, detail=json.dumps(detail)))
                LOGGER.warning(
                    "archive: run %s (%s, pid %d) crashed; its history ends with call %d",
                    state.run_id, state.host, state.pid, state.call_number,
                )  # fmt: skip
            if dead_runs:
                self._roll()
                for dead in dead_runs:
                    dead.forget()
        finally:
            for dead in dead_runs:
                dead.release()
