"""The catalogue of an archive: its usable files by table, the files set aside, and its tables as DataFrames."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from purgatory.extensions.archive import layout, schema
from purgatory_pipeline.archive import footer
from purgatory_pipeline.archive.footer import ArchiveFile, Quarantined, to_utc
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.location import Location, open_location

_THREADS: Final = 32
"""Number of footers read concurrently. Reading one waits for the disk or the network, not for the CPU."""

Instant = datetime | None
Window = tuple[Instant, Instant, Iterable[str] | None]
"""Since when, until when and of which topics rows are read; None: all."""

ROW_KEYS: Final = {
    schema.REGISTRATIONS: ["run_id", "call_number", "session_number", "operation_id", "item"],
    schema.OUTCOMES: ["run_id", "call_number", "session_number", "operation_id", "item"],
    schema.EVENTS: ["run_id", "call_number", "row"],
    schema.CALLS: ["run_id", "call_number"],
    schema.MARKERS: ["run_id", "call_number", "marker", "table"],
}
"""The columns that identify a row."""


@dataclass(frozen=True)
class ArchiveCatalog:
    """The usable files of an archive and those set aside. `uri` is kept as the caller gave it."""

    uri: str
    used: tuple[ArchiveFile, ...]
    set_aside: tuple[Quarantined, ...]
    leftovers: int
    """Number of unfinished files under `_writing/`. A file is moved out of that folder only when it is complete."""
    doubled: frozenset[str] = frozenset()
    """Paths of files with duplicate rows inside one file; filled in by `account`."""

    def files(self, table: str, *, since: datetime | None = None, until: datetime | None = None) -> list[ArchiveFile]:
        """The files of a table, sorted by run and number. With a window, only the files that may have rows in it."""
        start, end = to_utc(since), to_utc(until)
        return [
            file
            for file in self.used
            if file.table == table
            and not (start is not None and file.last_at is not None and file.last_at < start)
            and not (end is not None and file.first_at is not None and file.first_at >= end)
        ]

    @property
    def all_rows(self) -> int:
        return sum(file.rows for file in self.used)

    def lost_files(self, table: str, run_id: str) -> list[str]:
        """Paths of files that were set aside and whose names say that they contain rows of this run. Copies are left
        out: their rows are in another file.
        """
        return [
            file.path
            for file in self.set_aside
            if file.table == table and not file.is_copy and run_id in file.path.rpartition("/")[2]
        ]

    def missing_files(self, table: str, run_id: str, *, first: int | None, last: int) -> list[int]:
        """Numbers of a run's files that are neither used nor set aside.

        `first` is None if retention may have deleted the first files.
        """
        numbers = {file.file_number for file in self.files(table) if file.run_id == run_id}
        paths = (file.path for file in self.set_aside if file.table == table and run_id in file.path)
        numbers |= {int(found[1]) for path in paths if (found := layout.FILE_NUMBER.search(path))}
        start = first if first is not None else min(numbers, default=last + 1)
        return [number for number in range(start, max([*numbers, last]) + 1) if number not in numbers]

    def run_ids(self) -> list[str]:
        return sorted({file.run_id for file in self.used})

    def overlapping(self, table: str) -> list[ArchiveFile]:
        """Files whose rows may be duplicated: files of one run with overlapping call ranges, and files in `doubled`.
        Usually there are none.
        """
        found = {file.path: file for file in self.files(table) if file.path in self.doubled}
        widest: ArchiveFile | None = None
        known = [file for file in self.files(table) if file.first_call is not None]
        for file in sorted(known, key=lambda file: (file.run_id, file.first_call, file.last_call)):
            if widest is not None and widest.run_id == file.run_id and _overlap(widest, file):
                found[widest.path], found[file.path] = widest, file
            if widest is None or widest.run_id != file.run_id or (file.last_call or 0) > (widest.last_call or 0):
                widest = file
        return list(found.values())

    def read(
        self,
        spark: SparkSession,
        table: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        topics: Iterable[str] | None = None,
    ) -> DataFrame:
        """A table's rows with `since <= at < until`, of these topics (a signal's key counts as its topic).

        The topic filter keeps rows without a partition, such as a cancelled session; the window does not apply to
        markers. Each row is returned once, even if files overlap. Instants without a time zone are UTC.
        """
        marked = table == schema.MARKERS
        files = self.files(table) if marked else self.files(table, since=since, until=until)
        overlapping = self.overlapping(table)
        frame = _read_files(spark, table, [file for file in files if file not in overlapping])
        repeated = [file for file in files if file in overlapping]
        if repeated:
            frame = frame.unionAll(_read_files(spark, table, repeated).dropDuplicates(ROW_KEYS[table]))
        return frame if marked else _within(frame, since, until, topics)

    def duplicate_rows(self, spark: SparkSession, table: str, window: Window) -> int:
        """The number of rows that `read` drops because another file has them too. Reads only files that overlap."""
        overlapping = self.overlapping(table)
        if not overlapping:
            return 0
        rows = _read_files(spark, table, overlapping)
        rows = rows if table == schema.MARKERS else _within(rows, *window)
        once = rows.groupBy(*ROW_KEYS[table]).count()
        return int(once.agg(F.coalesce(F.sum(F.col("count") - 1), F.lit(0))).collect()[0][0])


def spark_schema(table: str) -> StructType:
    """A table's columns in Spark's types; dictionary-encoded words become strings."""
    return from_arrow_schema(schema.SCHEMAS[table], prefer_timestamp_ntz=False)


def find_archive(uri: str) -> ArchiveCatalog:
    """Lists an archive and reads the footer of each file. Raises `ArchiveUnusable` when no file can be used."""
    place = open_location(uri)
    found = place.list_files()
    candidates, set_aside, leftovers = _sort_paths(place, found)
    with ThreadPoolExecutor(_THREADS) as pool:
        judged = list(pool.map(lambda candidate: footer.read_footer(place, *candidate), candidates))
    usable = [file for file in judged if isinstance(file, ArchiveFile)]
    set_aside += [file for file in judged if isinstance(file, Quarantined)]
    used, copies = _drop_copies(usable)
    set_aside += copies
    if not used:
        raise ArchiveUnusable(_nothing_usable(uri, set_aside, leftovers))
    return ArchiveCatalog(uri, tuple(used), tuple(sorted(set_aside, key=lambda file: file.path)), leftovers)


def _sort_paths(place: Location, paths: list[str]) -> tuple[list[tuple[str, str]], list[Quarantined], int]:
    """The candidate files as (path, table), files outside the archive's layout, and the number of unfinished files."""
    candidates: list[tuple[str, str]] = []
    strays: list[Quarantined] = []
    leftovers = 0
    for path in paths:
        parts = path[len(place.root) :].lstrip("/").split("/")
        if any(part.startswith(("_", ".")) for part in parts):  # skip hidden files, as Spark does
            leftovers += parts[0] == layout.WRITING and path.endswith(".parquet")
        elif len(parts) > 1 and parts[0] in schema.TABLES and path.endswith(".parquet"):
            candidates.append((path, parts[0]))
        else:
            strays.append(Quarantined(path, "", footer.STRAY, "an archive's files are TABLE/….parquet"))
    return candidates, strays, leftovers


def _drop_copies(files: list[ArchiveFile]) -> tuple[list[ArchiveFile], list[Quarantined]]:
    """Keeps one file for each run, table and number, and one for each content. Prefers the file with the most rows,
    then the file with the daemon's naming.
    """

    def rank(file: ArchiveFile) -> tuple[int, bool, str]:
        own_name = layout.file_name(file.run_id, file.file_number)
        return -file.rows, not file.path.endswith(f"/{own_name}"), file.path

    by_number: dict[tuple[str, str, int], ArchiveFile] = {}
    by_content: dict[tuple[str, str, str], ArchiveFile] = {}
    copies: list[Quarantined] = []
    for file in sorted(files, key=rank):
        number, content = (file.table, file.run_id, file.file_number), (file.table, file.run_id, file.content)
        original = by_number.get(number) or (by_content.get(content) if file.rows else None)
        if original is not None:
            copies.append(Quarantined(file.path, file.table, footer.COPY, f"of {original.path}", file.rows))
            continue
        by_number[number] = by_content[content] = file
    used = sorted(by_number.values(), key=lambda file: (file.table, file.run_id, file.file_number))
    return used, copies


def _nothing_usable(uri: str, set_aside: list[Quarantined], leftovers: int) -> str:
    if not set_aside:
        unfinished = f" ({leftovers} unfinished in {layout.WRITING}/)" if leftovers else ""
        return f"the archive {uri} is empty: no file is complete yet{unfinished}"
    counts = Counter(file.reason for file in set_aside)
    by_reason = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    example = set_aside[0]
    return f"{uri} has no usable file: {by_reason}; for example {example.path}: {example.detail}"


def _read_files(spark: SparkSession, table: str, files: list[ArchiveFile]) -> DataFrame:
    if not files:
        return spark.createDataFrame([], spark_schema(table))
    reader = spark.read.schema(spark_schema(table)).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*(file.spark_path for file in files))


def _within(frame: DataFrame, since: Instant, until: Instant, topics: Iterable[str] | None) -> DataFrame:
    start, end = to_utc(since), to_utc(until)
    if start is not None:
        frame = frame.where(F.col("at") >= F.lit(start))
    if end is not None:
        frame = frame.where(F.col("at") < F.lit(end))
    if topics is not None:
        frame = frame.where(F.col("topic").isNull() | F.col("topic").isin(*topics))
    return frame


def _overlap(earlier: ArchiveFile, later: ArchiveFile) -> bool:
    """Whether two files of a run have overlapping call ranges. If a file starts in the middle of the call that the
    previous file ended with, that is not an overlap.
    """
    assert earlier.last_call is not None, earlier.path
    assert later.first_call is not None, later.path
    same_range = (earlier.first_call, earlier.last_call) == (later.first_call, later.last_call)
    one_call = earlier.first_call == earlier.last_call
    return later.first_call < earlier.last_call or (same_range and not one_call)
