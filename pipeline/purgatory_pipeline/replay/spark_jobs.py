"""The Spark jobs of a replay: which task replays what, and how results come back."""

from collections.abc import Iterator, Sequence
from typing import Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.extensions.archive.schema import EVENTS, REGISTRATIONS
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.engine_rows.row_chunk import TABLES
from purgatory_pipeline.errors import ArchiveUnusable
from purgatory_pipeline.replay.division import Connections, balanced, pack_bins
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.replay_sums import SCHEMA, added
from purgatory_pipeline.replay.replay_task import (
    PACKED,
    RESULTS,
    ReplayPlan,
    find_connections,
    pack_by_bin,
    replay_bins,
    replay_runs,
    units_of,
)
from purgatory_pipeline.replay.run_files import RunFiles, find_runs
from purgatory_pipeline.spark.tasks import in_tasks, parallelism, results_of

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
