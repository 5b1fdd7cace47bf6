"""Opens a daemon's archive: says there that the run has started, and starts to keep. Imported only where one is asked
for, because it brings pyarrow.
"""

from __future__ import annotations

import logging
from typing import Final

import pyarrow as pa

from purgatory import __version__
from purgatory.archive import schema
from purgatory.archive.files import ArchiveUnusable, ArchiveWriter, new_run_id, open_archive
from purgatory.archive.rows import CallStamp, marker_row
from purgatory.archive.run_details import LIMIT_NAMES, RunDetails
from purgatory.archive.runs import RunFile, RunState
from purgatory.archive.wall_clock import wall_ms
from purgatory.engine.limits import EngineLimits
from purgatory.service.archive import ArchiveStatistics, CannotArchive
from purgatory.service.archive_queue import CallQueue
from purgatory.service.archive_recorder import Recorder
from purgatory.service.archive_thread import ArchiveThread
from purgatory.service.reaper import EXPIRED_PER_SLICE
from purgatory.service.settings import ArchiveSettings, EngineSettings

LOGGER: Final = logging.getLogger(__name__)


class OpenArchive:
    """A run's archive: `recorder` is what the host tells, the thread behind it keeps it. `close` it at the end."""

    def __init__(self, recorder: Recorder, thread: ArchiveThread) -> None:
        self.recorder: Final = recorder
        self._thread: Final = thread

    def end(self, now_ms: int) -> None:
        """Says that the run has ended: the last that is told, and on the event loop as all else."""
        self.recorder.mark(schema.ENDED, now_ms)

    def close(self, timeout_s: float) -> None:
        """Keeps what is left while there is time. Blocks."""
        if not self._thread.close(timeout_s):
            LOGGER.error("the end of the history could not be written; the next start will say that this run crashed")


def open_recorder(
    settings: ArchiveSettings,
    engine: EngineSettings,
    limits: EngineLimits,
    engine_started_ms: int,
    *,
    has_journal: bool = False,
    is_continued: bool = False,
) -> OpenArchive:
    """Opens the archive of a new run. Raises `CannotArchive` when its place cannot be written to."""
    assert settings.uri is not None, "no archive is asked for"
    details = RunDetails(
        version=__version__,
        tick_ms=engine.tick_ms,
        wheel_size=engine.wheel_size,
        strict_partitions=engine.strict_partitions,
        replica_lag_time_max_ms=engine.replica_lag_time_max_ms,
        expired_per_slice=EXPIRED_PER_SLICE,
        limits={name: getattr(limits, name) for name in LIMIT_NAMES},
        journal=has_journal,
        continued=is_continued,
    )
    run_id, at_ms = new_run_id(), wall_ms()
    started = CallStamp(run_id, 0, engine_started_ms, at_ms)
    try:
        filesystem, root = open_archive(settings.uri)
        roll_s = settings.roll_ms / 1_000
        writer = ArchiveWriter(filesystem, root, run_id, roll_s=roll_s, roll_bytes=settings.roll_bytes)
        run = RunFile(filesystem, root, RunState(run_id, details.host, details.pid, 0, engine_started_ms, at_ms))
        try:
            writer.write(schema.MARKERS, marker_row(started, schema.STARTED, detail=details.to_json()))
            writer.roll()
        except (OSError, pa.ArrowException):
            run.remove()
            raise
    except ArchiveUnusable as error:
        raise CannotArchive(str(error)) from None
    except (OSError, pa.ArrowException) as error:
        raise CannotArchive(f"cannot write an archive to {settings.uri}: {error}") from None
    queue = CallQueue(settings.queue_rows_max, strict=settings.strict)
    thread = ArchiveThread(queue, writer, run, roll_s=roll_s)

    def look() -> ArchiveStatistics:
        dropped = {table: queue.rows_dropped[table] + thread.rows_lost[table] for table in schema.TABLES}
        return ArchiveStatistics(dict(writer.rows), dropped, queue.rows, writer.files, writer.bytes, thread.errors)

    recorder = Recorder(run_id, queue, look, timeout_ms_default=limits.timeout_ms_default)
    thread.start()
    LOGGER.info("archive: run %s in %s", run_id, settings.uri)
    return OpenArchive(recorder, thread)
