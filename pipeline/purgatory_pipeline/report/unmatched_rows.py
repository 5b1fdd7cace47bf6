"""Registrations without an end and ends without a registration, found without shuffling all of them.

Both sides are summed up by run in slots of about a minute, by the instant of registration. Only where the sums differ
are rows compared one by one: usually the last minutes of a run, or those around a loss.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory.archive.schema import ACCEPTED

SLOT_BITS: Final = 16
"""A slot is 2**16 ms."""

LATENESS_MAX_MS: Final = 60_000
"""An operation without an end so long after its deadline has lost it."""

_ROW: Final = ("run_id", "session_number", "operation_id", "item")


@dataclass(frozen=True)
class UnmatchedRows:
    """Rows without a partner; None: every row has one.

    `unfinished` are registrations, with `waited_ms` up to the end of what is known of their run; null if their end
    must have come before that, but is lost. `carried_in` are outcomes.
    """

    unfinished: DataFrame | None
    carried_in: DataFrame | None


def find_unmatched(registrations: DataFrame, outcomes: DataFrame) -> UnmatchedRows:
    """Compares the two tables and reads both. Refused registrations never end and are left out."""
    begun = registrations.where(F.col("refusal_code") == ACCEPTED).withColumn("slot", _slot(F.col("time_ms")))
    ended = outcomes.withColumn("slot", _slot(F.col("time_ms") - F.col("waited_ms")))
    sums = (
        _digests(begun, 1)
        .unionAll(_digests(ended, -1))
        .groupBy("run_id", "slot")
        .agg(F.sum("rows").alias("rows"), F.expr("bit_xor(digest)").alias("digest"), F.max("last_ms").alias("last_ms"))
        .localCheckpoint()
    )
    differing = sums.where("rows <> 0 or digest <> 0").select("run_id", "slot")
    if differing.isEmpty():
        return UnmatchedRows(None, None)
    run_ends = sums.groupBy("run_id").agg(F.max("last_ms").alias("run_end_ms"))
    suspects = begun.join(F.broadcast(differing), ["run_id", "slot"], "left_semi")
    partners = ended.join(F.broadcast(differing), ["run_id", "slot"], "left_semi")
    unfinished = suspects.join(partners, [*_ROW], "left_anti").join(F.broadcast(run_ends), "run_id")
    waited_ms = F.col("run_end_ms") - F.col("time_ms")
    is_lost = waited_ms > F.col("timeout_ms") + LATENESS_MAX_MS
    return UnmatchedRows(
        unfinished.withColumn("waited_ms", F.when(~is_lost, waited_ms)).localCheckpoint(),
        partners.join(suspects, [*_ROW], "left_anti").localCheckpoint(),
    )


def _slot(time_ms: Column) -> Column:
    return F.shiftright(time_ms, SLOT_BITS)


def _digests(rows: DataFrame, sign: int) -> DataFrame:
    """By run and slot, sums that cancel those of the other side if the rows are the same."""
    return rows.groupBy("run_id", "slot").agg(
        (F.count(F.lit(1)) * sign).alias("rows"),
        F.expr("bit_xor(xxhash64(session_number, operation_id, item))").alias("digest"),
        F.max("time_ms").alias("last_ms"),
    )
