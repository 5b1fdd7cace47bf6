"""Paths and names of the archive's files: `TABLE/date=2026-11-21/hour=18/RUN-000042.parquet`.

A file is written under `_writing/` (which Spark and DuckDB skip) and moved into place once it is complete, so a table's
folder never contains a partial file. Date and hour are those of the file's first row, in UTC.
"""

import re
from datetime import datetime
from typing import Final

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
