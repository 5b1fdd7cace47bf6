"""A history as the files that a stream reads, and the outcomes that it has written."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from purgatory_pipeline.stream.stream_rows import ROWS
from purgatory_pipeline.stream.wire_records import AT_MS_MAX

from purgatory.engine.codes import EVENT_NAMES, KIND_NAMES
from tests.pipeline.stream.simulated_history import Outcome, Row, outcomes_of

AT = pa.field("at", pa.timestamp("ms", tz="UTC"))
OF_FILES = pa.schema(
    [
        AT,
        pa.field("call_number", pa.int64()),
        pa.field("session_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("type", pa.string()),
        *[field for field in ROWS if field.name not in ("at_ms", "place", "caller", "kind", "type")],
    ]
)
"""The archive's columns, as far as a stream reads them."""


def file_row(row: Row) -> dict[str, Any]:
    """A row of a history, as the archive has it."""
    return row | {
        "at": row["at_ms"],
        "call_number": row.get("place"),
        "session_id": row.get("caller"),
        "kind": KIND_NAMES.get(row.get("kind", 0)),
        "type": EVENT_NAMES.get(row.get("type", 0)),
    }


def listed(folder: Path, *paths: Path) -> pa.RecordBatch:
    """Files of an input as Spark lists them: the columns that `file_packer` expects."""
    rows = [{"path": f"file:{path}", "uri": str(folder), "latest_ms": AT_MS_MAX} for path in paths]
    return pa.RecordBatch.from_pylist(rows)


class StreamFolders:
    """Folders of registrations, events and results. Slices of time are written one after the other."""

    def __init__(self, folder: Path) -> None:
        self.registrations = folder / "registrations"
        self.events = folder / "events"
        self.results = folder / "results"
        self._written = 0
        for inputs in (self.registrations, self.events):
            inputs.mkdir(parents=True)

    def write(self, rows: list[Row]) -> None:
        """One more file on either side, whole or not at all: a micro-batch takes one of each."""
        registrations = [row for row in rows if row.get("kind")]
        others = [row for row in rows if not row.get("kind")]
        for folder, part in ((self.registrations, registrations), (self.events, others)):
            path = folder / f"{self._written:05d}.parquet"
            hidden = path.with_name(f"_{path.name}")
            pq.write_table(pa.Table.from_pylist([file_row(row) for row in part], OF_FILES), hidden)
            os.utime(hidden, (1_700_000_000 + self._written,) * 2)
            hidden.rename(path)
        self._written += 1

    def slices(self, rows: list[Row], count: int) -> list[list[Row]]:
        """Divide rows into `count` slices without writing them; rows of one instant stay together."""
        cuts = [rows[len(rows) * number // count]["at_ms"] for number in range(1, count)]
        parts: list[list[Row]] = [[] for _ in range(count)]
        for row in rows:
            parts[sum(row["at_ms"] >= cut for cut in cuts)].append(row)
        return parts

    def rows(self, table: str) -> pa.Table:
        files = sorted((self.results / table).glob("batch=*/[!_]*.parquet"))
        return pa.concat_tables([pq.ParquetFile(file).read() for file in files]) if files else pa.table({})

    def outcomes(self) -> list[Outcome]:
        found = self.rows("outcomes")
        return outcomes_of(found) if found.num_rows else []
