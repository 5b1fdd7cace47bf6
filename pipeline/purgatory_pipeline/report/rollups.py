"""Tables that count and measure waits by group, topic and window, the hot keys, and the deepest backlog: SQL in Spark.

Each fact is repeated once for each level, so that one shuffle serves all of them.
"""

from typing import Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.report.estimates import MILLION, QUANTILES
from purgatory_pipeline.report.facts import (
    CARRIED_IN,
    ENDS,
    EXPIRED,
    REFUSED,
    REGISTERED,
    SATISFIED,
    UNFINISHED,
    has_ended,
)
from purgatory_pipeline.report.report_tables import BACKLOG, GROUPS, HOT_KEYS, PRINCIPALS, TOPICS, WINDOWS

WAITS: Final = {**{f"wait_{name}_ms": share for name, share in QUANTILES.items()}, "wait_max_ms": MILLION}
LATENESS: Final = {"lateness_p50_ms": 500_000, "lateness_p99_ms": 990_000, "lateness_max_ms": MILLION}

OF_GROUPS: Final = 0
OF_TOPICS: Final = 1
OF_WINDOWS: Final = 2
OF_TOPICS_AND_WINDOWS: Final = 3
"""Levels of the rows of `rolled_up`."""

KEYS: Final = {"window": "bigint", "topic": "string", "partition": "int", "kind": "string", "principal": "string"}
"""The columns that identify a row of a level: `groups` has all of them, at other levels some are null."""


def rolled_up(facts: DataFrame, few: DataFrame) -> DataFrame:
    """Counts, rates and quantiles at all levels, with the columns of the tables `groups` and `topics`. `few` are the
    condensed facts.
    """
    levels = (
        (facts, OF_GROUPS, "waits", list(KEYS)),
        (facts, OF_TOPICS, "waits", ["topic", "kind"]),
        (few, OF_WINDOWS, "operations", ["window", "kind"]),
        (few, OF_TOPICS_AND_WINDOWS, "operations", ["window", "topic", "kind"]),
    )
    together = _at_level(*levels[0])
    for level in levels[1:]:
        together = together.unionAll(_at_level(*level))
    row = Window.partitionBy("level", *KEYS)
    is_expired = F.col("fate") == EXPIRED
    quantiles: list[Column] = []
    for value, counts, wanted in (("waited_ms", has_ended(), WAITS), ("lateness_ms", is_expired, LATENESS)):
        weight = F.when(counts, F.col("weight"))
        through, total = f"{value}_through", f"{value}_total"
        together = together.withColumns(
            {through: F.sum(weight).over(row.orderBy(value)), total: F.sum(weight).over(row)}
        )
        for name, millionths in wanted.items():
            enough = F.col(through) * MILLION >= F.col(total) * millionths
            quantiles.append(F.min(F.when(counts & enough, F.col(value))).alias(name))
    counted = together.groupBy("level", *KEYS).agg(
        F.count_distinct("counted_partition").alias("partitions"),
        *(_counted(F.col("fate") == fate).alias(fate) for fate in (*ENDS, REFUSED, UNFINISHED, CARRIED_IN)),
        _counted(F.col("fate").isin(REGISTERED, REFUSED)).alias("registered"),
        _counted(has_ended()).alias("ended"),
        _counted(has_ended(), F.col("waited_ms")).alias("waited_total_ms"),
        _counted(is_expired, F.col("waited_ms")).alias("expired_total_ms"),
        *quantiles,
    )
    rates = {"completion_rate": SATISFIED, "expiry_rate": EXPIRED}
    return counted.withColumns({name: F.try_divide(fate, F.col("ended")) for name, fate in rates.items()})


def group_waits(rows: DataFrame, window_ms: int) -> DataFrame:
    window_start = F.timestamp_millis(F.col("window") * F.lit(window_ms))
    of_groups = rows.where(F.col("level") == OF_GROUPS)
    return of_groups.withColumn("window_start", window_start).select(*GROUPS.column_names)


def topic_waits(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("level") == OF_TOPICS).select(*TOPICS.column_names)


def window_waits(rows: pd.DataFrame, window_ms: int) -> pa.Table:
    """The table `windows`, from rows of `rolled_up`; other levels are ignored."""
    of_windows = rows[rows["level"] == OF_WINDOWS]
    starts = pd.to_datetime(of_windows["window"] * window_ms, unit="ms", utc=True)
    return pa.Table.from_pandas(of_windows.assign(window_start=starts), WINDOWS.schema, preserve_index=False)


def hot_keys(rows: DataFrame, top: int, principals: pa.Table) -> pa.Table:
    """The table `hot_keys`; the sums of `principals` are those of all keys."""
    columns = {"waits": "waits", "waited": "waited_total_ms", "lost": "lost_ms"}
    amounts = [F.struct(F.lit(by).alias("by"), F.col(name).alias("amount")) for by, name in columns.items()]
    listed = _with_lost(rows, "partition").select("*", F.inline(F.array(*amounts))).where("by <> 'lost' or amount > 0")
    place = Window.partitionBy("by").orderBy(F.desc("amount"), "topic", "partition", "kind")
    found: pd.DataFrame = listed.withColumn("rank", F.row_number().over(place)).where(F.col("rank") <= top).toPandas()
    sums = {by: max(sum(principals[columns[by.replace("lost", "waited")]].to_pylist()), 1) for by in columns}
    share = found["amount"] / found["by"].map(sums)
    return pa.Table.from_pandas(found.assign(share=share), HOT_KEYS.schema, preserve_index=False)


def principals(rows: DataFrame) -> pa.Table:
    sums = [F.sum(name).alias(name) for name in ("waits", "satisfied", "expired", *TIMES)]
    found: pd.DataFrame = _with_lost(rows, "principal").groupBy("principal", "kind").agg(*sums).toPandas()
    return pa.Table.from_pandas(found, PRINCIPALS.schema, preserve_index=False)


TIMES: Final = ("waited_total_ms", "expired_total_ms", "lost_ms")


def _with_lost(rows: DataFrame, by: str) -> DataFrame:
    """The sums of the groups by topic, kind and another column, with `lost_ms`: how much longer these waits took than
    as many of the others of the same topic and kind (null if there are none).
    """
    counted = rows.where(F.col("level") == OF_GROUPS).groupBy("topic", "kind", by)
    sums = {"ended": "waits", **{name: name for name in ("satisfied", "expired", *TIMES[:2])}}
    summed = counted.agg(*(F.sum(name).alias(to) for name, to in sums.items())).where("waits > 0")
    alike = Window.partitionBy("topic", "kind")
    waits, waited_ms = (F.sum(name).over(alike) - F.col(name) for name in ("waits", "waited_total_ms"))
    lost_ms = F.floor(F.col("waited_total_ms") - F.col("waits") * F.try_divide(waited_ms, waits))
    return summed.withColumn("lost_ms", lost_ms)


def _at_level(facts: DataFrame, level: int, weight: str, keys: list[str]) -> DataFrame:
    """Facts as they count at a level: only `keys` identify a row, and `weight` says how much each counts."""
    partition = F.col("partition") if "partition" in facts.columns else F.lit(None).cast("int")
    return facts.where(F.col(weight) > 0).select(
        F.lit(level).alias("level"),
        *((F.col(name) if name in keys else F.lit(None)).cast(kind).alias(name) for name, kind in KEYS.items()),
        partition.alias("counted_partition"),
        "fate",
        "waited_ms",
        "lateness_ms",
        F.col(weight).alias("weight"),
    )


def _counted(condition: Column, each: Column | None = None) -> Column:
    """The sum of `each` (1 if it is None) over what meets a condition."""
    weight = F.col("weight") if each is None else F.col("weight") * each
    return F.coalesce(F.sum(F.when(condition, weight)), F.lit(0))


BACKLOG_KEY: Final = ("run_id", "topic", "partition", "kind")

SLOT_BITS: Final = 5
"""A slot is 2**5 ms, shorter than most waits, so that few waits begin in a slot compared with those pending."""

BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many slots are broadcast, so that joining the waits with them needs no shuffle."""


def deepest_backlog(outcomes: DataFrame, unfinished: DataFrame | None = None) -> DataFrame:
    """Makes the table `backlog`: the deepest moment of each partition and kind over all runs, the first in a tie.

    It is the largest number of waits pending at once: +1 at each registration, -1 at each end, summed over time. An
    outcome contains the time of its registration (`time_ms - waited_ms`), so registrations are not read again. Waits of
    0 ms were never pending.

    Sorting all these steps would cost too much, so they are first counted in slots of some milliseconds. A slot can
    contain the deepest moment only if the number pending before it plus the number that began in it exceeds the number
    pending at the end of every slot. Only a few slots meet this condition. Their waits are read again and summed
    millisecond by millisecond.
    """
    waits = _spans(outcomes, F.col("time_ms") - F.col("waited_ms"), F.col("time_ms"))
    if unfinished is not None:
        never = F.lit(None).cast("bigint")
        waits = waits.unionAll(_spans(unfinished.where("waited_ms is not null"), F.col("time_ms"), never))
    steps = (
        waits.unpivot([*BACKLOG_KEY, "key", "ahead_ms"], ["begin_ms", "end_ms"], "border", "step_ms")
        .where("step_ms is not null")
        .withColumns({"slot": F.shiftright("step_ms", SLOT_BITS), "step": F.expr("if(border = 'begin_ms', 1, -1)")})
    )
    deep = _deep_slots(steps).localCheckpoint()
    if deep.count() <= BROADCAST_ROWS_MAX:
        deep = F.broadcast(deep)
    along = Window.partitionBy("key", "slot").orderBy("step_ms")
    # A sorted window's default frame includes all steps of the same millisecond.
    pending = F.col("before") + F.sum("step").over(along)
    return (
        steps.join(deep, ["key", "slot"])
        .withColumns({"pending": pending, "earlier": -(F.col("step_ms") + F.col("ahead_ms"))})
        .groupBy("topic", "partition", "kind")
        .agg(F.max(F.struct("pending", "earlier", "run_id")).alias("best"))
        .where("best.pending > 0")
        .withColumns(
            {
                "deepest": F.col("best.pending"),
                "at": F.timestamp_millis(-F.col("best.earlier")),
                "run_id": F.col("best.run_id"),
            }
        )
        .select(*BACKLOG.column_names)
    )


def _spans(rows: DataFrame, begin_ms: Column, end_ms: Column) -> DataFrame:
    """The start and end of each wait on the engine's clock (end null: still pending), and the wall clock's lead over
    it.
    """
    return rows.select(
        *BACKLOG_KEY,
        F.xxhash64(*BACKLOG_KEY).alias("key"),
        begin_ms.alias("begin_ms"),
        end_ms.alias("end_ms"),
        (F.unix_millis("at") - F.col("time_ms")).alias("ahead_ms"),
    ).where("end_ms is null or begin_ms < end_ms")


def _deep_slots(steps: DataFrame) -> DataFrame:
    """Slots that may contain the deepest moment: `key`, `slot`, and `before`, the number pending before the slot."""
    counts = steps.groupBy("key", "slot").agg(F.count_if(F.col("step") > 0).alias("begun"), F.sum("step").alias("net"))
    along = Window.partitionBy("key").orderBy("slot")
    sums = counts.withColumn("after", F.sum("net").over(along)).withColumn("before", F.col("after") - F.col("net"))
    # Among the slots with the most waits pending at their end, take the first.
    highest = F.max(F.struct("after", (-F.col("slot")).alias("earlier"))).over(Window.partitionBy("key"))
    most = F.col("before") + F.col("begun")
    can_be_deeper = most > F.col("highest.after")
    # The first of equal moments is reported, so a tie counts only in the same slot or an earlier one.
    can_be_first = (most == F.col("highest.after")) & (-F.col("slot") >= F.col("highest.earlier"))
    return (
        sums.withColumn("highest", highest)
        .where((F.col("begun") > 0) & (can_be_deeper | can_be_first))
        .select("key", "slot", "before")
    )
