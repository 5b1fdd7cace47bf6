"""The archive extension."""

from pydantic import BaseModel

from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.archive.archive_listener import ArchiveListener, ArchiveSettings, start_archive, writer_config
from purgatory.extensions.archive.vocabulary import CannotArchive
from purgatory.service.listeners.listener import Listener

CLOSE_S_MIN = 5.0
"""Minimum time for writing the last files, even if clients have used up the grace period."""


class WithArchive(BaseModel):
    archive: ArchiveSettings = ArchiveSettings()


class ArchiveExtension(Extension):
    """Records the daemon's history, if `archive.uri` is set."""

    name = "archive"
    settings = WithArchive
    needed_for = "archive.uri"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._archive: ArchiveListener | None = None

    @property
    def listener(self) -> Listener | None:
        return self._archive

    async def open(self) -> None:
        core, settings = self._core, own_settings(self._core.settings, WithArchive).archive
        if settings.uri is None:
            return
        limits = core.host.engine.limits
        config = writer_config(settings, core.settings.engine, limits, core.engine_started_ms, core.journal)
        try:
            self._archive = await start_archive(settings, config, limits.timeout_ms_default)
        except CannotArchive as error:
            raise StartupError(str(error)) from None

    def start(self) -> None:
        host, journal = self._core.host, self._core.journal
        if self._archive is not None and journal is not None and journal.is_continued:
            self._archive.mark_state(host.engine.snapshots, host.time.now_ms())

    async def close(self, grace_s: float) -> None:
        if self._archive is not None:
            await self._archive.close(self._core.host.time.now_ms(), max(CLOSE_S_MIN, grace_s))
