"""Paths and names of archive files: `TABLE/date=2026-11-21/hour=18/RUN-000042.parquet`.

A file is written under `_writing/` (which Spark and DuckDB ignore) and moved to its final path when it is complete, so
a table's folder never contains a partial file. Date and hour are those of the file's first row, in UTC.
"""

import re
from datetime import datetime
from typing import Final

WRITING: Final = "_writing"
"""Folder of incomplete files."""

RUNNING: Final = ".running"
"""Suffix of the files in WRITING that mark live runs."""

# Keys of a file's own metadata (Parquet key-value), all values as text.
VERSION_KEY: Final = b"purgatory.schema_version"
TABLE_KEY: Final = b"purgatory.table"
RUN_KEY: Final = b"purgatory.run_id"
FILE_NUMBER_KEY: Final = b"purgatory.file_number"
"""Counts a run's files of a table from 1. Two files with the same run, table and number are copies."""


FILE_NUMBER: Final = re.compile(r"-([0-9]+)\.parquet$")
"""The number in a file's name."""


def file_name(run_id: str, file_number: int) -> str:
    """The name of a run's file; names sort by number."""
    return f"{run_id}-{file_number:06d}.parquet"


def folder(table: str, at: datetime) -> str:
    """The folder, relative to the archive, of a file whose first row has the instant `at` (UTC)."""
    return f"{table}/date={at:%Y-%m-%d}/hour={at:%H}"


def unfinished_path(table: str, run_id: str, file_number: int) -> str:
    """The path of an incomplete file, relative to the archive."""
    return f"{WRITING}/{table}-{file_name(run_id, file_number)}"


def running_path(run_id: str) -> str:
    """The path of the file that marks a live run and records its progress; it is removed when the run ends."""
    return f"{WRITING}/{run_id}{RUNNING}"


def is_unfinished_of(name: str, run_id: str) -> bool:
    """Whether a file under `_writing/` belongs to this run."""
    return f"-{run_id}-" in name and name.endswith(".parquet")
