"""Finding, checking, reading and accounting for archives.

archive = find_archive("s3://bucket/archive")
archive.read(spark, "outcomes", ["topic", "waited_ms"], since=...)   # a DataFrame
account(spark, archive).print()                                      # in = used + set aside
read_runs(archive)                                                   # how each run began and ended
"""

from __future__ import annotations

from purgatory_pipeline.archive.accounting import account
from purgatory_pipeline.archive.catalog import ArchiveCatalog, find_archive, spark_schema
from purgatory_pipeline.archive.daemon_runs import DaemonRun, read_runs
from purgatory_pipeline.archive.footer import ArchiveFile, SetAside
from purgatory_pipeline.archive.intake_account import IntakeAccount, IntakeFinding, IntakeLine

__all__ = [
    "ArchiveCatalog",
    "ArchiveFile",
    "DaemonRun",
    "IntakeAccount",
    "IntakeFinding",
    "IntakeLine",
    "SetAside",
    "account",
    "find_archive",
    "read_runs",
    "spark_schema",
]
