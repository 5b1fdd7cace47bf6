"""The largest number of waits pending at once: +1 at each registration, -1 at each end, summed over time.

An outcome contains the time of its registration (`time_ms - waited_ms`), so registrations are not read again. Waits of
0 ms were never pending.

Sorting all these steps would cost too much, so they are first counted in slots of some milliseconds. A slot can contain
the deepest moment only if the number pending before it plus the number that began in it exceeds the number pending at
the end of every slot. Only a few slots meet this condition. Their waits are read again and summed millisecond by
millisecond.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.analytics.report.report_tables import BACKLOG

KEY: Final = ("run_id", "topic", "partition", "kind")

SLOT_BITS: Final = 5
"""A slot is 2**5 ms, shorter than most waits, so that few waits begin in a slot compared with those pending."""

BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many slots are broadcast, so that joining the waits with them needs no shuffle."""


def deepest_backlog(outcomes: DataFrame, unfinished: DataFrame | None = None) -> DataFrame:
    """Makes the table `backlog`: the deepest moment of each partition and kind over all runs, the first in a tie."""
    waits = _waits(outcomes, F.col("time_ms") - F.col("waited_ms"), F.col("time_ms"))
    if unfinished is not None:
        never = F.lit(None).cast("bigint")
        waits = waits.unionAll(_waits(unfinished.where("waited_ms is not null"), F.col("time_ms"), never))
    steps = (
        waits.unpivot([*KEY, "key", "ahead_ms"], ["begin_ms", "end_ms"], "border", "step_ms")
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


def _waits(rows: DataFrame, begin_ms: Column, end_ms: Column) -> DataFrame:
    """The start and end of each wait on the engine's clock (end null: still pending), and the wall clock's lead over
    it.
    """
    return rows.select(
        *KEY,
        F.xxhash64(*KEY).alias("key"),
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
