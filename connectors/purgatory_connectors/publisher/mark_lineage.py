"""The lineage of a mark, and the rules that decide whether an observation continues the lineage or breaks it.

The epoch of a lineage is the partition's leader epoch in the daemons. Each break increments it, so that waits and
tokens that name the old epoch fail (error 74) instead of being answered from another history.

Another source, or an earlier run of this one, may have published more than this run has seen. The mark is then
*unsettled*: nothing is published until this source has caught up, or until enough time has passed that its readings are
certainly newer than the published mark. Without this rule, a source that reads a second late would complete waits of
the new lineage with offsets of the old one, or would mistake its own delay for a break.

Lineages are stored on disk, so that a restarted source detects breaks that happened while it was down: in one SQLite
file. A new lineage is written before any daemon receives its events. Offsets are written within seconds; they are only
used to detect that the current offset is lower. A power failure may lose the last writes. Daemons then have a higher
epoch than the file, which is handled as if another source had published it.
"""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.observation import MarkName, Observation

RETIRED_MAX: Final = 16
"""Number of identities of earlier lineages to remember. They distinguish a late reading from a new lineage."""


@dataclass(slots=True)
class MarkLineage:
    """The state of one mark. `epoch` and `identity` belong to its current lineage."""

    epoch: int
    identity: str = ""
    floor: int = -1
    """The offset that a daemon has or an earlier run saw, and that this run has not reached yet; -1: none."""
    is_gone: bool = False
    """The mark existed and has been removed."""
    retired: tuple[str, ...] = ()
    """Identities of its earlier lineages."""
    offset: int = -1
    """The newest offset seen by this run; -1: none."""
    is_seen: bool = False
    """This run has seen the mark."""
    is_foreign: bool = False
    """The break that began this epoch was published by another source."""
    unsettled_until: float = 0.0
    """Time from which this source's readings must be newer than `floor`; seconds of the replicator's clock."""

    def apply(self, seen: Observation) -> bool:
        """Apply an observation. Returns False if it is already known or older than the current state."""
        offset = seen.offset
        identity = seen.identity
        if identity and identity in self.retired:
            return False
        if offset is None:
            return self._apply_removal()
        was_seen = self.is_seen
        self.is_seen = True
        if self.is_gone or (identity and self.identity and identity != self.identity):
            self.is_gone = False
            # A mark that this run had not seen before may have changed at any time since the last run. If it had
            # seen the mark, the source that published the foreign break saw this same change.
            self._begin(identity, offset, is_break=not (self.is_foreign and was_seen))
            return True
        if was_seen and offset < self.offset:
            if not seen.is_set_back_to:
                return False
            self._begin(identity or self.identity, offset, is_break=not self.is_foreign)
            return True
        self.identity = self.identity or identity
        if was_seen and offset == self.offset:
            return False
        self.offset = offset
        return True

    def fast_forward(self, epoch: int, mark: int, until: float) -> None:
        """A daemon has more than this run has seen: offset `mark` in `epoch`."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.is_foreign = True
            self.floor = mark
        else:
            self.floor = max(self.floor, mark)
        self.unsettled_until = until

    def settle(self, now: float, sees_since: float) -> bool:
        """Whether the mark may be published. An offset that stays below the floor begins a new lineage.

        Args:
            now: Seconds of the replicator's clock.
            sees_since: Time from which readings are newer than the last outage; in the future during an outage.
        """
        if self.floor < 0 and not self.is_foreign:
            return True
        if not self.is_seen:
            return False
        if self.is_foreign or self.is_gone or self.offset < self.floor:
            if now < self.unsettled_until or now < sees_since:
                return False
            if self.offset < self.floor and not self.is_gone:
                self._begin(self.identity, self.offset, is_break=True)
        self.floor = -1
        self.is_foreign = False
        return True

    def _apply_removal(self) -> bool:
        if self.is_gone and self.is_seen:
            return False
        self.is_seen = True
        self.is_gone = True
        self.offset = -1
        self._retire()
        self.identity = ""
        return True

    def _begin(self, identity: str, offset: int, *, is_break: bool) -> None:
        if identity != self.identity:
            self._retire()
        self.identity = identity
        self.offset = offset
        if is_break:
            self.epoch += 1
            self.floor = -1
            self.is_foreign = False

    def _retire(self) -> None:
        if self.identity:
            self.retired = (*self.retired, self.identity)[-RETIRED_MAX:]


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
                raise SourceRefused(
                    f"{self._path} has version {version}; this program supports up to {_VERSION}: upgrade it, or "
                    "remove the file"
                )
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
