"""The archive extension."""

from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.archive.archive_listener import ArchiveListener, start_archive, writer_config
from purgatory.extensions.archive.settings import WithArchive
from purgatory.extensions.archive.vocabulary import CannotArchive
from purgatory.service.listeners.listener import Listener

CLOSE_S_MIN = 5.0
"""Minimum time for writing the last files, even if clients have used up the grace period."""


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
        settings, journal = own_settings(self._core.settings, WithArchive).archive, self._core.journal
        if settings.uri is None:
            return
        limits = self._core.host.engine.limits
        config = writer_config(
            settings,
            self._core.settings.engine,
            limits,
            self._core.engine_started_ms,
            has_journal=journal is not None,
            is_continued=journal is not None and journal.is_continued,
        )
        try:
            self._archive = await start_archive(settings, config, limits.timeout_ms_default)
        except CannotArchive as error:
            raise StartupError(str(error)) from None

    async def close(self, grace_s: float) -> None:
        if self._archive is not None:
            await self._archive.close(self._core.host.time.now_ms(), max(CLOSE_S_MIN, grace_s))
