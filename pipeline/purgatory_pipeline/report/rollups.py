"""Tables that count and measure waits by group, topic and window, and the hot keys.

Each fact is repeated once per level, and Spark shuffles the facts of a row together. The rows are then measured in
numpy. A task holds one shuffle partition in memory, so more partitions need less memory each.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.facts import CARRIED_IN, ENDS, EXPIRED, REFUSED, REGISTERED, SATISFIED, UNFINISHED
from purgatory_pipeline.report.quantiles import MILLION, QUANTILES, Ints, quantiles
from purgatory_pipeline.report.report_tables import GROUPS, HOT_KEYS, TOPICS, WINDOWS

WAITS: Final = {**{f"wait_{name}_ms": share for name, share in QUANTILES.items()}, "wait_max_ms": MILLION}
LATENESS: Final = {"lateness_p50_ms": 500_000, "lateness_p99_ms": 990_000, "lateness_max_ms": MILLION}
RATES: Final = {"completion_rate": SATISFIED, "expiry_rate": EXPIRED}

OF_GROUPS: Final = 0
OF_TOPICS: Final = 1
OF_WINDOWS: Final = 2
OF_TOPICS_AND_WINDOWS: Final = 3
"""Levels of aggregation in `rolled_up`."""

FATES: Final = (*ENDS, REGISTERED, REFUSED, UNFINISHED, CARRIED_IN)
LAID_OUT: Final = {
    "level": "int",
    "window": "bigint",
    "topic": "string",
    "partition": "int",
    "kind": "string",
    "principal": "string",
}
"""The columns that identify a row. `groups` has all of them; at other levels some are null."""

COUNTS: Final = ("partitions", "registered", "refused", "ended", *ENDS, "unfinished", "carried_in", "waited_total_ms")
ROLLED_UP: Final = {
    **LAID_OUT,
    **dict.fromkeys((*COUNTS, *WAITS, *LATENESS), "bigint"),
    **dict.fromkeys(RATES, "double"),
}


def rolled_up(facts: DataFrame, few: DataFrame) -> DataFrame:
    """Aggregates facts: a row for each group and for each topic and kind (counting waits), and for each window and kind
    and each window, topic and kind (counting operations).

    `level` is the level of a row; the columns are those of the tables `groups` and `topics`. `few` are the condensed
    facts.
    """
    whole = ("window", "topic", "partition", "kind", "principal")
    of_waits = _laid_out(facts, _level(OF_GROUPS, "waits", *whole), _level(OF_TOPICS, "waits", *whole[1:4]))
    of_operations = _laid_out(
        few.where("operations > 0"),
        _level(OF_WINDOWS, "operations", "window", "kind"),
        _level(OF_TOPICS_AND_WINDOWS, "operations", "window", "topic", "kind"),
    )
    together = of_waits.unionAll(of_operations).repartition("level", "window", "topic", "kind")
    return together.mapInArrow(_measured, ", ".join(f"`{name}` {kind}" for name, kind in ROLLED_UP.items()))


def group_waits(rows: DataFrame, window_ms: int) -> DataFrame:
    """Makes the table `groups` from `rolled_up`."""
    window_start = F.timestamp_millis(F.col("window") * F.lit(window_ms))
    of_groups = rows.where(F.col("level") == OF_GROUPS)
    return of_groups.withColumn("window_start", window_start).select(*GROUPS.column_names)


def topic_waits(rows: DataFrame) -> DataFrame:
    """Makes the table `topics` from `rolled_up`."""
    return rows.where(F.col("level") == OF_TOPICS).select(*TOPICS.column_names)


def window_waits(rows: pd.DataFrame, window_ms: int) -> pa.Table:
    """Makes the table `windows` from rows of `rolled_up`; other levels are ignored."""
    of_windows = rows[rows["level"] == OF_WINDOWS]
    starts = pd.to_datetime(of_windows["window"] * window_ms, unit="ms", utc=True)
    return pa.Table.from_pandas(of_windows.assign(window_start=starts), WINDOWS.schema, preserve_index=False)


def hot_keys(rows: DataFrame, top: int) -> pa.Table:
    """Makes the table `hot_keys` from `rolled_up`."""
    counted = (
        rows.where(F.col("level") == OF_GROUPS)
        .groupBy("topic", "partition", "kind")
        .agg(F.sum("ended").alias("waits"), F.sum("waited_total_ms").alias("waited_total_ms"))
        .where("waits > 0")
        .localCheckpoint()
    )
    waits, waited_ms = counted.agg(F.sum("waits"), F.sum("waited_total_ms")).collect()[0]
    found = []
    for by, column, everything in (("waits", "waits", waits), ("waited", "waited_total_ms", waited_ms)):
        most: pd.DataFrame = counted.orderBy(F.desc(column), "topic", "partition", "kind").limit(top).toPandas()
        ranks = np.arange(1, len(most) + 1)
        found.append(most.assign(by=by, rank=ranks, share=most[column] / max(everything or 0, 1)))
    return pa.Table.from_pandas(pd.concat(found, ignore_index=True), HOT_KEYS.schema, preserve_index=False)


def _laid_out(facts: DataFrame, *levels: Column) -> DataFrame:
    """Repeats each fact once per level."""
    return facts.select("fate", "waited_ms", "lateness_ms", F.inline(F.array(*levels)))


def _level(level: int, weight: str, *told: str) -> Column:
    """A fact's row at a level with these columns."""
    columns = {name: F.col(name) if name in told else F.lit(None) for name in LAID_OUT}
    of_level = {**columns, "level": F.lit(level)}
    return F.struct(
        *(of_level[name].cast(kind).alias(name) for name, kind in LAID_OUT.items()), F.col(weight).alias("weight")
    )


def _measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Measures the rows of all levels in one shuffle partition."""
    given = list(batches)
    if given:
        yield from measured(pa.Table.from_batches(given)).to_batches()


def measured(laid_out: pa.Table) -> pa.Table:
    """Computes counts, rates, waits and lateness by row, from at least one fact."""
    row, first = _rows_of(laid_out)
    rows = len(first)
    weight, waited_ms = (laid_out.column(name).fill_null(0).to_numpy() for name in ("weight", "waited_ms"))
    fate = pc.index_in(laid_out.column("fate"), pa.array(FATES)).to_numpy()
    has_ended = fate < len(ENDS)
    counted = _added(row * len(FATES) + fate, weight, rows * len(FATES)).reshape(rows, len(FATES))
    by_fate = {name: counted[:, place] for place, name in enumerate(FATES)}
    ended = counted[:, : len(ENDS)].sum(axis=1)
    columns = {
        "partitions": _distinct(row, laid_out.column("partition").fill_null(-1).to_numpy(), rows),
        **by_fate,
        "registered": by_fate[REGISTERED] + by_fate[REFUSED],
        "ended": ended,
        "waited_total_ms": _added(row[has_ended], (weight * waited_ms)[has_ended], rows),
    }
    lateness_ms = laid_out.column("lateness_ms").fill_null(0).to_numpy()
    for wanted, value, counts in ((WAITS, waited_ms, has_ended), (LATENESS, lateness_ms, fate == FATES.index(EXPIRED))):
        found = quantiles(row[counts], value[counts], weight[counts], rows, wanted)
        nothing = np.bincount(row[counts], minlength=rows) == 0
        columns |= {name: pa.array(values, mask=nothing) for name, values in found.items()}
    for name, outcome in RATES.items():
        columns[name] = pa.array(by_fate[outcome] / np.maximum(ended, 1), mask=ended == 0)
    keys = laid_out.select(list(LAID_OUT)).take(first)
    whole = pc.equal(keys.column("level"), OF_GROUPS)
    partitions = pc.if_else(whole, keys.column("partition"), None)
    keys = keys.set_column(keys.column_names.index("partition"), "partition", partitions)
    return pa.table({**dict(zip(keys.column_names, keys.columns, strict=True)), **columns}).select(list(ROLLED_UP))


def _rows_of(laid_out: pa.Table) -> tuple[Ints, Ints]:
    """The row number of each fact, and the first fact of each row."""
    level = laid_out.column("level").to_numpy()
    row, first = np.zeros(len(level), np.int64), np.zeros(1, np.int64)
    for name in LAID_OUT:
        codes = laid_out.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        code = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if name == "partition":  # for topics, partitions are only counted
            code = np.where(level == OF_GROUPS, code, 0)
        # Rows are renumbered after each column, so that the product stays far below 2**63.
        _, first, row = np.unique(row * (len(codes.dictionary) + 1) + code, return_index=True, return_inverse=True)
    return row, first


def _added(place: Ints, weight: Ints, places: int) -> Ints:
    """Sums weights by place; exact below 2**53."""
    return np.bincount(place, weights=weight, minlength=places).astype(np.int64)


def _distinct(row: Ints, value: NDArray[np.int32], rows: int) -> Ints:
    """The number of distinct values of each row."""
    shifted = value.astype(np.int64) - int(value.min())
    span = int(shifted.max()) + 1
    return np.bincount(np.unique(row * span + shifted) // span, minlength=rows).astype(np.int64)
