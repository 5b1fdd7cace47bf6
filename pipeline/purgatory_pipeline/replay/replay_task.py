"""The Spark jobs of a replay, and the work of an executor: runs in; sums, or a row for each operation, out.

The rows of a large run are spread over bins, so that each bin can be replayed by itself. First the run's connections
are found. Then each file is read once and its rows are packed, bin by bin. Spark shuffles them and sorts each bin by
call, which the replay depends on.
"""

import gc
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory.extensions.archive.schema import CALLS, EVENTS, OUTCOMES, REGISTRATIONS
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.archive.daemon_runs import read_marks
from purgatory_pipeline.archive.footer import ArchiveFile
from purgatory_pipeline.engine_rows.row_chunk import TABLES, Column, RowChunk, join
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.location import open_location
from purgatory_pipeline.replay.division import BinAssignment, Connections, balanced, pack_bins
from purgatory_pipeline.replay.open_operations import OUTCOMES_READ, WITHOUT_REGISTRATION, OpenOperations
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.replay_sums import SCHEMA, ReplaySums, added
from purgatory_pipeline.replay.run_files import RunContext, RunFiles, TableReader, chunks_of, find_runs, windows
from purgatory_pipeline.replay.run_replay import RunReplay
from purgatory_pipeline.spark.tasks import in_tasks, parallelism, results_of

VERDICTS: Final = ("equal", "different", "no outcome", "in doubt")

RESULTS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("policy", pa.string()),
        ("session_number", pa.int64()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("topic", pa.string()),  # of its first item; null: a signal
        ("item_count", pa.int64()),
        ("recorded", pa.string()),  # recorded outcome; null: it had none
        ("recorded_waited_ms", pa.int64()),
        ("replayed", pa.string()),
        ("replayed_waited_ms", pa.int64()),
        ("verdict", pa.string()),  # VERDICTS; under a policy: next to the row of the policy `unchanged`
    ]
)
"""A row for each operation and policy."""


@dataclass(frozen=True)
class ReplayPlan:
    """The archive to replay, and the policies to try side by side."""

    uri: str
    policies: tuple[Policy, ...]


def replay_runs(replay: ReplayPlan, runs: Iterable[RunFiles], *, results: bool) -> Iterator[pa.RecordBatch]:
    """Replays whole runs from their files: yields the sums of all of them, or a row for each operation."""
    place = open_location(replay.uri)
    tally = ReplaySums()
    for run in runs:
        files = [TableReader(place, file.path, file.table) for file in run.files]
        yield from replay_run(replay, run.facts, chunks_of(files, tally.counts), tally, results=results)
    if not results:
        yield from tally.table().to_batches()


def replay_run(
    replay: ReplayPlan, facts: RunContext, chunks: Iterable[RowChunk], tally: ReplaySums, *, results: bool
) -> Iterator[pa.RecordBatch]:
    """Replays one run and adds to the sums; yields rows for its operations if `results`."""
    rows: list[pa.RecordBatch] = []

    def add_rows(run_id: str, finished: OpenOperations, verdicts: Sequence[Column]) -> None:
        rows.extend(result_rows(replay.policies, [*tally.topics], run_id, finished, verdicts))

    marks = read_marks(replay.uri, facts.run_id, facts.marks)
    run = RunReplay(facts, replay.policies, tally, add_rows if results else None, marks)
    collecting = gc.isenabled()
    gc.disable()  # there are many objects and no cycles
    try:
        for window in windows(chunks, facts.first_ms, repeated=facts.repeated):
            run.take(window)
            yield from rows
            rows.clear()
        run.finish()
        yield from rows
    finally:
        if collecting:
            gc.enable()


def result_rows(
    policies: Sequence[Policy], topics: Sequence[str], run_id: str, finished: OpenOperations, verdicts: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """A batch for each policy, with a row for each operation. `topics` are numbered from 1."""
    outcomes = names_by_code(OUTCOME_NAMES)
    common = {
        "run_id": np.full(len(finished), run_id, object),
        "session_number": finished["session"],
        "operation_id": finished["operation"],
        "kind": names_by_code(KIND_NAMES)[finished["kind"]],
        "topic": np.array([None, *topics], object)[finished["topic"]],
        "item_count": finished["item_counts"],
        "recorded": outcomes[finished.recorded["outcome"]],
        "recorded_waited_ms": finished.recorded["waited_ms"],
    }
    for policy, ends, verdict in zip(policies, finished.replayed, verdicts, strict=True):
        columns = common | {
            "policy": np.full(len(finished), policy.label, object),
            "replayed": outcomes[ends["outcome"]],
            "replayed_waited_ms": ends["waited_ms"],
            "verdict": np.array(VERDICTS, object)[verdict],
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in RESULTS], schema=RESULTS
        )


def names_by_code(names: dict[int, str]) -> Column:
    """None where a code has no name."""
    return np.array([names.get(code) for code in range(max(names) + 1)], object)


GATHERED_ROWS: Final = 200_000
"""Small row groups are joined up to this many rows before they are spread."""

IDLE_EVENTS: Final = "events of partitions on which nothing waits"

PACKED: Final = pa.schema(
    [
        ("bin", pa.int32()),
        ("run", pa.int32()),
        ("first_call", pa.int64()),
        ("place", pa.int64()),  # among the chunks of its table
        ("rows", pa.binary()),
    ]
)
COUNTED: Final = -1
"""`run` of a row that holds counters instead of rows."""


@dataclass(frozen=True)
class Unit:
    """Some consecutive files of one table of a run."""

    run: int
    first_place: int
    files: tuple[ArchiveFile, ...]


def units_of(runs: Sequence[RunFiles], tables: Sequence[str], rows_max: int) -> list[Unit]:
    """Files of the runs in units of about `rows_max` rows, the largest first."""
    units: list[tuple[int, Unit]] = []
    for run, files in enumerate(runs):
        for table in tables:
            own = sorted((file for file in files.files if file.table == table), key=lambda file: file.file_number)
            start, rows = 0, 0
            for place, file in enumerate(own, 1):
                rows += file.rows
                if rows >= rows_max or place == len(own):
                    units.append((rows, Unit(run, start, tuple(own[start:place]))))
                    start, rows = place, 0
    return [unit for _, unit in sorted(units, key=lambda entry: -entry[0])]


def find_connections(uri: str, unit: Unit, keys_max: int) -> Connections:
    connections = Connections(keys_max)
    for chunk in _chunks(uri, unit, Counter(), columns=NAMING[unit.files[0].table]):
        connections.add(chunk)
    return connections


NAMING: Final = {
    REGISTRATIONS: ("call_number", "session_number", "operation_id", "kind", "item", "item_count"),
    EVENTS: ("call_number", "type"),
}
"""Columns needed to find connections, besides names."""


def pack_by_bin(uri: str, unit: Unit, assignment: BinAssignment) -> Iterator[pa.RecordBatch]:
    """A unit's rows by bin, packed; at the end what was counted."""
    counts: Counter[str] = Counter()
    for number, chunk in enumerate(_gathered(uri, unit, counts)):
        spread_out, bins = assign_bins(chunk, assignment, counts)
        # Chunks of a table that begin with the same call keep their order in the bin by this number.
        sequence = (unit.first_place << 32) + number
        packed: list[tuple[Any, ...]] = []
        for place in np.unique(bins).tolist():
            part = spread_out.take(bins == place).with_names_used(few=1)
            packed.append((place, unit.run, part.first_call, sequence, pack(part)))
        yield batch_of(packed, PACKED)
    if counts.total():
        counted = RowChunk(CALLS, {"call": np.empty(0, np.int64)}, details=sorted(counts.items()))
        yield batch_of([(assignment.all_bins[0], COUNTED, 0, 0, pack(counted))], PACKED)


def batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def replay_bins(
    replay: ReplayPlan, facts: Sequence[RunContext], batches: Iterable[pa.RecordBatch], *, results: bool
) -> Iterator[pa.RecordBatch]:
    tally = ReplaySums()
    cells = (
        cell for batch in batches for cell in zip(batch["run"].to_pylist(), batch["rows"].to_pylist(), strict=True)
    )
    for run, packed in groupby(cells, key=itemgetter(0)):
        if run == COUNTED:
            for _, rows in packed:
                tally.counts.update(dict(unpack(rows).details))
            continue
        chunks = (unpack(rows) for _, rows in packed)
        yield from replay_run(replay, facts[run], chunks, tally, results=results)
    if not results:
        yield from tally.table().to_batches()


def _gathered(uri: str, unit: Unit, counts: Counter[str]) -> Iterator[RowChunk]:
    """The row groups of a unit, small ones joined."""
    held: list[RowChunk] = []
    for chunk in _chunks(uri, unit, counts):
        held.append(chunk)
        if sum(len(part) for part in held) >= GATHERED_ROWS:
            yield join(held)
            held = []
    if held:
        yield join(held)


def _chunks(uri: str, unit: Unit, counts: Counter[str], columns: Sequence[str] | None = None) -> Iterator[RowChunk]:
    """The row groups of a unit that have rows."""
    place = open_location(uri)
    for file in unit.files:
        table = TableReader(place, file.path, file.table)
        for group in range(table.groups):
            chunk = table.chunk(group, counts, names=True, columns=columns)
            if len(chunk):
                yield chunk


def assign_bins(chunk: RowChunk, assignment: BinAssignment, counts: Counter[str]) -> tuple[RowChunk, Column]:
    """Rows, and the bin of each; a row that concerns several bins is repeated."""
    if chunk.table == CALLS:  # they are few, and any may concern any bin
        bins = np.array(assignment.all_bins)
        return chunk.take(np.repeat(np.arange(len(chunk)), len(bins))), np.tile(bins, len(chunk))
    if chunk.table == EVENTS:
        rows, bins = assignment.rows_of_events(chunk)
        counts[IDLE_EVENTS] += len(chunk) - len(np.unique(rows))
        repeated = chunk.take(rows)
        repeated.columns["copy"] = np.diff(rows, prepend=-1) == 0  # so that counts of events count each once
        return repeated, bins
    bins = assignment.bins_of_operations(chunk)
    placed = bins >= 0
    if not bool(np.all(placed)):
        assert chunk.table == OUTCOMES, f"registrations without a place: {chunk.names}"
        homeless = int(np.count_nonzero(~placed & (chunk.column("item") == 0)))
        counts[OUTCOMES_READ] += homeless
        counts[WITHOUT_REGISTRATION] += homeless
        return chunk.without_names().take(placed), bins[placed]
    return (chunk.without_names() if chunk.table == OUTCOMES else chunk), bins


def pack(chunk: RowChunk) -> bytes:
    """The chunk as bytes for another task of the same job. In Spark's shuffle each byte costs more than packing it."""
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "lz4") as stream:
        stream.write(pickle.dumps(chunk))
    return packed.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(packed: bytes) -> RowChunk:
    """Reverses `pack`."""
    chunk: RowChunk = pickle.loads(pa.CompressedInputStream(pa.BufferReader(packed), "lz4").read())  # noqa: S301 -- see `pack`
    return chunk


TASKS_PER_CORE: Final = 4
ROWS_PER_TASK: Final = 1_000_000
"""Small runs share a task, up to this many rows."""
UNIT_ROWS_MIN: Final = 100_000
DIVIDED_FROM_ROWS: Final = 200_000
UNEVEN: Final = 1.25
"""Runs are divided when some core would have to work this many times its fair share."""


def replay_rows(
    spark: SparkSession, archive: ArchiveCatalog, policies: Sequence[Policy], *, divided_from: int = DIVIDED_FROM_ROWS
) -> DataFrame:
    """A row for each operation and policy (see `replay_task.RESULTS`), computed when it is used.

    Runs of fewer rows than `divided_from` stay in one task.
    """
    whole, small, large = _divided(spark, archive, policies, divided_from)
    frames = [_replay_large(spark, whole, large, RESULTS)] if large else []
    if small:
        groups = grouped_runs(small, parallelism(spark))
        frames.append(in_tasks(spark, groups, lambda group: replay_runs(whole, group, results=True), RESULTS))
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])


def replay_sums(
    spark: SparkSession, archive: ArchiveCatalog, policies: Sequence[Policy], *, divided_from: int = DIVIDED_FROM_ROWS
) -> pd.DataFrame:
    """The sums over all operations (see `replay_sums.SCHEMA`). Runs at once; the first policy should be UNCHANGED."""
    whole, small, large = _divided(spark, archive, policies, divided_from)

    def of_group(group: Sequence[RunFiles]) -> pa.Table:
        return pa.Table.from_batches(replay_runs(whole, group, results=False), SCHEMA)

    # Not a DataFrame: no query has to be planned, and the Python workers that did the intake are used again.
    sums = results_of(spark, grouped_runs(small, parallelism(spark)), of_group) if small else []
    if large:
        sums.append(_replay_large(spark, whole, large, SCHEMA).toArrow().cast(SCHEMA))
    return added(pa.concat_tables(sums)).to_pandas()


def _divided(
    spark: SparkSession, archive: ArchiveCatalog, policies: Sequence[Policy], divided_from: int
) -> tuple[ReplayPlan, list[RunFiles], list[RunFiles]]:
    runs = find_runs(archive)
    if not runs:
        raise ArchiveUnusable(f"{archive.uri} has no registrations, events or outcomes: there is nothing to replay")
    large = large_runs(runs, parallelism(spark), divided_from)
    small = [run for run in runs if run not in large]
    return ReplayPlan(archive.uri, tuple(policies)), small, large


def _replay_large(spark: SparkSession, whole: ReplayPlan, runs: Sequence[RunFiles], schema: pa.Schema) -> DataFrame:
    """Replays each run in many tasks, after spreading its rows over bins."""
    cores = parallelism(spark)
    bins = cores * TASKS_PER_CORE
    rows_max = max(UNIT_ROWS_MIN, sum(run.rows for run in runs) // bins)
    assignments = pack_bins(_connections(spark, whole.uri, runs, rows_max), bins, cores)
    uri, facts, results = whole.uri, [run.facts for run in runs], schema is RESULTS
    packed = in_tasks(
        spark, units_of(runs, TABLES, rows_max), lambda unit: pack_by_bin(uri, unit, assignments[unit.run]), PACKED
    )
    gathered = packed.repartitionById(bins, "bin").sortWithinPartitions("run", "first_call", "place")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return replay_bins(whole, facts, batches, results=results)

    return gathered.mapInArrow(work, from_arrow_schema(schema))


def _connections(spark: SparkSession, uri: str, runs: Sequence[RunFiles], rows_max: int) -> list[Connections]:
    """The connections of each run. Only names reach the driver, never operations."""
    keys_max = [run.facts.details.engine_limits().signal_keys_max for run in runs]
    units = units_of(runs, (REGISTRATIONS, EVENTS), rows_max)
    found = results_of(spark, units, lambda unit: (unit.run, find_connections(uri, unit, keys_max[unit.run])))
    connections = [Connections(most) for most in keys_max]
    for run, own in found:
        connections[run].merge(own)
    return connections


def large_runs(runs: Sequence[RunFiles], cores: int, divided_from: int) -> list[RunFiles]:
    """The runs to divide: none, if whole ones keep all cores busy to the end."""
    fair = sum(run.rows for run in runs) / cores
    heaviest = sum(run.rows for run in _balanced_groups(runs, cores)[0])
    if cores == 1 or heaviest <= UNEVEN * fair:
        return []
    return [run for run in runs if run.rows >= max(divided_from, fair / TASKS_PER_CORE)]


def grouped_runs(runs: Sequence[RunFiles], cores: int) -> list[list[RunFiles]]:
    """Groups of runs with about the same number of rows, one for each task; the largest first."""
    rows = sum(run.rows for run in runs)
    return _balanced_groups(runs, min(len(runs), max(cores * TASKS_PER_CORE, -(-rows // ROWS_PER_TASK))))


def _balanced_groups(runs: Sequence[RunFiles], count: int) -> list[list[RunFiles]]:
    return [[runs[place] for place in group] for group in balanced([run.rows for run in runs], count)]
