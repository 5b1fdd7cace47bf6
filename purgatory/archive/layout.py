"""Where the archive's files lie and how they are called: `TABLE/date=2026-11-21/hour=18/RUN-000042.parquet`.

A file is written under `_writing/` (which Spark and DuckDB pass over) and moved to its place when it is whole: what
lies under a table is never half a file. Date and hour are those of the file's first row, in UTC.
"""

import re
from datetime import datetime
from typing import Final

WRITING: Final = "_writing"
"""Folder of files that are not whole yet."""

RUNNING: Final = ".running"
"""Ending of the files there that say which runs are alive."""

# Keys of a file's own metadata (Parquet key-value), all values as text.
VERSION_KEY: Final = b"purgatory.schema_version"
TABLE_KEY: Final = b"purgatory.table"
RUN_KEY: Final = b"purgatory.run_id"
FILE_NUMBER_KEY: Final = b"purgatory.file_number"
"""Rises within a table of a run from 1. Two files with the same run, table and number are one file and its copy."""


FILE_NUMBER: Final = re.compile(r"-([0-9]+)\.parquet$")
"""The number in a file's name."""


def file_name(run_id: str, file_number: int) -> str:
    """The name of a run's file: sorts by number."""
    return f"{run_id}-{file_number:06d}.parquet"


def folder(table: str, at: datetime) -> str:
    """The folder, below the archive, of a file whose first row is of the instant `at` (UTC)."""
    return f"{table}/date={at:%Y-%m-%d}/hour={at:%H}"


def unfinished_path(table: str, run_id: str, file_number: int) -> str:
    """Where a file lies, below the archive, while it is written."""
    return f"{WRITING}/{table}-{file_name(run_id, file_number)}"


def running_path(run_id: str) -> str:
    """Where a daemon's run says, below the archive, that it is alive and what it has kept; gone when it has ended."""
    return f"{WRITING}/{run_id}{RUNNING}"


def is_unfinished_of(name: str, run_id: str) -> bool:
    """Whether a file under `_writing/` is one of that run's."""
    return f"-{run_id}-" in name and name.endswith(".parquet")
