"""The tables that count and measure waits at some level: groups, topics, windows; and the hot keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

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
from purgatory_pipeline.report.quantiles import MILLION, QUANTILES, quantile, with_ranks
from purgatory_pipeline.report.tables import GROUPS, HOT_KEYS, TOPICS, WINDOWS

LATENESS: Final = {"lateness_p50_ms": 500_000, "lateness_p99_ms": 990_000, "lateness_max_ms": MILLION}

# Levels of `level_waits`.
OF_TOPICS: Final = 1
OF_WINDOWS: Final = 2
OF_TOPICS_AND_WINDOWS: Final = 3


def group_waits(facts: DataFrame, window_ms: int) -> DataFrame:
    """The table `groups`."""
    keys = ["topic", "partition", "kind", "principal", "window"]
    measured = facts.select(*keys, "fate", F.inline(_measures(F.col("waits"))))
    return with_window_start(_rolled_up(measured, keys), window_ms).select(*GROUPS.column_names)


def level_waits(facts: DataFrame) -> DataFrame:
    """Condensed facts added up in three ways at once, which `level` tells apart: a row for each topic and kind (waits),
    each window and kind, and each window, topic and kind (operations). Keys that a level has not are null.
    """
    keys = ["level", "window", "topic", "kind"]
    window, topic = F.col("window"), F.col("topic")
    no_window, no_topic = F.lit(None).cast("bigint"), F.lit(None).cast("string")
    levels = F.array(
        *(
            F.struct(F.lit(level).alias("level"), at.alias("window"), of.alias("topic"), F.col(weight).alias("weight"))
            for level, at, of, weight in (
                (OF_TOPICS, no_window, topic, "waits"),
                (OF_WINDOWS, window, no_topic, "operations"),
                (OF_TOPICS_AND_WINDOWS, window, topic, "operations"),
            )
        )
    )
    measured = (
        facts.select("kind", "fate", "waited_ms", "lateness_ms", F.inline(levels))
        .where("weight > 0")
        .select(*keys, "fate", F.inline(_measures(F.col("weight"))))
        .groupBy(*keys, "fate", "is_lateness", "value")
        .agg(F.sum("weight").alias("weight"))
    )
    return _rolled_up(measured, keys)


def topic_waits(levels: DataFrame, groups: DataFrame) -> DataFrame:
    """The table `topics`, from `level_waits` and `group_waits`."""
    partitions = groups.groupBy("topic", "kind").agg(F.countDistinct("partition").alias("partitions"))
    rows = levels.where(F.col("level") == OF_TOPICS).join(partitions, ["topic", "kind"])
    return rows.select(*TOPICS.column_names)


def window_waits(levels: DataFrame, window_ms: int) -> DataFrame:
    """The table `windows`, from `level_waits`."""
    rows = levels.where(F.col("level") == OF_WINDOWS)
    return with_window_start(rows, window_ms).select(*WINDOWS.column_names)


def hot_keys(groups: DataFrame, top: int) -> DataFrame:
    """The table `hot_keys`, from `group_waits`: so many of each."""
    counted = (
        groups.groupBy("topic", "partition", "kind")
        .agg(F.sum("ended").alias("waits"), F.sum("waited_total_ms").alias("waited_total_ms"))
        .where("waits > 0")
    )
    sums = counted.agg(F.sum("waits").alias("waits_all"), F.sum("waited_total_ms").alias("waited_all"))
    most = _first(counted, "waits", "waits", top).unionAll(_first(counted, "waited", "waited_total_ms", top))
    share = F.when(F.col("by") == "waits", F.col("waits") / F.col("waits_all")).otherwise(
        F.col("waited_total_ms") / F.greatest("waited_all", F.lit(1))
    )
    return most.crossJoin(F.broadcast(sums)).withColumn("share", share).select(*HOT_KEYS.column_names)


def _first(counted: DataFrame, by: str, column: str, top: int) -> DataFrame:
    order = [F.desc(column), F.col("topic"), F.col("partition"), F.col("kind")]
    rank = F.row_number().over(Window.partitionBy("by").orderBy(*order))
    return counted.orderBy(*order).limit(top).withColumn("by", F.lit(by)).withColumn("rank", rank)


def with_window_start(rows: DataFrame, window_ms: int) -> DataFrame:
    """Adds the instant at which a row's window begins."""
    return rows.withColumn("window_start", F.timestamp_millis(F.col("window") * F.lit(window_ms)))


def _measures(weight: Column) -> Column:
    """Of a fact: its wait, and if it is an expiry its lateness, each as a value with a weight."""
    wait = F.struct(F.lit(False).alias("is_lateness"), F.col("waited_ms").alias("value"), weight.alias("weight"))
    late = F.struct(F.lit(True).alias("is_lateness"), F.col("lateness_ms").alias("value"), weight.alias("weight"))
    return F.when(F.col("fate") == EXPIRED, F.array(wait, late)).otherwise(F.array(wait))


def _rolled_up(measured: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Counts, rates, waits and lateness as the tables have them, by these keys."""
    fate, weight, is_lateness = F.col("fate"), F.col("weight"), F.col("is_lateness")

    def total(condition: Column, value: Column = weight) -> Column:
        return F.sum(F.when(condition & ~is_lateness, value).otherwise(F.lit(0)))

    counts = {
        "registered": total(fate.isin(REGISTERED, REFUSED)),
        "refused": total(fate == REFUSED),
        "ended": total(has_ended()),
        **{outcome: total(fate == outcome) for outcome in ENDS},
        "unfinished": total(fate == UNFINISHED),
        "carried_in": total(fate == CARRIED_IN),
        "waited_total_ms": total(has_ended(), F.col("value") * weight),
    }
    is_wait = has_ended() & ~is_lateness
    values = {
        **{f"wait_{name}_ms": quantile(F.col("value"), is_wait, share) for name, share in QUANTILES.items()},
        "wait_max_ms": F.max(F.when(is_wait, F.col("value"))),
        **{name: quantile(F.col("value"), is_lateness, share) for name, share in LATENESS.items()},
    }
    columns = [column.alias(name) for name, column in {**counts, **values}.items()]
    ended = F.nullif(F.col("ended"), F.lit(0))
    return (
        with_ranks(measured, [*keys, "is_lateness"], "value", F.when(has_ended(), weight).otherwise(F.lit(0)))
        .groupBy(*keys)
        .agg(*columns)
        .withColumns({"completion_rate": F.col(SATISFIED) / ended, "expiry_rate": F.col(EXPIRED) / ended})
    )
