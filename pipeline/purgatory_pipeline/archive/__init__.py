"""Finding, checking, reading and accounting for archives."""

from __future__ import annotations

from purgatory_pipeline.archive.catalog import Archive, find_archive, spark_schema
from purgatory_pipeline.archive.footer import ArchiveFile, SetAside

__all__ = ["Archive", "ArchiveFile", "SetAside", "find_archive", "spark_schema"]
