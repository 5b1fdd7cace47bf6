"""Aggregated counts: the small frames from which nearly all tables are computed, so that rows are read only once.

A *fact* is a number of waits with the same window, topic, partition, kind, principal, fate and times. Waits are whole
milliseconds, so rows often share these values, and a quantile over facts equals the quantile over rows exactly.

Registrations without an end and ends without a registration are found without shuffling all rows. Both sides are summed
by run in slots of about a minute, by the instant of registration. Rows are compared one by one only if the sums of a
slot differ: usually in the last minutes of a run, or around a loss.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory.engine import codes
from purgatory.extensions.archive.schema import ACCEPTED
from purgatory_pipeline.spark import tasks

# Fates other than outcomes; the queries have "registered" and "refused" too.
UNFINISHED: Final = "unfinished"
CARRIED_IN: Final = "carried_in"

SATISFIED: Final = codes.OUTCOME_NAMES[codes.SATISFIED]
FAILED: Final = codes.OUTCOME_NAMES[codes.FAILED]
CANCELLED: Final = codes.OUTCOME_NAMES[codes.CANCELLED]
EXPIRED: Final = codes.OUTCOME_NAMES[codes.EXPIRED]
ENDS: Final = tuple(codes.OUTCOME_NAMES[outcome] for outcome in codes.OUTCOMES)
"""Fates of operations that have ended, one per outcome."""

SLOT_BITS: Final = 16
"""A slot is 2**16 ms."""

LATENESS_MAX_MS: Final = 60_000
"""If a run's rows continue this long after an operation's deadline, its missing end was lost."""

_ROW: Final = ("run_id", "session_number", "operation_id", "item")
_ACROSS: Final = ("session_id", "session_number", "operation_id", "item", "registered_ms")
"""Columns that identify a wait across all runs of a daemon with a journal."""
WALL_STEP_MAX_MS: Final = 600_000
"""The largest wall clock adjustment during a wait that is still recognised."""

queried: Final = partial(tasks.queried, "report")


@dataclass(frozen=True)
class UnmatchedRows:
    """Registrations without an end and ends without a registration; a field is None if it would have no rows.

    `unfinished` are registrations. Their `waited_ms` lasts until the last known time of their run; it is null if their
    end was lost, because they must have ended before that time. `carried_in` are outcomes; their `entered_ms` is how
    long they had waited when the rows of their run begin. If a journal kept a wait across a restart, its other half is
    in another run. `open` are all registrations without an end in their own run.
    `again` are outcomes of waits that had already ended in an earlier run: the daemon was killed before the journal
    recorded that end.
    """

    unfinished: DataFrame | None = None
    carried_in: DataFrame | None = None
    open: DataFrame | None = None
    again: DataFrame | None = None


def find_unmatched(registrations: DataFrame, outcomes: DataFrame) -> UnmatchedRows:
    """Compares the two tables, reading both. Refused registrations never end and are excluded."""
    begun = registrations.where(f"refusal_code = {ACCEPTED}").selectExpr("*", "time_ms AS registered_ms")
    ended = outcomes.selectExpr("*", "time_ms - waited_ms AS registered_ms")
    begun, ended = (rows.withColumn("slot", F.shiftright("registered_ms", SLOT_BITS)) for rows in (begun, ended))
    sums = queried("slot_sums", begun=begun, ended=ended).localCheckpoint(eager=False)
    differing = sums.where("rows <> 0 or digest <> 0").select("run_id", "slot")
    if differing.isEmpty():
        return UnmatchedRows()
    run_ends = sums.groupBy("run_id").agg(F.max("last_ms").alias("run_end_ms"), F.min("first_ms").alias("run_begin_ms"))
    suspects = begun.join(tasks.small_side(differing), ["run_id", "slot"], "left_semi")
    partners = ended.join(tasks.small_side(differing), ["run_id", "slot"], "left_semi")
    waited_ms = F.col("run_end_ms") - F.col("time_ms")
    is_lost = waited_ms > F.col("timeout_ms") + LATENESS_MAX_MS
    unfinished = suspects.join(partners, [*_ROW], "left_anti").join(tasks.small_side(run_ends), "run_id")
    unfinished = unfinished.withColumn("waited_ms", F.when(~is_lost, waited_ms)).localCheckpoint(eager=False)
    carried_in = partners.join(suspects, [*_ROW], "left_anti").join(tasks.small_side(run_ends), "run_id")
    entered_ms = F.greatest(F.col("run_begin_ms") - F.col("registered_ms"), F.lit(0))
    carried_in = carried_in.withColumn("entered_ms", entered_ms).localCheckpoint(eager=False)
    if carried_in.isEmpty():
        return UnmatchedRows(unfinished, None, unfinished)
    return _across_runs(begun, unfinished, carried_in)


def _across_runs(begun: DataFrame, unfinished: DataFrame, carried_in: DataFrame) -> UnmatchedRows:
    """Match rows without a partner in their own run with those of other runs.

    With a journal, sessions keep their numbers across a restart and the engine's clock continues. Unary waits (session
    0) end with their daemon.
    """
    left = _join_waits(carried_in, unfinished, "left_anti").localCheckpoint(eager=False)
    known = _join_waits(begun, tasks.small_side(left), "left_semi")
    again = _join_waits(left, known, "left_semi").localCheckpoint(eager=False)
    return UnmatchedRows(
        _join_waits(unfinished, carried_in, "left_anti"), left.join(again, [*_ROW], "left_anti"), unfinished, again
    )


def _join_waits(rows: DataFrame, others: DataFrame, how: str) -> DataFrame:
    """Join rows of the same waits in different runs. The engine clocks of unrelated runs may agree, so the wall clocks
    are compared too.
    """
    named = others.select(
        *(F.col(name).alias(f"other_{name}") for name in _ACROSS), _registered_at_ms().alias("other_at")
    )
    is_same = F.abs(_registered_at_ms() - F.col("other_at")) <= WALL_STEP_MAX_MS
    for name in _ACROSS:
        is_same &= F.col(name) == F.col(f"other_{name}")
    return rows.join(named, is_same & (F.col("session_number") > 0), how)


def _registered_at_ms() -> Column:
    """The wall-clock time of the registration: each row has both clocks of its call, and the registration's engine
    time.
    """
    return F.unix_millis("at") - F.col("time_ms") + F.col("registered_ms")


def registered_counts(registrations: DataFrame, window_ms: int) -> DataFrame:
    """Registrations by window, group, timeout and refusal, with the counts `waits` and `operations`."""
    return queried("registered_counts", registrations=registrations, window_ms=window_ms)


def make_facts(registered: DataFrame, outcomes: DataFrame, unmatched: UnmatchedRows, window_ms: int) -> DataFrame:
    """All facts: `window`, the group, `fate`, `waited_ms`, `lateness_ms`, and the number of waits with these values.

    `waits` counts every partition of an operation, `operations` only the first. `waited_ms` is null where it does not
    apply; of what was carried in, it is how long that had waited before. `registered` comes from `registered_counts`.
    """
    none = outcomes.where("false").withColumn("entered_ms", F.col("waited_ms"))
    unfinished, carried_in = (none if rows is None else rows for rows in (unmatched.unfinished, unmatched.carried_in))
    rows = {"outcomes": outcomes, "unfinished": unfinished, "carried_in": carried_in}
    return queried("facts", registered=registered, **rows, window_ms=window_ms)


def condensed(facts: DataFrame) -> DataFrame:
    by = facts.groupBy("window", "topic", "kind", "fate", "waited_ms", "lateness_ms")
    return by.agg(F.sum("waits").alias("waits"), F.sum("operations").alias("operations"))


def has_ended() -> Column:
    return F.col("fate").isin(*ENDS)
