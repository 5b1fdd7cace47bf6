"""Opens a daemon's archive: begins the process that keeps it, which says there that the run has started."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from purgatory import __version__
from purgatory.archive import words
from purgatory.archive.opening import Opening
from purgatory.archive.run_details import LIMIT_NAMES, RunDetails, new_run_id
from purgatory.archive.wall_clock import wall_ms
from purgatory.engine.limits import EngineLimits
from purgatory.service.listeners.archive_keeper import KeeperProcess, Link
from purgatory.service.listeners.archive_recorder import SEND_ROWS, Recorder
from purgatory.service.listeners.archive_room import Room
from purgatory.service.listeners.archive_sender import ArchiveSender
from purgatory.service.reaper import EXPIRED_PER_SLICE
from purgatory.service.settings import ArchiveSettings, EngineSettings

LOGGER: Final = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 32_768
"""Rows of a table that are gathered before Arrow arrays are made of them."""
SHARE_AT_ONCE: Final = 16
"""But no more than this part of all that may wait, so that what is gathered leaves room for more; nor are more sent at
once."""

SHARE_UNTOLD: Final = 8
"""The same of rows that the keeper has made and not told of yet."""


class OpenArchive:
    """A run's archive: `recorder` is what the host tells, `sender` sends it away. `close` it at the end."""

    def __init__(self, recorder: Recorder, sender: ArchiveSender) -> None:
        self.recorder: Final = recorder
        self._sender: Final = sender

    def end(self, now_ms: int) -> None:
        """Says that the run has ended: the last that is told, and on the event loop as all else."""
        self.recorder.mark(words.ENDED, now_ms)

    def close(self, timeout_s: float) -> None:
        """Keeps what is left while there is time. Blocks."""
        if not self._sender.close(timeout_s):
            LOGGER.error("the end of the history could not be written; the next start will say that this run crashed")


def open_recorder(
    settings: ArchiveSettings,
    engine: EngineSettings,
    limits: EngineLimits,
    engine_started_ms: int,
    *,
    has_journal: bool = False,
    is_continued: bool = False,
    new_link: Callable[[], Link] = KeeperProcess,
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
    opening = Opening(
        place=settings.uri,
        run_id=new_run_id(),
        host=details.host,
        pid=details.pid,
        started_ms=engine_started_ms,
        started_at_ms=wall_ms(),
        details=details.to_json(),
        roll_s=settings.roll_ms / 1_000,
        roll_bytes=settings.roll_bytes,
        gives_way=not settings.strict,  # where nothing may be dropped, nobody is admitted until it has kept up
        rows_at_once=min(ROWS_AT_ONCE, settings.queue_rows_max // SHARE_AT_ONCE + 1),
        rows_untold_max=settings.queue_rows_max // SHARE_UNTOLD + 1,
    )
    room = Room(settings.queue_rows_max, strict=settings.strict)
    sender = ArchiveSender(room, opening, new_link)
    sender.start()
    recorder = Recorder(
        opening.run_id,
        room,
        sender.send,
        sender.statistics,
        timeout_ms_default=limits.timeout_ms_default,
        send_rows=min(SEND_ROWS, settings.queue_rows_max // SHARE_AT_ONCE + 1),
    )
    LOGGER.info("archive: run %s in %s", opening.run_id, settings.uri)
    return OpenArchive(recorder, sender)
