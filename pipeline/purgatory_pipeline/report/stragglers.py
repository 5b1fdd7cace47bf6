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

from purgatory_pipeline.report.estimates import MILLION, quantiles
from purgatory_pipeline.report.facts import queried
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.spark.tasks import BROADCAST_ROWS_MAX, small_side

HELD: Final = {"median_ms": 500_000, "p99_ms": 990_000, "max_ms": MILLION}

_WAIT: Final = ("run_id", "session_number", "operation_id", "topic", "partition")


def slow_waits(outcomes: DataFrame, slow_over_ms: int) -> DataFrame:
    """Produces satisfied after a longer wait than this: a row for each of their partitions, numbered by `wait`."""
    produces = outcomes.where(f"kind = 'produce' AND outcome = 'satisfied' AND waited_ms > {slow_over_ms}")
    begin, wait = "time_ms - waited_ms AS begin_ms", "monotonically_increasing_id() AS wait"
    end = ("call_number AS end_call", "time_ms AS end_ms")
    return produces.selectExpr(*_WAIT, wait, begin, *end, "waited_ms", "required_offset")


def held_counts(slow: DataFrame, events: DataFrame) -> pd.DataFrame:
    """Counts slow produces by topic, `cause`, `replica_id` if a replica is to blame, and `held_ms`: `waits` and
    `waited_ms`. `slow` comes from `slow_waits`. It is read several times, so persist it.
    """
    waits = small_side(queried("slow_slots", slow=slow), BROADCAST_ROWS_MAX)
    reached = queried("slow_steps", events=events, waits=waits)
    roles = queried("replica_roles", events=events).localCheckpoint(eager=False)
    return queried("held_back", slow=slow, roles=roles, reached=reached).toPandas()


def slow_produces(counts: pd.DataFrame) -> pa.Table:
    sums = counts.groupby("cause", as_index=False)[["waits", "waited_ms"]].sum()
    named = sums.rename(columns={"waits": "operations", "waited_ms": "waited_total_ms"})
    share = named["operations"] / named["operations"].sum()
    return pa.Table.from_pandas(named.assign(share=share), TABLES["slow_produces"].schema, preserve_index=False)


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
    return pa.Table.from_pandas(rows.assign(**found, share=share), TABLES["stragglers"].schema, preserve_index=False)
