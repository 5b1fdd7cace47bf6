"""The most waits pending at once: +1 where one was registered, -1 where it ended, summed up in time.

An outcome tells when its registration was (`time_ms - waited_ms`), so registrations are not read again. Waits of 0 ms
were never pending.

Sorting all these steps would cost too much. So they are first counted in slots of some milliseconds. A slot can hold
the deepest moment only if what was pending before it plus all that began in it exceeds what was pending at the end of
every slot. The waits of such slots, which are few, are read again and summed up millisecond by millisecond.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.report.report_tables import BACKLOG

KEY: Final = ("run_id", "topic", "partition", "kind")

COARSE_MS: Final = 1_000
"""When approximate, only the end of each second is looked at."""

SLOT_BITS: Final = 5
"""A slot is 2**5 ms, less than most waits: so what begins in a slot is little beside what is pending."""

BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many slots are broadcast, so that the waits need no shuffle to join them."""


def deepest_backlog(
    outcomes: DataFrame, unfinished: DataFrame | None = None, *, approximate: bool = False
) -> DataFrame:
    """The table `backlog`: for each partition and kind the deepest moment of all runs, the first one of equals."""
    waits = _waits(outcomes, F.col("time_ms") - F.col("waited_ms"), F.col("time_ms"), approximate=approximate)
    if unfinished is not None:
        never = F.lit(None).cast("bigint")
        waits = waits.unionAll(
            _waits(unfinished.where("waited_ms is not null"), F.col("time_ms"), never, approximate=approximate)
        )
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


def _waits(rows: DataFrame, begin_ms: Column, end_ms: Column, *, approximate: bool) -> DataFrame:
    """From when to when a wait was pending on the engine's clock (end null: it still is), and how far the wall clock is
    ahead of that.
    """
    if approximate:
        begin_ms, end_ms = ((F.floor(time_ms / COARSE_MS) + 1) * COARSE_MS for time_ms in (begin_ms, end_ms))
    return rows.select(
        *KEY,
        F.xxhash64(*KEY).alias("key"),
        begin_ms.alias("begin_ms"),
        end_ms.alias("end_ms"),
        (F.unix_millis("at") - F.col("time_ms")).alias("ahead_ms"),
    ).where("end_ms is null or begin_ms < end_ms")


def _deep_slots(steps: DataFrame) -> DataFrame:
    """Slots that may hold the deepest moment: `key`, `slot`, and what was pending `before`."""
    counts = steps.groupBy("key", "slot").agg(F.count_if(F.col("step") > 0).alias("begun"), F.sum("step").alias("net"))
    along = Window.partitionBy("key").orderBy("slot")
    sums = counts.withColumn("after", F.sum("net").over(along)).withColumn("before", F.col("after") - F.col("net"))
    # Of the slots that end with the most pending, the first.
    highest = F.max(F.struct("after", (-F.col("slot")).alias("earlier"))).over(Window.partitionBy("key"))
    most = F.col("before") + F.col("begun")
    can_be_deeper = most > F.col("highest.after")
    can_be_first = (most == F.col("highest.after")) & (-F.col("slot") >= F.col("highest.earlier"))
    return (
        sums.withColumn("highest", highest)
        .where((F.col("begun") > 0) & (can_be_deeper | can_be_first))
        .select("key", "slot", "before")
    )
