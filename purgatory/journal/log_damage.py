"""Damage in the write-ahead log (sqlite.org/fileformat2.html) that SQLite passes over in silence.

SQLite takes the first frame with a wrong checksum for the end of the log, and drops every commit from there on. It has
to: after a power cut the last commit may be on disk in part. But each commit is synced before anything is written after
it and before it is acknowledged, so two things tell damage from a torn end:

- beyond the end that SQLite finds, a frame continues the checksum of a commit's last one. So that commit was synced;
- the journal ends with an earlier group than the one noted last (`Directory.note_group`).

docs/durability.md says what neither shows.
"""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Final

from purgatory.journal.directory import Directory
from purgatory.journal.sql_schema import version_of

PAGE_BYTES: Final = 4_096

WAL_HEADER: Final = struct.Struct(">I12x8s8s")
"""The log's header: a magic number, whose last bit is the byte order of checksums; a salt, which each restart of the
log changes; the checksum of all before it."""

WAL_FRAME: Final = struct.Struct(">4xI8s8s")
"""The header of a frame, before its page: not 0 if the frame ends a commit; the log's salt; a checksum, which continues
that of the frame before over the first eight bytes and the page."""

FRAME_BYTES: Final = WAL_FRAME.size + PAGE_BYTES

WAL_INDEX: Final = struct.Struct("=I12xI")
"""The start of the log's index (-shm): its version, and the number of the last valid commit's last frame."""

WAL_INDEX_VERSION: Final = 3_007_000


def find_damage(directory: Directory) -> str | None:
    """What of a journal's log is missing, in words; None if nothing is, as far as can be seen. Changes neither file.

    Nobody may have the journal open. Raises sqlite3.DatabaseError or OSError where it cannot be read.
    """
    database = directory.database
    log = _sibling(database, "-wal")
    has_log = _size_bytes(log) > WAL_HEADER.size
    group = 0
    with closing(open_read_only(database)) as connection:
        if version_of(connection):
            group = int(connection.execute("SELECT total(group_number) FROM moment").fetchone()[0])
    noted = directory.noted_group()
    frame, is_followed = _end(log, _valid_frames(database)) if has_log else (1, False)
    is_alone = has_log and not _size_bytes(database)
    if not is_followed and not is_alone and group >= noted:
        return None
    place = f"frame {frame} of {log.name}" if frame else f"the header of {log.name}"
    total = f" of {noted}" if noted > group else ""
    return (
        f"{database.name if is_alone else place} is missing or not as written, and group {group}{total} is the last "
        "that can be read"
    )


def open_read_only(database: Path) -> sqlite3.Connection:
    """A connection that does not fold the log into the file when it is closed.

    To an empty database if the file is missing or empty: SQLite would delete its log.
    """
    if not _size_bytes(database):
        return sqlite3.connect(":memory:")
    # Only a writer can undo a change of the journal mode that was cut off; there is no log at that time.
    mode = "rw" if _sibling(database, "-journal").exists() else "ro"
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode={mode}", uri=True)


def _end(log: Path, valid: int) -> tuple[int, bool]:
    """(the first frame that does not continue the log, or 0 for its header; whether a commit from there on was synced).

    The first `valid` frames are known to be right.
    """
    with log.open("rb") as file:
        header = file.read(WAL_HEADER.size)
        magic, salt, stored = WAL_HEADER.unpack(header)
        order = "<>"[magic & 1]
        if _checksum(bytes(8), header[:-8], order) != stored:
            return 0, True
        valid = min(valid, (_size_bytes(log) - WAL_HEADER.size) // FRAME_BYTES)
        if valid:
            file.seek((valid - 1) * FRAME_BYTES, 1)
            stored = WAL_FRAME.unpack_from(file.read(FRAME_BYTES))[2]
        number, first_wrong, computed = valid, 0, stored
        is_valid, ends_commit = True, False
        while len(frame := file.read(FRAME_BYTES)) == FRAME_BYTES:
            number += 1
            pages, its_salt, its_checksum = WAL_FRAME.unpack_from(frame)
            if first_wrong and its_salt != salt:  # of an older log, which this one overwrites
                continue
            checked = frame[:8] + frame[WAL_FRAME.size :]
            # The checksum of the frame before may be wrong, or what it covers. In the latter case a power cut may have
            # torn that frame, and made it look as if it ended a commit.
            sums = [_checksum(before, checked, order) for before in (computed, stored)]
            if ends_commit and its_checksum in sums[: 1 + is_valid]:
                return first_wrong, True
            is_valid = its_checksum in sums
            if not first_wrong and not (is_valid and its_salt == salt):
                first_wrong = number
            computed, stored = sums[1], its_checksum
            ends_commit = first_wrong > 0 and pages > 0
    return first_wrong or number + 1, False


def _checksum(before: bytes, content: bytes, order: str) -> bytes:
    """SQLite's checksum of some content, continued from another."""
    first, second = struct.unpack(">2I", before)
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)


def _valid_frames(database: Path) -> int:
    """How many frames SQLite found valid when it last opened the log, or 0: computing their checksums here is slow."""
    index = _sibling(database, "-shm")
    if _size_bytes(index) < WAL_INDEX.size:
        return 0
    version, frames = WAL_INDEX.unpack_from(index.read_bytes())
    return int(frames) if version == WAL_INDEX_VERSION else 0


def _sibling(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
