"""Stores the lineages of a source's marks on disk, so that a restarted source detects breaks that happened while it was
down.

The storage is one SQLite file. A new lineage is written before any daemon receives its events. Offsets are written
within seconds; they are only used to detect that the current offset is lower. A power failure may lose the last writes.
Daemons then have a higher epoch than the file, which is handled as if another source had published it.
"""

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.mark_lineage import MarkLineage
from purgatory_connectors.publisher.observation import MarkName

FILE_NAME: Final = "lineages.sqlite"
_VERSION: Final = 1
_MAKE: Final = """
CREATE TABLE IF NOT EXISTS lineages (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, epoch INTEGER NOT NULL, identity TEXT NOT NULL,
    retired TEXT NOT NULL, is_gone INTEGER NOT NULL, "offset" INTEGER NOT NULL, PRIMARY KEY (topic, partition)
) WITHOUT ROWID
"""
_KEEP: Final = "INSERT OR REPLACE INTO lineages VALUES (?, ?, ?, ?, ?, ?, ?)"


class LineageStore:
    """Stores lineages in a folder, or in memory if there is none. Only one process may use a folder at a time.

    Raises:
        SourceRefused: The file is in use, damaged, written by a newer version, or cannot be created.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path: Final = None if folder is None else folder / FILE_NAME
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self._file: Final = sqlite3.connect(self._path or ":memory:", timeout=1.0, isolation_level=None)
            # The lock is kept until the connection closes, so a second source in this folder is refused here.
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            version = int(self._file.execute("PRAGMA user_version").fetchone()[0])
            if version > _VERSION:
                raise SourceRefused(f"{self._path} was written by a newer version of this program")
            with self._file:
                self._file.execute("BEGIN IMMEDIATE")
                self._file.execute(_MAKE)
                self._file.execute(f"PRAGMA user_version = {_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(error) from error

    def load(self) -> dict[MarkName, MarkLineage]:
        """The stored lineages. The offset of an earlier run is a floor: this run publishes nothing below it there."""
        try:
            rows = self._file.execute("SELECT * FROM lineages").fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return {
            (topic, partition): MarkLineage(
                epoch, identity, floor=offset, is_gone=bool(is_gone), retired=tuple(json.loads(retired))
            )
            for topic, partition, epoch, identity, retired, is_gone, offset in rows
        }

    def keep(self, lineages: Iterable[tuple[MarkName, MarkLineage]]) -> None:
        """Write these lineages in one transaction. Raises SourceRefused if they cannot be written."""
        rows = []
        for name, one in lineages:
            offset = one.offset if one.is_seen else one.floor
            rows.append((*name, one.epoch, one.identity, json.dumps(one.retired), one.is_gone, offset))
        if not rows:
            return
        try:
            with self._file:
                self._file.execute("BEGIN IMMEDIATE")
                self._file.executemany(_KEEP, rows)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def close(self) -> None:
        self._file.close()

    def _unusable(self, error: Exception) -> SourceRefused:
        reason = "another source uses it; give each a folder of its own" if "locked" in str(error) else str(error)
        return SourceRefused(f"the state of this source, {self._path}, cannot be used: {reason}")
