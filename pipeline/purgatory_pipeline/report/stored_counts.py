"""Counts of a growing history, kept in a folder: what came new is counted and added, and nothing is counted twice.

An update is a folder NUMBER/ with the counts of the files that it took, and is valid once its `folded.json` is there,
which names all files taken so far. Additive counts stay in the updates that brought them and are summed up when they
are read; after UPDATES_MAX updates the next one holds the sum of all. Rows without a partner, which a later file may
bring, are held by the newest update alone. A process that dies before `folded.json` leaves a folder that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from purgatory.archive.schema import ACCEPTED
from purgatory_pipeline.archive.location import Location, write_file
from purgatory_pipeline.report.facts import (
    GROUP,
    UnmatchedRows,
    ended_counts,
    find_unmatched,
    registered_counts,
    waiting_until,
)
from purgatory_pipeline.report.report_builder import HistoryCounts, ReportOptions

FORMAT: Final = 1
"""Counts in another format are made anew."""
UPDATES_MAX: Final = 32
FOLDED: Final = "folded.json"

_ROW: Final = ("run_id", "session_number", "operation_id", "item")
_PLACE: Final = ("topic", "partition", "kind", "principal", "time_ms", "at")
REGISTRATION: Final = (*_ROW, *_PLACE, "timeout_ms", "refusal_code")
OUTCOME: Final = (*_ROW, *_PLACE, "waited_ms")
"""What is kept of rows without a partner."""

REGISTERED: Final = "registered"
ENDED: Final = "ended"
RUN_ENDS: Final = "run_ends"
ADDITIVE: Final = {
    REGISTERED: ("window", *GROUP, "timeout_ms", "refused"),
    ENDED: ("window", *GROUP, "fate", "waited_ms", "lateness_ms"),
    RUN_ENDS: ("run_id",),
}
"""Parts and their keys. Of the others the newest update has the whole."""
UNFINISHED: Final = "unfinished"
CARRIED_IN: Final = "carried_in"


@dataclass(frozen=True)
class FoldedFiles:
    """What the newest update says: its number, the updates that are summed up, and the files that were counted."""

    form: int
    number: int
    updates: tuple[int, ...]
    window_ms: int
    approximate: bool
    files: frozenset[str]

    def is_of(self, options: ReportOptions) -> bool:
        """Whether counts are made with these options."""
        made_with = (self.form, self.window_ms, self.approximate)
        return made_with == (FORMAT, options.window_ms, options.approximate)


class StoredCounts:
    """The counts in a folder. One process at a time may fold."""

    def __init__(self, session: SparkSession, place: Location, name: str) -> None:
        self._session: Final = session
        self._place: Final = place
        self._name: Final = name
        self.folded: FoldedFiles | None = self._newest()
        self._schemas: dict[str, StructType] = {}

    def forget(self) -> None:
        """Begins anew."""
        self.folded = None
        if self._place.filesystem.get_file_info(self._path()).type == fs.FileType.Directory:
            self._place.filesystem.delete_dir_contents(self._path())

    def fold(
        self, registrations: DataFrame, outcomes: DataFrame, files: Sequence[str], options: ReportOptions
    ) -> FoldedFiles:
        """Counts the rows of these files, which were not counted before, and writes an update that is not yet valid."""
        before = self.folded
        number = before.number + 1 if before is not None else 1
        begun = registrations.select(*REGISTRATION)
        ended = outcomes.select(*OUTCOME)
        run_ends = begun.where(F.col("refusal_code") == ACCEPTED).select("run_id", "time_ms")
        run_ends = run_ends.unionAll(ended.select("run_id", "time_ms"))
        parts = {
            REGISTERED: registered_counts(registrations, options.window_ms),
            ENDED: ended_counts(outcomes, options.window_ms, approximate=options.approximate),
            RUN_ENDS: run_ends.groupBy("run_id").agg(F.max("time_ms").alias("run_end_ms")),
        }
        updates: tuple[int, ...] = (number,)
        if before is not None:
            begun = begun.unionByName(self._read(UNFINISHED, [before.number]))
            ended = ended.unionByName(self._read(CARRIED_IN, [before.number]))
            if len(before.updates) < UPDATES_MAX:
                updates = (*before.updates, number)
            else:
                for name in ADDITIVE:
                    parts[name] = _summed(name, self._read(name, before.updates).unionByName(parts[name]))
        unmatched = find_unmatched(begun, ended)
        parts[UNFINISHED] = (begun.limit(0) if unmatched.unfinished is None else unmatched.unfinished).select(
            *REGISTRATION
        )
        parts[CARRIED_IN] = (ended.limit(0) if unmatched.carried_in is None else unmatched.carried_in).select(*OUTCOME)
        for name, rows in parts.items():
            rows.coalesce(1).write.mode("overwrite").parquet(f"{self._place.spark_prefix}{self._path(number, name)}")
        taken = frozenset(files) | (before.files if before is not None else frozenset())
        return FoldedFiles(FORMAT, number, updates, options.window_ms, options.approximate, taken)

    def commit(self, folded: FoldedFiles) -> None:
        """Makes an update valid, and removes what nobody needs any more."""
        content = json.dumps({**asdict(folded), "files": sorted(folded.files)})
        write_file(self._place, f"{self._name}/{folded.number:06}/{FOLDED}", content.encode())
        self.folded = folded
        keep = {f"{number:06}" for number in folded.updates}
        for info in self._place.filesystem.get_file_info(fs.FileSelector(self._path())):
            if info.base_name not in keep:
                self._place.filesystem.delete_dir(info.path)

    def counts(self) -> HistoryCounts:
        """Everything that was counted."""
        folded = self.folded
        assert folded is not None
        registered, ended, run_ends = (_summed(name, self._read(name, folded.updates)) for name in ADDITIVE)
        unfinished = waiting_until(self._read(UNFINISHED, [folded.number]), run_ends).localCheckpoint()
        carried_in = self._read(CARRIED_IN, [folded.number])
        return HistoryCounts(registered, ended, UnmatchedRows(unfinished, carried_in))

    def _newest(self) -> FoldedFiles | None:
        """The newest valid update; a file that was only partly written is none."""
        selector = fs.FileSelector(self._path(), allow_not_found=True)
        names = sorted((info.base_name for info in self._place.filesystem.get_file_info(selector)), reverse=True)
        for name in names:
            try:
                with self._place.filesystem.open_input_stream(f"{self._path()}/{name}/{FOLDED}") as stream:
                    told: dict[str, Any] = json.loads(stream.read())
            except (FileNotFoundError, json.JSONDecodeError):
                continue
            return FoldedFiles(**{**told, "updates": tuple(told["updates"]), "files": frozenset(told["files"])})
        return None

    def _read(self, name: str, updates: Sequence[int]) -> DataFrame:
        paths = [f"{self._place.spark_prefix}{self._path(number, name)}" for number in updates]
        return self._session.read.parquet(*paths)

    def _path(self, number: int | None = None, name: str = "") -> str:
        folder = f"{self._place.root}/{self._name}"
        return folder if number is None else f"{folder}/{number:06}/{name}"


def _summed(name: str, rows: DataFrame) -> DataFrame:
    keyed = rows.groupBy(*ADDITIVE[name])
    if name == RUN_ENDS:
        return keyed.agg(F.max("run_end_ms").alias("run_end_ms"))
    return keyed.agg(*(F.sum(column).alias(column) for column in ("waits", "operations")))
