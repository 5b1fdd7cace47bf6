"""Finds the replica that held a slow produce back, from its partition's events during the wait and in the call that
ended it.

A produce is satisfied when the last in-sync replica reaches its offset, so the last replica's event is in the same call
as the outcome. The second-last replica is searched for during the wait: a replica that had the offset before the
registration held nothing back. Events are read from 256 ms before the registration on: a replica that had the offset in
this time and repeats it later is known to have had it before.
"""

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory_pipeline.report.estimates import MILLION, quantiles
from purgatory_pipeline.report.report_tables import SLOW_PRODUCES, STRAGGLERS
from purgatory_pipeline.spark.tasks import frame_of

HELD: Final = {"median_ms": 500_000, "p99_ms": 990_000, "max_ms": MILLION}

BROADCAST_ROWS_MAX: Final = 1_000_000
"""Up to this many slow waits by slot are broadcast, so that joining the events with them needs no shuffle."""

_WAIT: Final = ("run_id", "session_number", "operation_id", "topic", "partition")

# Waits and events are joined in slots of 2**10 ms.
_SLOTTED: Final = """
SELECT wait, begin_ms, end_call, required_offset, xxhash64(run_id, topic, partition, slot) AS place FROM {slow}
    LATERAL VIEW explode(sequence(shiftright(begin_ms - 256, 10), shiftright(end_ms, 10))) AS slot"""

# By wait, for each replica (-1: the leader) its first event during the wait that has the offset, and any other event
# that may have ended the wait. The moment of an event orders a run's events: 24 bits are the row, the others the call.
_REACHED: Final = """
WITH happened AS (
    SELECT xxhash64(run_id, topic, partition, shiftright(time_ms, 10)) AS place, type, call_number, time_ms, offset,
        shiftleft(call_number, 24) | row AS moment, if(type = 'follower_progress', replica_id, -1) AS replica
    FROM {events}
    WHERE refusal_code = 0 AND type IN ('leader_append', 'follower_progress', 'high_watermark')
), steps AS (
    SELECT wait, type, replica, min(moment) AS moment, min(time_ms) AS at_ms FROM happened JOIN {waits} USING (place)
    WHERE time_ms >= begin_ms - 256 AND call_number <= end_call AND offset >= required_offset
    GROUP BY wait, type, replica
)
SELECT wait, collect_list(struct(moment, at_ms, type, replica)) AS steps FROM steps GROUP BY wait"""

_ROLES: Final = """
SELECT run_id, topic, partition, call_number, row, type, in_sync, leader_id FROM {events}
WHERE refusal_code = 0 AND type IN ('in_sync_replicas', 'leadership')"""

# `states`: ranges of calls during which a partition had the same in-sync replicas and leader. If the in-sync replicas
# are unknown, every replica counts. No follower has the offset before its leader, so an append after the last
# follower's step is not the first one. Of an operation on several partitions, the most certain cause counts.
_HELD: Final = """
WITH stayed AS (
    SELECT run_id, topic, partition, call_number AS end_call, min_by(in_sync, row) AS stayed FROM {roles}
    WHERE type = 'in_sync_replicas' GROUP BY run_id, topic, partition, call_number
), states AS (
    SELECT run_id, topic, partition, call_number AS from_call, lead(call_number) OVER told AS to_call,
        last_value(if(size(in_sync) > 0, in_sync, NULL)) IGNORE NULLS OVER told AS members,
        last_value(if(leader_id >= 0, leader_id, NULL)) IGNORE NULLS OVER told AS leader
    FROM {roles} WINDOW told AS (PARTITION BY run_id, topic, partition ORDER BY call_number, row)
), waits AS (
    SELECT w.*, members, leader, stayed, filter(steps, step -> step.type = 'follower_progress') AS progress,
        sort_array(filter(progress, step -> coalesce(array_contains(members, step.replica), true)), false) AS followers,
        get(followers, 0) AS latest, get(followers, 1) AS earlier,
        get(filter(steps, step -> step.type = 'leader_append'), 0) AS append,
        array_sort(array_except(array_except(members, stayed), transform(progress, step -> step.replica))) AS gone,
        exists(steps, step -> step.type = 'high_watermark' AND shiftright(step.moment, 24) = w.end_call) AS is_told
    FROM {slow} w LEFT JOIN {reached} r ON w.wait = r.wait
    LEFT JOIN stayed t ON w.run_id = t.run_id AND w.topic = t.topic AND w.partition = t.partition
        AND w.end_call = t.end_call
    LEFT JOIN states s ON w.run_id = s.run_id AND w.topic = s.topic AND w.partition = s.partition
        AND s.from_call < w.end_call AND (s.to_call IS NULL OR s.to_call >= w.end_call)
), caused AS (
    SELECT *, CASE WHEN shiftright(latest.moment, 24) = end_call THEN 'follower'
            WHEN shiftright(append.moment, 24) = end_call THEN 'leader'
            WHEN size(gone) > 0 THEN 'left' WHEN is_told THEN 'told' ELSE 'unknown' END AS cause,
        if(latest IS NULL OR append.at_ms <= latest.at_ms, append.at_ms, NULL) AS appended_ms FROM waits
), judged AS (
    SELECT *, array_position(array('unknown', 'told', 'left', 'leader', 'follower'), cause) AS rank,
        CASE cause WHEN 'follower' THEN latest.replica WHEN 'leader' THEN coalesce(leader, -1)
            WHEN 'left' THEN get(gone, 0) END AS replica_id,
        CASE cause WHEN 'follower' THEN coalesce(earlier.at_ms, appended_ms)
            WHEN 'left' THEN coalesce(latest.at_ms, appended_ms) ELSE latest.at_ms END AS second_ms,
        CASE cause WHEN 'follower' THEN latest.moment WHEN 'leader' THEN append.moment ELSE 0 END & 16777215 AS row,
        if(replica_id IS NULL, NULL, end_ms - greatest(coalesce(second_ms, begin_ms), begin_ms)) AS held_ms
    FROM caused
)
SELECT best.topic, best.cause, best.replica_id, best.held_ms, best.waited_ms FROM (
    SELECT max(struct(rank, row, partition, topic, cause, replica_id, held_ms, waited_ms)) AS best FROM judged
    GROUP BY run_id, session_number, operation_id
)"""


def slow_waits(outcomes: DataFrame, slow_over_ms: int) -> DataFrame:
    """Produces satisfied after a longer wait than this: a row for each of their partitions, numbered by `wait`."""
    produces = outcomes.where(f"kind = 'produce' AND outcome = 'satisfied' AND waited_ms > {slow_over_ms}")
    begin, wait = "time_ms - waited_ms AS begin_ms", "monotonically_increasing_id() AS wait"
    end = ("call_number AS end_call", "time_ms AS end_ms")
    return produces.selectExpr(*_WAIT, wait, begin, *end, "waited_ms", "required_offset")


def held_back(slow: DataFrame, events: DataFrame) -> DataFrame:
    """A row for each slow produce: topic, `cause`, `replica_id` if a replica is to blame, `held_ms` and `waited_ms`.

    `slow` comes from `slow_waits`. It is read several times, so persist it.
    """
    spark = slow.sparkSession
    waits = spark.sql(_SLOTTED, slow=slow)
    waits = F.broadcast(waits) if waits.count() <= BROADCAST_ROWS_MAX else waits
    # Few rows. Spark Connect would drop a checkpoint of them with this variable.
    roles = frame_of(spark, spark.sql(_ROLES, events=events).toArrow())
    return spark.sql(_HELD, slow=slow, roles=roles, reached=spark.sql(_REACHED, events=events, waits=waits))


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
