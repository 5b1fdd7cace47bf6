"""Finding, checking, reading and accounting for archives.

archive = find_archive("s3://bucket/archive")
archive.read(spark, "outcomes", ["topic", "waited_ms"], since=...)   # a DataFrame
account(spark, archive).print()                                      # in = used + set aside
read_runs(archive)                                                   # how each run began and ended
"""

from __future__ import annotations

from purgatory_pipeline.archive.accounting import account
from purgatory_pipeline.archive.catalog import Archive, find_archive, spark_schema
from purgatory_pipeline.archive.footer import ArchiveFile, SetAside
from purgatory_pipeline.archive.intake import Finding, IntakeAccount, Line
from purgatory_pipeline.archive.runs import Run, read_runs

__all__ = [
    "Archive",
    "ArchiveFile",
    "Finding",
    "IntakeAccount",
    "Line",
    "Run",
    "SetAside",
    "account",
    "find_archive",
    "read_runs",
    "spark_schema",
]
