"""Paths, metadata and checksums of the archive's files: `TABLE/date=2026-11-21/hour=18/RUN-000042.parquet`.

A file is written under `_writing/` (which Spark and DuckDB skip) and moved into place once it is complete, so a table's
folder never contains a partial file. Date and hour are those of the file's first row, in UTC.
"""

import re
from datetime import datetime
from typing import Final
from zlib import crc32

WRITING: Final = "_writing"
"""Folder for incomplete files."""

RUNNING: Final = ".running"
"""Suffix of the files in that folder that mark live runs."""

# Keys of a file's own metadata (Parquet key-value). All values are text.
VERSION_KEY: Final = b"purgatory.schema_version"
TABLE_KEY: Final = b"purgatory.table"
RUN_KEY: Final = b"purgatory.run_id"
FILE_NUMBER_KEY: Final = b"purgatory.file_number"
"""Increases from 1 within each table of a run. Two files with the same run, table and number are copies of each other.
"""

FILE_NUMBER: Final = re.compile(r"-([0-9]+)\.parquet$")
"""Matches the number in a file's name."""


def file_name(run_id: str, file_number: int) -> str:
    """Name of a run's file; names sort by file number."""
    return f"{run_id}-{file_number:06d}.parquet"


def folder(table: str, at: datetime) -> str:
    """Folder, relative to the archive, of a file whose first row has the timestamp `at` (UTC)."""
    return f"{table}/date={at:%Y-%m-%d}/hour={at:%H}"


def unfinished_path(table: str, run_id: str, file_number: int) -> str:
    """Path of a file, relative to the archive, while it is being written."""
    return f"{WRITING}/{table}-{file_name(run_id, file_number)}"


def running_path(run_id: str) -> str:
    """Path, relative to the archive, of a live run's progress file, which is deleted when the run ends."""
    return f"{WRITING}/{run_id}{RUNNING}"


def is_unfinished_of(name: str, run_id: str) -> bool:
    """Whether a file under `_writing/` belongs to that run."""
    return f"-{run_id}-" in name and name.endswith(".parquet")


# Checksums of a whole file, stored in its metadata: one for everything before the footer, one for the footer itself.
# Parquet's own checksums cover only the content of pages, neither the page headers nor the footer, whose statistics
# decide which files are read at all.

CHECKSUMS_KEY: Final = b"purgatory.crc32"
UNSEALED: Final = b"-" * 16
"""Value of CHECKSUMS_KEY in a file without checksums. Checksums have the same length and overwrite it in place."""
_TAIL: Final = 8
"""Bytes after the footer: its length and Parquet's magic number."""


class ChecksumWrong(OSError):
    """A file has changed since it was written."""


def footer_bytes(octets: bytes) -> int:
    """Size of the footer in bytes, including `_TAIL`, read from the length field at the end of the file."""
    return int.from_bytes(octets[-_TAIL:-4], "little") + _TAIL


def sealed(octets: bytes) -> bytes:
    """The file with its checksums filled in; it must have been encoded with CHECKSUMS_KEY set to UNSEALED."""
    start = len(octets) - footer_bytes(octets)
    place = octets.index(UNSEALED, start)
    view = memoryview(octets)
    # The footer is summed while it still contains UNSEALED, so `check_footer` puts UNSEALED back before it compares.
    sums = f"{crc32(view[:start]):08x}{crc32(view[start:]):08x}".encode()
    return b"".join([view[:place], sums, view[place + len(sums) :]])


def check_footer(tail: bytes, metadata: dict[bytes, bytes]) -> None:
    """Raises `ChecksumWrong` if the footer, with which `tail` ends, is damaged. Without checksums it passes."""
    sums = metadata.get(CHECKSUMS_KEY, UNSEALED)
    footer = tail[-footer_bytes(tail) :].replace(sums, UNSEALED, 1)
    if sums != UNSEALED and sums[8:] != f"{crc32(footer):08x}".encode():
        raise ChecksumWrong("the checksum of its footer is wrong: the file is damaged")


def check_file(octets: bytes, metadata: dict[bytes, bytes]) -> None:
    """Raises `ChecksumWrong` if the footer or the pages of a file are damaged. Without checksums it passes."""
    check_footer(octets, metadata)
    sums, pages = metadata.get(CHECKSUMS_KEY, UNSEALED), memoryview(octets)[: -footer_bytes(octets)]
    if sums != UNSEALED and sums[:8] != f"{crc32(pages):08x}".encode():
        raise ChecksumWrong("the checksum of its pages is wrong: the file is damaged")
