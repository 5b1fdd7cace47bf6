"""Settings of the archive."""

from pydantic import BaseModel

from purgatory.service.settings import Count, DurationMs, SettingsGroup, setting


class ArchiveSettings(SettingsGroup):
    """Archive: the history of all calls and outcomes, as Parquet (docs/archive.md)."""

    uri: str | None = setting(
        None,
        "Keep history here: a folder, or a URI (file, s3, gs, hdfs). Short flag: --archive.",
        short_flag="--archive",
        min_length=1,
    )
    strict: bool = setting(
        False, "When history cannot be written fast enough, refuse registrations and events; do not drop history."
    )
    roll_ms: DurationMs = setting(60_000, "Finish files this often: at most this much is missing after a crash.")
    roll_bytes: Count = setting(64 * 1024 * 1024, "Finish a file that has grown to this many bytes.")
    queue_rows_max: Count = setting(4_000_000, "Rows that may wait in memory for the disk (some 50 to 150 bytes each).")


class WithArchive(BaseModel):
    """The group, as the daemon's settings have it."""

    archive: ArchiveSettings = ArchiveSettings()
