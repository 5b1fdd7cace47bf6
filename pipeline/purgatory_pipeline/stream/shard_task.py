"""The Spark task that plays the payloads of a micro-batch in one shard."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from purgatory_pipeline.location import attempt_name, open_location
from purgatory_pipeline.stream.outcome_rows import OUTCOME_ROWS
from purgatory_pipeline.stream.payloads import PAYLOAD, unpacked
from purgatory_pipeline.stream.shard import QUARANTINED, Shard
from purgatory_pipeline.stream.shard_state import ShardLayout
from purgatory_pipeline.stream.wire_records import MALFORMED

OUTCOMES: Final = "outcomes"
LATE: Final = "late"
QUARANTINE: Final = "quarantine"
MALFORMED_RECORDS: Final = "malformed"
TABLES: Final = {OUTCOMES: OUTCOME_ROWS, LATE: QUARANTINED, QUARANTINE: QUARANTINED, MALFORMED_RECORDS: MALFORMED}
"""The output tables of a stream."""
BATCH: Final = "batch"
"""Name of the column and of the folders with the number of the micro-batch."""

FIGURES: Final = "figures"
TASK_ROWS: Final = pa.schema(
    [
        *OUTCOME_ROWS,
        (FIGURES, pa.struct([(name, pa.int64()) for name in (*TABLES, "pending", "horizon_ms", "oldest_wait_ms")])),
    ]
)
"""Outcomes, and one row for each shard in which only `figures` is set: rows by table, and the state after them."""
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local property with the number of the micro-batch."""


@dataclass(frozen=True)
class ShardTask:
    """For `mapInArrow` over one partition per shard: restores the shard, plays its payloads, and saves it.

    The state is saved before Spark commits the micro-batch. That is safe, because a repeated micro-batch starts from
    the state before it, and plays the same payloads. `folders`: where each table is written to; outcomes without a
    folder are yielded, and then the shard's figures (`TASK_ROWS`).
    """

    layout: ShardLayout
    delay_ms: int
    forget_ms: int
    folders: dict[str, str]

    def __call__(self, payloads: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Play the payloads of one shard: those of this task's partition."""
        context = TaskContext.get()
        assert context is not None, "not in a Spark task"
        number, batch = context.partitionId(), int(context.getLocalProperty(BATCH_PROPERTY) or 0)
        shard = self.layout.load(number, batch, self.delay_ms, self.forget_ms)
        found = pa.Table.from_batches(payloads, PAYLOAD)
        strays = set(found.column("shard").to_pylist()) - {number}
        assert not strays, f"partition {number} has payloads of shards {strays}"
        tables = play_payloads(shard, found)
        for name, rows in tables.items():
            if rows.num_rows and name in self.folders:
                write_part(self.folders[name], batch, number, rows)
        self.layout.save(shard, batch + 1)
        figures = {name: rows.num_rows for name, rows in tables.items()}
        figures |= {name: getattr(shard, name) for name in ("pending", "horizon_ms", "oldest_wait_ms")}
        found = [] if OUTCOMES in self.folders else [tables[OUTCOMES]]
        last = pa.Table.from_pylist([{FIGURES: figures}], TASK_ROWS)
        yield from pa.concat_tables([*found, last], promote_options="default").to_batches()


def play_payloads(shard: Shard, payloads: pa.Table) -> dict[str, pa.Table]:
    """Play the payloads of one micro-batch. Returns the rows of each table."""
    if not payloads.num_rows:
        return {name: schema.empty_table() for name, schema in TABLES.items()}
    seen_ms = max(payloads.column("seen_ms").to_pylist())
    played = shard.play(unpacked(payloads.column("rows").to_pylist()), seen_ms)
    malformed = unpacked(payloads.column("malformed").to_pylist(), MALFORMED)
    quarantine = pa.concat_tables([played.malformed, unpacked(payloads.column("quarantined").to_pylist(), QUARANTINED)])
    return dict(zip(TABLES, (played.outcomes, played.late, quarantine, malformed), strict=True))


def write_part(folder: str, batch: int, shard: int, rows: pa.Table) -> None:
    """Write one shard's rows of a batch atomically, replacing the file of another attempt."""
    place = open_location(folder).child(f"{BATCH}={batch:08d}")
    place.filesystem.create_dir(place.root, recursive=True)
    name = f"shard-{shard:05d}.parquet"
    unfinished = place.child(attempt_name(name)).root
    pq.write_table(rows, unfinished, filesystem=place.filesystem, write_page_checksum=True)
    place.filesystem.move(unfinished, place.child(name).root)
