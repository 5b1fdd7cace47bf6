"""How many waits were pending at once, at the worst: +1 where one was registered, -1 where it ended, added up in time.

An end tells when its registration was (`time_ms - waited_ms`), so registrations are not read again. What waited no
time at all never was in the way. Rows go through the shuffle with a hash instead of four names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.report.tables import BACKLOG

KEY: Final = ("run_id", "topic", "partition", "kind")

COARSE_MS: Final = 1_000
"""When approximate, only what is pending at the end of each second is seen."""


def deepest_backlog(
    outcomes: DataFrame, unfinished: DataFrame | None = None, *, approximate: bool = False
) -> DataFrame:
    """The table `backlog`: of each partition and kind the deepest of all runs, and when it was first so deep."""
    steps = _ended_steps(outcomes)
    if unfinished is not None:
        steps = steps.unionAll(_unfinished_steps(unfinished))
    if approximate:
        end_ms = (F.floor(F.col("time_ms") / COARSE_MS) + 1) * COARSE_MS
        steps = (
            steps.withColumn("time_ms", end_ms).groupBy("key", "time_ms").agg(F.sum("step").cast("int").alias("step"))
        )
    # The default frame of a sorted window takes in all rows of the same millisecond.
    pending = F.sum("step").over(Window.partitionBy("key").orderBy("time_ms"))
    deepest = (
        steps.withColumn("pending", pending)
        .groupBy("key")
        .agg(F.max(F.struct(F.col("pending"), (-F.col("time_ms")).alias("before"))).alias("top"))
    )
    named = deepest.join(_names([outcomes] if unfinished is None else [outcomes, unfinished]), "key").where(
        "top.pending > 0"
    )
    best = F.max_by(
        F.struct("at_ms", "run_id"), F.struct(F.col("top.pending"), (-F.col("at_ms")).alias("before"), F.col("run_id"))
    )
    return (
        named.withColumn("at_ms", F.col("anchor_ms") - F.col("top.before"))
        .groupBy("topic", "partition", "kind")
        .agg(F.max("top.pending").alias("deepest"), best.alias("best"))
        .withColumns({"at": F.timestamp_millis("best.at_ms"), "run_id": F.col("best.run_id")})
        .select(*BACKLOG.column_names)
    )


def _ended_steps(outcomes: DataFrame) -> DataFrame:
    """Two steps for each wait that ended: where it began and where it ended."""
    begun_ms = F.col("time_ms") - F.col("waited_ms")
    both = F.array(
        F.struct(begun_ms.alias("time_ms"), F.lit(1).alias("step")),
        F.struct(F.col("time_ms"), F.lit(-1).alias("step")),
    )
    return outcomes.where("waited_ms > 0").select(_key(), F.inline(both))


def _unfinished_steps(unfinished: DataFrame) -> DataFrame:
    return unfinished.where("waited_ms is not null").select(_key(), "time_ms", F.lit(1).alias("step"))


def _names(frames: Sequence[DataFrame]) -> DataFrame:
    """What the hashes stand for, and how far the wall clock is ahead of a run's clock."""
    anchor_ms = F.min(F.unix_millis("at") - F.col("time_ms")).alias("anchor_ms")
    parts = [frame.groupBy(*KEY).agg(anchor_ms) for frame in frames]
    together = parts[0]
    for part in parts[1:]:
        together = together.unionAll(part)
    return together.groupBy(*KEY).agg(F.min("anchor_ms").alias("anchor_ms")).withColumn("key", _key())


def _key() -> Column:
    return F.xxhash64(*KEY).alias("key")
