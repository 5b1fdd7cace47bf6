"""The archive's writer process. The daemon starts it so that the daemon itself never loads pyarrow.

It reads frames from stdin and writes lines to stdout (`writer_protocol`). It exits when its input ends, that is,
when the daemon exits for any reason. If the daemon is killed, the process first writes everything that it has received.

All tables roll together, between two frames, so the files in place contain everything up to one call. While files
cannot be written, the process retries and frames accumulate in memory.
"""

import contextlib
import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final

from purgatory.engine.batches import PartitionName
from purgatory.extensions.archive.files import CANNOT_WRITE, ArchiveWriter, open_archive
from purgatory.extensions.archive.records import Record, Span, row_record
from purgatory.extensions.archive.rows import make_rows, records_by_table
from purgatory.extensions.archive.runs import RENEW_S, RunFile, RunState, claim_dead_runs, remove_unfinished
from purgatory.extensions.archive.vocabulary import CRASHED, ENDED, MARKERS, STARTED, CallStamp, CannotArchive
from purgatory.extensions.archive.writer_protocol import WriterConfig, WriterStatistics, decode_frame, read_frame

LOGGER: Final = logging.getLogger("purgatory.extensions.archive.writer_process")
"""Not `__name__`, which is `__main__` in this process. Log records sent to the daemon belong to the extension."""

RETRY_S: Final = 1.0
TRIES_AT_END: Final = 3
NICENESS: Final = 5
"""Niceness of the thread that builds rows and files: it gets a third of the time of another busy thread on the same
processor. The reading thread keeps normal priority, so that received data survives a killed daemon.
"""
YOUNG_MAX: Final = 100_000
"""Net allocations before a garbage collection: almost no objects here are in reference cycles."""
IDLE_S: Final = 0.2
"""Interval, in seconds, for checking whether a roll is due when no frames arrive."""

Report = Callable[[WriterStatistics], None]


def open_history(config: WriterConfig, report: Report) -> "HistoryWriter":
    """Begin a run in its archive, or continue one. Raises `CannotArchive`."""
    filesystem, root = open_archive(config.place)
    statistics, details = config.statistics, config.details
    last = CallStamp(config.run_id, statistics.call_number, statistics.time_ms, statistics.at_ms)
    files = ArchiveWriter(filesystem, root, config.run_id, roll_s=config.roll_s, statistics=statistics)
    try:
        if config.is_continued:
            remove_unfinished(filesystem, root, config.run_id)
        run = RunFile.create(filesystem, root, RunState(config.run_id, details.host, details.pid, *last[1:]))
        try:
            if not config.is_continued:
                started = row_record(MARKERS, last, marker=STARTED, detail=details.to_json())
                files.write(MARKERS, make_rows(MARKERS, [started]))
                files.roll()
        except CANNOT_WRITE:
            run.remove()
            raise
    except CANNOT_WRITE as error:
        raise CannotArchive(f"cannot write an archive to {config.place}: {error}") from None
    return HistoryWriter(files, run, report)


class HistoryWriter:
    """Stores the records it receives, in order, and reports its progress.

    Set `ending` when no more frames will arrive: failed writes are then retried only `TRIES_AT_END` times.
    """

    def __init__(self, files: ArchiveWriter, run: RunFile, report: Report, *, retry_s: float = RETRY_S) -> None:
        self.ending: Final = threading.Event()
        self.statistics: Final = files.statistics
        self._files: Final = files
        self._run: Final = run
        self._report: Final = report
        self._retry_s: Final = retry_s
        self._last_call = run.state.last_call
        self._has_ended = False
        self._maintained_s = -RENEW_S
        """When it last renewed the run's file and looked for dead runs."""
        self._is_failing = False

    def keep(self, names: Sequence[PartitionName], records: Sequence[Record]) -> None:
        """Store a frame: the records of some more calls, in order. Call `maintain` afterwards."""
        for table, some in records_by_table(records).items():
            if table == MARKERS:
                some = [self._with_files(record) for record in some]  # noqa: PLW2901 - the last table: all files are begun
            try:
                self._files.write(table, make_rows(table, some, names))
            except Exception:
                LOGGER.exception("cannot store rows of %s up to call %d", table, some[-1].stamp.call_number)
                self._lose(table, some)
        for record in records:
            self.statistics.rows_done += record.rows
            # A DROPPED marker carries the number of the gap's first call, which may be lower than that of earlier
            # records.
            if record.stamp.call_number >= self._last_call.call_number:
                self._last_call = record.stamp
            if record.table == MARKERS:
                self._has_ended = record.extra["marker"] == ENDED
        self._report(self.statistics)

    def _with_files(self, record: Record) -> Record:
        """The marker; an ENDED marker also gets the number of files per table, so missing files can be detected."""
        if record.extra["marker"] != ENDED:
            return record
        return record._replace(extra={**record.extra, "detail": json.dumps({"files": self.statistics.file_numbers})})

    def _lose(self, table: str, records: Sequence[Record]) -> None:
        """Replace rows that cannot be built (not a disk error) by a DROPPED marker, and continue."""
        lost = Span(records)
        self.statistics.errors += 1
        self.statistics.rows_lost[table] += lost.rows[table]
        self._files.write(MARKERS, make_rows(MARKERS, lost.dropped_markers()))

    def maintain(self) -> None:
        """Roll files, renew the run's file, and mark crashed runs. Blocks while a file cannot be written."""
        if self._files.is_due:
            self.roll()
        if time.monotonic() - self._maintained_s >= RENEW_S:
            self._maintained_s = time.monotonic()
            try:
                self._run.renew()
                self._mark_crashed_runs()
            except CANNOT_WRITE as error:
                self._note_failure(error)

    def end(self) -> None:
        """End the run: as crashed, if no ENDED marker was received. Raises OSError (or ArrowException)."""
        self.ending.set()
        try:
            self.roll()
            if not self._has_ended:
                self._write_crashed(self._run.state, 0)
                self.roll()
            self._run.remove()
        finally:
            self._run.release()

    def roll(self) -> None:
        """Move everything received into place. Retries until it succeeds; after `ending`, only `TRIES_AT_END` times."""
        tries = 0
        while True:
            try:
                # Report file numbers before the files exist: a successor process must not use a number twice.
                self._report(self.statistics)
                self._files.roll()
                state, done = self._run.state, self.statistics
                _, state.call_number, state.time_ms, state.at_ms = self._last_call
                _, done.call_number, done.time_ms, done.at_ms = self._last_call
                state.files = dict(done.file_numbers)
                # Only after the files are in place: the run's file must never claim rows that readers cannot find.
                self._run.renew()
                break
            except CANNOT_WRITE as error:
                self._note_failure(error)
                tries += 1
                if self.ending.is_set() and tries >= TRIES_AT_END:
                    raise
                self.ending.wait(self._retry_s)
        if self._is_failing:
            self._is_failing = False
            LOGGER.info("the archive can be written again")
        self._report(self.statistics)

    def _note_failure(self, error: Exception) -> None:
        """Count a disk failure; log only the first of a series."""
        self.statistics.errors += 1
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("cannot write the archive; history waits in memory: %s", error)

    def _mark_crashed_runs(self) -> None:
        """Record in the archive which runs crashed, and delete their incomplete files."""
        dead_runs = claim_dead_runs(self._files.filesystem, self._files.root, self._files.run_id)
        try:
            for dead in dead_runs:
                leftovers = remove_unfinished(self._files.filesystem, self._files.root, dead.state.run_id)
                self._write_crashed(dead.state, leftovers)
            if dead_runs:
                self.roll()  # the marker must be in place before the run's file is deleted
                for dead in dead_runs:
                    dead.remove()
        finally:
            for dead in dead_runs:
                dead.release()

    def _write_crashed(self, state: RunState, leftovers: int) -> None:
        detail = {
            "host": state.host, "pid": state.pid, "found_by": self._files.run_id, "leftovers": leftovers,
            "files": state.files,
        }  # fmt: skip
        crashed = row_record(MARKERS, state.last_call, marker=CRASHED, detail=json.dumps(detail))
        self._files.write(MARKERS, make_rows(MARKERS, [crashed]))
        LOGGER.warning(
            "archive: run %s (%s, pid %d) crashed; its history ends with call %d",
            state.run_id, state.host, state.pid, state.call_number,
        )  # fmt: skip


class LineOutput(logging.Handler):
    """Sends lines to the daemon, including log records, which the daemon writes to its log. Ignored once it is gone."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream: Final = stream

    def report(self, statistics: WriterStatistics) -> None:
        self.write({"statistics": vars(statistics)})

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log record as one line; a traceback is part of the message."""
        self.write({"level": record.levelno, "message": self.format(record)})

    def write(self, line: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(json.dumps(line).encode() + b"\n")
            self._stream.flush()


def serve(frames: BinaryIO, output: LineOutput) -> bool:
    """Store frames until the input ends. Returns whether the end of the run could be written."""
    first = read_frame(frames)
    if first is None:
        return False
    config: WriterConfig = decode_frame(first)
    try:
        history = open_history(config, output.report)
    except CannotArchive as error:
        output.write({"unusable": str(error)})
        return False
    output.report(history.statistics)
    return keep_all(frames, history, low_priority=config.low_priority)


def keep_all(frames: BinaryIO, history: HistoryWriter, *, low_priority: bool) -> bool:
    """Store frames until there are no more, then end the run. Returns whether the end could be written."""
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read_all() -> None:
        # Read frames as soon as they arrive: data still in the daemon's memory is lost when the daemon is killed.
        while (frame := read_frame(frames)) is not None:
            waiting.put(frame)
        history.ending.set()
        waiting.put(None)

    threading.Thread(target=read_all, name="archive-frames", daemon=True).start()
    if low_priority:
        os.nice(NICENESS)  # applies to this thread only, on Linux
    try:
        while True:
            history.maintain()
            try:
                frame = waiting.get(timeout=IDLE_S)
            except queue.Empty:
                continue
            if frame is None:
                history.end()
                return True
            history.keep(*decode_frame(frame))
    except CANNOT_WRITE:
        LOGGER.exception("the end of the archive cannot be written")
        return False


def main() -> int:
    """Run the process. Exit code 0: everything was stored and the end of the run is written."""
    # Only the daemon decides when to end; these signals reach all processes of a terminal or a service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.set_threshold(YOUNG_MAX)
    output = LineOutput(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the object store's client logs to stdout
    logger = logging.getLogger("purgatory.extensions.archive")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(output)
    try:
        return 0 if serve(sys.stdin.buffer, output) else 1
    except Exception:
        LOGGER.exception("the archive's writer process failed")
        return 1


if __name__ == "__main__":
    os._exit(main())  # skip the interpreter's shutdown, which would wait for the blocked reading thread
