"""The daemon runs in an archive, read from its markers: how each run started and ended, and which rows it dropped."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from purgatory.extensions.archive import schema
from purgatory.extensions.archive.run_details import RunDetails
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.archive.footer import ArchiveFile, open_parquet
from purgatory_pipeline.location import open_location, reading

OPEN: Final = "open"
"""Neither ended nor marked as crashed: the daemon is still running, or no later daemon has checked."""

_THREADS: Final = 16
_COLUMNS: Final = ["run_id", "call_number", "time_ms", "at", "marker", "table", "rows", "last_call_number", "detail"]


@dataclass(frozen=True)
class DaemonRun:
    """One run of a daemon, from start to end. `state` is ENDED, CRASHED or OPEN."""

    run_id: str
    state: str = OPEN
    started_at: datetime | None = None
    """None if the run's STARTED marker is no longer in the archive."""
    has_journal: bool = False
    """Waits that are pending at the end of this run continue in the daemon's next run."""
    is_continued: bool = False
    """This run continues the journal of an earlier run."""
    dropped_rows: dict[str, int] = field(default_factory=dict)
    """Number of rows dropped because the disk was too slow, by table."""
    last_files: dict[str, int] = field(default_factory=dict)
    """Number of the last file, by table; empty if unknown."""


def read_runs(archive: ArchiveCatalog) -> list[DaemonRun]:
    """All runs that have a file, sorted by id. Without markers, only the id of a run is known."""
    markers = read_markers(archive)
    return [_run(run_id, markers.get(run_id, [])) for run_id in sorted({*archive.run_ids(), *markers})]


def read_markers(archive: ArchiveCatalog) -> dict[str, list[dict[str, Any]]]:
    """The markers of each run. They are few, so the driver reads them, not the executors. Raises `ArchiveUnusable`.

    Marks may be large: their `detail` is the path of the file, for `read_marks`.
    """
    place = open_location(archive.uri)

    def read(file: ArchiveFile) -> list[dict[str, Any]]:
        with reading(file.path):
            rows = open_parquet(place.read(file.path)).read(columns=_COLUMNS).to_pylist()
        return [row | {"detail": file.path} if row["marker"] == schema.MARKS else row for row in rows]

    by_run: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with ThreadPoolExecutor(_THREADS) as pool:
        for rows in pool.map(read, archive.files(schema.MARKERS)):
            for row in rows:
                by_run[str(row["run_id"])].append(row)
    return dict(by_run)


def read_marks(uri: str, run_id: str, paths: Iterable[str]) -> list[str]:
    """The marks with which a run continued a journal (see `run_details.saved_marks`). Raises `ArchiveUnusable`."""
    found: list[str] = []
    for path in paths:
        with reading(path):
            rows = open_parquet(open_location(uri).read(path)).read(columns=["run_id", "marker", "detail"]).to_pylist()
        found += [row["detail"] for row in rows if (row["run_id"], row["marker"]) == (run_id, schema.MARKS)]
    return list(dict.fromkeys(found))


def _run(run_id: str, markers: Iterable[Mapping[str, Any]]) -> DaemonRun:
    run = DaemonRun(run_id)
    dropped: Counter[str] = Counter()
    for row in markers:
        if row["marker"] == schema.STARTED:
            run = replace(run, started_at=row["at"])
            if details := details_of(row):
                run = replace(run, has_journal=details.journal, is_continued=details.continued)
        elif row["marker"] == schema.DROPPED:
            dropped[row["table"]] += row["rows"] or 0
        elif row["marker"] != schema.MARKS and run.state != schema.ENDED:  # a crashed one may still have ended
            run = replace(run, state=row["marker"], last_files=last_files(row))
    return replace(run, dropped_rows=dict(dropped))


def last_files(ended: Mapping[str, Any]) -> dict[str, int]:
    """The number of a run's last file by table, from its ENDED or CRASHED marker; empty if unknown."""
    try:
        return {table: int(number) for table, number in json.loads(ended["detail"] or "{}").get("files", {}).items()}
    except (ValueError, AttributeError):
        return {}


def details_of(started: Mapping[str, Any]) -> RunDetails | None:
    """The run details from a STARTED marker; None if they cannot be decoded."""
    try:
        return RunDetails.from_json(started["detail"] or "")
    except (ValueError, TypeError):
        return None
