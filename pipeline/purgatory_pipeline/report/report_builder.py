"""Makes all tables of a report from the tables of an archive, and writes them.

Registrations and outcomes are counted (`facts`) and, unless the intake has done so, matched with each other. Outcomes
are read again for the backlog and for slow produces, together with the events around those; a few columns each.
Everything else is computed from the facts, which Spark caches in memory or on disk.

A report is DIR/tables/NAME as Parquet, DIR/csv/NAME.csv, and the page DIR/report.html. Spark writes the tables that it
computed, whatever their size; in a session for few rows, the driver does. The CSV files and the page contain the first
rows of each table in its sort order.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyarrow import dataset, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.engine import codes
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import Location, write_file
from purgatory_pipeline.report import advice, anomalies, ending_calls, near_misses, rollups, stragglers
from purgatory_pipeline.report.facts import (
    ENDS,
    SATISFIED,
    UnmatchedRows,
    condensed,
    find_unmatched,
    make_facts,
    queried,
    registered_counts,
)
from purgatory_pipeline.report.report_tables import PAGE_ROWS_MAX, TABLES, ResultTable
from purgatory_pipeline.spark.tasks import collected, frame_of, is_small

PRODUCE: Final = codes.KIND_NAMES[codes.PRODUCE]
WINDOW_MS_MIN: Final = 1_000
TIMEOUT_MS_MAX: Final = 2**53
TOTALS: Final = ("registered", "refused", "carried_in", "ended", *ENDS, "unfinished")


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report. Raises `PipelineError` for a value out of range."""

    window_ms: int = 3_600_000
    slow_share: float = 0.01
    """The share of satisfied produces, the slowest, that is examined one by one."""
    slow_over_ms: int | None = None
    """If given, produces that waited longer than this are examined instead."""
    top: int = 20
    """Rows of `hot_keys` for each kind."""
    topics_max: int = 20
    """For each kind, the number of topics (or keys), the busiest, that get advice of their own."""
    timeouts_ms: tuple[int, ...] = ()
    """Timeouts to evaluate, in addition to those in use and round values."""
    objective: float | None = None
    """The share that may not expire; without it, the table `budget` is empty."""

    def __post_init__(self) -> None:
        if self.window_ms < WINDOW_MS_MIN:
            raise PipelineError(f"window of {self.window_ms} ms: the minimum is one second")
        if not 0 < self.slow_share < 1:
            raise PipelineError(f"slow share {self.slow_share}: must be between 0 and 1, for example 0.01")
        if self.slow_over_ms is not None and self.slow_over_ms < 0:
            raise PipelineError(f"slow over {self.slow_over_ms} ms: must not be negative")
        for name, value in (("top", self.top), ("topics", self.topics_max)):
            if value < 1:
                raise PipelineError(f"{name} {value}: must be at least 1")
        for timeout_ms in self.timeouts_ms:
            if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
                raise PipelineError(f"timeout of {timeout_ms} ms: must be at least 1 ms")


@dataclass(frozen=True)
class Report:
    """All tables except `intake`, unsorted: some are computed by Spark on use, the rest are in memory."""

    spark: SparkSession
    computed: Mapping[str, DataFrame]
    known: Mapping[str, pa.Table]
    totals: Mapping[str, int]
    """Counts of operations, as in `ReportInfo`."""
    slow_over_ms: int | None
    """None if no produce was satisfied."""
    held: tuple[DataFrame, ...]

    @cached_property
    def tables(self) -> Mapping[str, DataFrame]:
        """All tables by name, as `report_tables` describes them."""
        return {**self.computed, **{name: frame_of(self.spark, table) for name, table in self.known.items()}}

    def release(self) -> None:
        """Frees Spark's cache for the tables. They can still be used, but are then recomputed."""
        for frame in self.held:
            frame.unpersist()


def make_report(
    registrations: DataFrame,
    outcomes: DataFrame,
    events: DataFrame,
    options: ReportOptions | None = None,
    *,
    is_matched: bool = False,
) -> Report:
    """Reads registrations and outcomes; the rest is read when it is used.

    The frames have the columns of `purgatory.extensions.archive.schema`; each registration and outcome comes once.
    `is_matched`: the intake has matched all registrations and outcomes, so they are not compared again.
    """
    options = options or ReportOptions()
    unmatched = UnmatchedRows() if is_matched else find_unmatched(registrations, outcomes)
    if unmatched.again is not None:
        row = ["run_id", "session_number", "operation_id", "item"]
        outcomes = outcomes.join(F.broadcast(unmatched.again.select(row)), row, "left_anti")
    with ThreadPoolExecutor(2) as pool:  # while one side is planned, another has the cores
        deepest = pool.submit(rollups.deepest_backlog, outcomes, unmatched.open)
        counts = _count(registrations, outcomes, unmatched, options.window_ms)
        report = _derive(counts, outcomes, events, options, pool)
        return replace(report, computed={**report.computed, "backlog": deepest.result()})


@dataclass(frozen=True)
class _Counts:
    """What is counted in registrations and outcomes: `few` are the condensed `facts`, which Spark caches."""

    registered: DataFrame
    facts: DataFrame
    few: DataFrame


def _count(registrations: DataFrame, outcomes: DataFrame, unmatched: UnmatchedRows, window_ms: int) -> _Counts:
    """The first step: read registrations and outcomes once."""
    registered = registered_counts(registrations, window_ms).localCheckpoint(eager=False)
    facts = make_facts(registered, outcomes, unmatched, window_ms)
    return _Counts(registered, facts, condensed(facts.persist()).localCheckpoint(eager=False))


def _derive(
    counts: _Counts, outcomes: DataFrame, events: DataFrame, options: ReportOptions, pool: ThreadPoolExecutor
) -> Report:
    """The second step: all tables but the backlog, from the counts; for slow produces, from their rows too."""
    levels = pool.submit(lambda: rollups.rolled_up(counts.facts, counts.few).localCheckpoint(eager=False))
    largest = advice.largest_topics(counts.few, options.topics_max).localCheckpoint(eager=False)
    missed = near_misses.near_misses(outcomes, events).localCheckpoint(eager=False)
    rows = levels.result()
    found = collected(
        {
            "waited": advice.waited_counts(counts.few, missed, largest),
            "timeouts": advice.timeout_counts(counts.registered, largest),
            "measured": anomalies.measured_windows(rows, options.topics_max),
        }
    )
    waited, timeouts, measured = (part.to_pandas() for part in found.values())
    slow_over_ms = _slow_over_ms(waited, options)
    slow = stragglers.slow_waits(outcomes, slow_over_ms or 0).localCheckpoint(eager=False)
    held = stragglers.held_counts(slow, events)
    in_use = advice.timeouts_in_use(timeouts)
    ends = ending_calls.operation_ends(outcomes, missed)
    known = {
        "windows": rollups.window_waits(measured, options.window_ms),
        "anomalies": anomalies.anomalies(measured, options.window_ms),
        "slow_produces": stragglers.slow_produces(held),
        "stragglers": stragglers.stragglers(held),
        **advice.advise(waited, in_use, options.timeouts_ms, partial(ending_calls.widening, ends)),
        "near_misses": near_misses.near_miss_table(waited),
    }
    computed = {
        "groups": rollups.group_waits(rows, options.window_ms),
        "topics": rollups.topic_waits(rows),
        "hot_keys": rollups.hot_keys(rows, options.top),
        "principals": rollups.principals(rows),
    }
    if options.objective is None:
        known["budget"] = TABLES["budget"].schema.empty_table()
    else:
        limits = {"window_ms": options.window_ms, "objective": options.objective}
        computed["budget"] = queried("budget", facts=counts.facts, registered=counts.registered, **limits)
    totals = {name: sum(known["windows"].column(name).to_pylist()) for name in TOTALS}
    return Report(counts.registered.sparkSession, computed, known, totals, slow_over_ms, (counts.facts,))


def _slow_over_ms(counts: pd.DataFrame, options: ReportOptions) -> int | None:
    """The longest wait of satisfied produces outside the slowest share; None if there are none."""
    is_done = (counts["kind"] == PRODUCE) & (counts["fate"] == SATISFIED)
    waits: Any = counts[is_done].groupby("waited_ms")["operations"].sum()
    if waits.empty:
        return None
    if options.slow_over_ms is not None:
        return options.slow_over_ms
    enough = waits.cumsum() >= waits.sum() * (1 - options.slow_share) - 1e-6
    return int(waits.index[enough.to_numpy().argmax()])


WRITERS: Final = 4
"""Number of tables written concurrently: while Spark plans one, the others use the cores."""

Written = dict[str, tuple[pd.DataFrame, int]]
"""The first rows and the total number of rows, by table."""


def write_tables(computed: Mapping[str, DataFrame], known: Mapping[str, pa.Table], place: Location) -> Written:
    if all(is_small(frame.sparkSession) for frame in computed.values()):
        few = {name: rows.cast(TABLES[name].schema) for name, rows in collected(computed).items()}
        computed, known = {}, {**known, **few}
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = {
            name: pool.submit(write_computed, computed[name], table, place)
            for name, table in TABLES.items()
            if name in computed
        }
        written = {name: write_known(rows, TABLES[name], place) for name, rows in known.items()}
        return written | {name: future.result() for name, future in writing.items()}


def write_computed(frame: DataFrame, table: ResultTable, place: Location) -> tuple[pd.DataFrame, int]:
    """Writes a table as sorted Parquet, and its first rows as CSV. Returns these rows and the total number of rows."""
    path = f"{place.root}/tables/{table.name}"
    order = [F.desc(name[1:]) if name.startswith("-") else F.asc(name) for name in table.order]
    rows = frame.select(*table.column_names).repartition(1).sortWithinPartitions(*order)
    rows.write.mode("overwrite").parquet(f"{place.spark_prefix}{path}")
    written = dataset.dataset(path, filesystem=place.filesystem, format="parquet")
    return _shown(written.head(PAGE_ROWS_MAX), table, place), written.count_rows()


def write_known(rows: pa.Table, table: ResultTable, place: Location) -> tuple[pd.DataFrame, int]:
    """Like `write_computed`, for a table in memory."""
    names, rising = [name.lstrip("-") for name in table.order], [not name.startswith("-") for name in table.order]
    order = rows.select(names).to_pandas().sort_values(names, ascending=rising, na_position="first").index
    written = rows.select(list(table.column_names)).take(pa.array(order))
    path = f"{place.root}/tables/{table.name}"
    place.filesystem.create_dir(path, recursive=True)
    place.filesystem.delete_dir_contents(path)
    parquet.write_table(written, f"{path}/part-0.parquet", filesystem=place.filesystem, write_page_checksum=True)
    return _shown(written.slice(0, PAGE_ROWS_MAX), table, place), written.num_rows


def _shown(rows: pa.Table, table: ResultTable, place: Location) -> pd.DataFrame:
    shown: pd.DataFrame = rows.to_pandas()
    zoned = shown.select_dtypes("datetimetz")
    shown = shown.assign(**{name: zoned[name].dt.tz_localize(None) for name in zoned})
    write_file(place, f"csv/{table.name}.csv", shown.to_csv(index=False).encode())
    return shown
