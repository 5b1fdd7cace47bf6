"""Finds the replica that held a slow produce back, from its partition's events during the wait and in the call that
ended it.

A produce is satisfied when the last in-sync replica reaches its offset, so the last replica's event is in the same call
as the outcome. The second-last replica is searched for during the wait: a replica that had the offset before the
registration held nothing back.
"""

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from purgatory.engine import codes
from purgatory.extensions.archive.schema import ACCEPTED
from purgatory_pipeline.report.estimates import MILLION, quantiles
from purgatory_pipeline.report.report_tables import SLOW_PRODUCES, STRAGGLERS

APPEND: Final = codes.EVENT_NAMES[codes.LEADER_APPEND]
PROGRESS: Final = codes.EVENT_NAMES[codes.FOLLOWER_PROGRESS]
TOLD: Final = codes.EVENT_NAMES[codes.HIGH_WATERMARK]
IN_SYNC: Final = codes.EVENT_NAMES[codes.IN_SYNC_REPLICAS]
LEADERSHIP: Final = codes.EVENT_NAMES[codes.LEADERSHIP]

CAUSES: Final = ("unknown", "told", "left", "leader", "follower")
"""From least to most certain. An operation over several partitions takes its most certain cause."""

HELD: Final = {"median_ms": 500_000, "p99_ms": 990_000, "max_ms": MILLION}

UNKNOWN_REPLICA: Final = -1
LOOK_BACK_MS: Final = 256
"""How long before the registration events are read. A replica that had the offset in this time and repeats it later is
known to have had it before.
"""

SLOT_BITS: Final = 10
"""Waits and events are joined in slots of 2**10 ms."""

ROW_BITS: Final = 24
"""Bits for the row in the number that orders a run's events; the other bits are for the call. A message has far fewer
events than this allows.
"""

BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many slow waits by slot are broadcast, so that joining the events with them needs no shuffle."""

_WAIT: Final = ("run_id", "session_number", "operation_id", "topic", "partition")
_PLACE: Final = ("run_id", "topic", "partition")


def slow_waits(outcomes: DataFrame, slow_over_ms: int) -> DataFrame:
    """Produces satisfied after a longer wait than this: a row for each of their partitions, numbered by `wait`."""
    return outcomes.where(
        (F.col("kind") == codes.KIND_NAMES[codes.PRODUCE])
        & (F.col("outcome") == codes.OUTCOME_NAMES[codes.SATISFIED])
        & (F.col("waited_ms") > slow_over_ms)
    ).select(
        *_WAIT,
        F.monotonically_increasing_id().alias("wait"),
        F.col("call_number").alias("end_call"),
        F.col("time_ms").alias("end_ms"),
        (F.col("time_ms") - F.col("waited_ms")).alias("begin_ms"),
        "waited_ms",
        "required_offset",
    )


def held_back(slow: DataFrame, events: DataFrame) -> DataFrame:
    """A row for each slow produce: topic, `cause`, `replica_id` if a replica is to blame, `held_ms` and `waited_ms`.

    `slow` comes from `slow_waits`. It is read several times, so persist it.
    """
    applied = events.where(F.col("refusal_code") == ACCEPTED)
    is_about_roles = F.col("type").isin(IN_SYNC, LEADERSHIP)
    roles = applied.where(is_about_roles).select(*_PLACE, "call_number", "row", "type", "in_sync", "leader_id")
    roles = roles.localCheckpoint()  # few rows
    waits = slow.join(_reached(slow, applied), "wait", "left").join(_stayed(roles), [*_PLACE, "end_call"], "left")
    judged = _judged(_with_states(waits, _states(roles)))
    best = F.max(F.struct("rank", "row", "partition", "topic", "cause", "replica_id", "held_ms", "waited_ms"))
    return (
        judged.groupBy("run_id", "session_number", "operation_id")
        .agg(best.alias("best"))
        .select("best.topic", "best.cause", "best.replica_id", "best.held_ms", "best.waited_ms")
    )


def held_counts(held: DataFrame) -> pd.DataFrame:
    """Counts slow produces by topic, `cause`, `replica_id` and `held_ms`, from `held_back`: `waits` and `waited_ms`."""
    counted = held.groupBy("topic", "cause", "replica_id", "held_ms")
    return counted.agg(F.count(F.lit(1)).alias("waits"), F.sum("waited_ms").alias("waited_ms")).toPandas()


def slow_produces(counts: pd.DataFrame) -> pa.Table:
    sums = counts.groupby("cause", as_index=False)[["waits", "waited_ms"]].sum()
    named = sums.rename(columns={"waits": "operations", "waited_ms": "waited_total_ms"})
    share = named["operations"] / named["operations"].sum()
    return pa.Table.from_pandas(named.assign(share=share), SLOW_PRODUCES.schema, preserve_index=False)


def stragglers(counts: pd.DataFrame) -> pa.Table:
    """Makes the table `stragglers` from `held_counts`, for all topics together (topic null) and for each topic."""
    known = counts.dropna(subset=["replica_id"])
    both = pd.concat([known.assign(topic=None), known], ignore_index=True)
    both = both.assign(total_ms=both["held_ms"] * both["waits"])
    blamed = both.groupby(["topic", "replica_id"], dropna=False)
    rows = blamed[["waits", "total_ms"]].sum().reset_index().rename(columns={"waits": "held_back"})
    held_ms, waits = (both[name].to_numpy(np.int64) for name in ("held_ms", "waits"))
    found = quantiles(blamed.ngroup().to_numpy(), held_ms, waits, len(rows), HELD)
    share = rows["held_back"] / rows.groupby("topic", dropna=False)["held_back"].transform("sum")
    return pa.Table.from_pandas(rows.assign(**found, share=share), STRAGGLERS.schema, preserve_index=False)


def _stayed(roles: DataFrame) -> DataFrame:
    """The replicas that `stayed` in sync, for each call that set the in-sync replicas."""
    first = F.min_by("in_sync", "row").alias("stayed")
    return roles.where(F.col("type") == IN_SYNC).groupBy(*_PLACE, F.col("call_number").alias("end_call")).agg(first)


def _states(roles: DataFrame) -> DataFrame:
    """Ranges of calls during which a partition had the same in-sync replicas and leader."""
    along = Window.partitionBy(*_PLACE).orderBy("call_number", "row")
    return roles.select(
        *_PLACE,
        F.last(F.when(F.size("in_sync") > 0, F.col("in_sync")), ignorenulls=True).over(along).alias("members"),
        F.last(F.when(F.col("leader_id") >= 0, F.col("leader_id")), ignorenulls=True).over(along).alias("leader"),
        F.col("call_number").alias("from_call"),
        F.lead("call_number").over(along).alias("to_call"),
    )


def _with_states(waits: DataFrame, states: DataFrame) -> DataFrame:
    """Adds `members` and `leader` as of just before the call that ended the wait (null: unknown)."""
    same = (
        (waits["run_id"] == states["run_id"])
        & (waits["topic"] == states["topic"])
        & (waits["partition"] == states["partition"])
        & (states["from_call"] < waits["end_call"])
        & (states["to_call"].isNull() | (states["to_call"] >= waits["end_call"]))
    )
    return waits.join(states, same, "left").select(waits["*"], "members", "leader")


def _reached(slow: DataFrame, applied: DataFrame) -> DataFrame:
    """`steps` by wait: for each replica (-1: the leader) its first event during the wait that has the offset, and any
    other event that may have ended the wait.
    """
    since_ms = F.col("begin_ms") - LOOK_BACK_MS
    slots = F.sequence(F.shiftright(since_ms, SLOT_BITS), F.shiftright("end_ms", SLOT_BITS))
    slotted = slow.withColumn("slot", F.explode(slots))
    waits = slotted.select("wait", "begin_ms", "end_call", "required_offset", _place(F.col("slot")))
    if waits.count() <= BROADCAST_ROWS_MAX:
        waits = F.broadcast(waits)
    happened = applied.where(F.col("type").isin(APPEND, PROGRESS, TOLD)).select(
        _place(F.shiftright("time_ms", SLOT_BITS)),
        "type",
        _moment(F.col("call_number"), F.col("row")).alias("moment"),
        F.col("time_ms").alias("at_ms"),
        F.col("offset").alias("event_offset"),
        F.when(F.col("type") == PROGRESS, F.col("replica_id")).otherwise(UNKNOWN_REPLICA).alias("replica"),
    )
    in_time = (F.col("at_ms") >= F.col("begin_ms") - LOOK_BACK_MS) & (_call(F.col("moment")) <= F.col("end_call"))
    return (
        happened.join(waits, "place")
        .where(in_time & (F.col("event_offset") >= F.col("required_offset")))
        .groupBy("wait", "type", "replica")
        .agg(F.min("moment").alias("moment"), F.min("at_ms").alias("at_ms"))
        .groupBy("wait")
        .agg(F.collect_list(F.struct("moment", "at_ms", "type", "replica")).alias("steps"))
    )


def _place(slot: Column) -> Column:
    return F.xxhash64(*_PLACE, slot).alias("place")


def _moment(call: Column, row: Column) -> Column:
    """An event's position in its run as one number; a call has fewer than 2**ROW_BITS rows."""
    return F.shiftleft(call, ROW_BITS).bitwiseOR(row.cast("bigint"))


def _call(moment: Column) -> Column:
    return F.shiftright(moment, ROW_BITS)


def _row(moment: Column) -> Column:
    return moment.bitwiseAND(2**ROW_BITS - 1)


def _judged(waits: DataFrame) -> DataFrame:
    """Adds `cause`, its `rank` and `row`, `replica_id` and `held_ms` to each wait on a partition."""

    def in_end(step: Column) -> Column:
        return _call(step["moment"]) == F.col("end_call")

    def steps_of(kind: str) -> Column:
        return F.filter("steps", lambda step: step["type"] == kind)

    def first_of(steps: Column) -> Column:
        return F.get(steps, F.lit(0))

    def is_member(step: Column) -> Column:
        """If the in-sync replicas are unknown, every replica counts."""
        return F.coalesce(F.array_contains("members", step["replica"]), F.lit(True))

    # Latest first.
    followers = F.sort_array(F.filter(steps_of(PROGRESS), is_member), asc=False)
    had_it = F.transform(steps_of(PROGRESS), lambda step: step["replica"])
    gone = F.array_sort(F.array_except(F.array_except("members", "stayed"), had_it))
    known = waits.withColumns(
        {"followers": followers, "append": first_of(steps_of(APPEND)), "gone": gone, "told": steps_of(TOLD)}
    )
    last, before, append = F.get("followers", F.lit(0)), F.get("followers", F.lit(1)), F.col("append")
    cause = (
        F.when(in_end(last), "follower")
        .when(in_end(append), "leader")
        .when(F.size("gone") > 0, "left")
        .when(F.exists("told", in_end), "told")
        .otherwise("unknown")
    )
    replica = (
        F.when(F.col("cause") == "follower", last["replica"])
        .when(F.col("cause") == "leader", F.coalesce("leader", F.lit(UNKNOWN_REPLICA)))
        .when(F.col("cause") == "left", first_of(F.col("gone")))
    )
    # No follower has the offset before its leader, so an append after the last follower's step is not the first one.
    appended_ms = F.when(last.isNull() | (append["at_ms"] <= last["at_ms"]), append["at_ms"])
    second_ms = F.when(F.col("cause") == "follower", F.coalesce(before["at_ms"], appended_ms)).otherwise(
        F.coalesce(last["at_ms"], F.when(F.col("cause") == "left", appended_ms))
    )
    since_ms = F.greatest(F.coalesce(second_ms, F.col("begin_ms")), F.col("begin_ms"))
    return known.withColumn("cause", cause).withColumns(
        {
            "replica_id": replica,
            "held_ms": F.when(replica.isNotNull(), F.col("end_ms") - since_ms),
            "rank": F.array_position(F.array(*(F.lit(word) for word in CAUSES)), F.col("cause")),
            "row": F.when(F.col("cause") == "follower", _row(last["moment"]))
            .when(F.col("cause") == "leader", _row(append["moment"]))
            .otherwise(0),
        }
    )
