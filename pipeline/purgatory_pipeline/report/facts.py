"""Aggregated counts: the small frames from which nearly all tables are computed, so that rows are read only once.

A *fact* is a number of waits with the same window, topic, partition, kind, principal, fate and times. Waits are whole
milliseconds, so rows often share these values, and a quantile over facts equals the quantile over rows exactly.

Registrations without an end and ends without a registration are found without shuffling all rows. Both sides are summed
by run in slots of about a minute, by the instant of registration. Rows are compared one by one only if the sums of a
slot differ: usually in the last minutes of a run, or around a loss.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory.engine import codes
from purgatory.extensions.archive.schema import ACCEPTED

# Fates other than outcomes.
REGISTERED: Final = "registered"
REFUSED: Final = codes.OUTCOME_NAMES[codes.REFUSED]
UNFINISHED: Final = "unfinished"
CARRIED_IN: Final = "carried_in"

SATISFIED: Final = codes.OUTCOME_NAMES[codes.SATISFIED]
FAILED: Final = codes.OUTCOME_NAMES[codes.FAILED]
CANCELLED: Final = codes.OUTCOME_NAMES[codes.CANCELLED]
EXPIRED: Final = codes.OUTCOME_NAMES[codes.EXPIRED]
ENDS: Final = tuple(codes.OUTCOME_NAMES[outcome] for outcome in codes.OUTCOMES)
"""Fates of operations that have ended, one per outcome."""

GROUP: Final = ("topic", "partition", "kind", "principal")

SLOT_BITS: Final = 16
"""A slot is 2**16 ms."""

LATENESS_MAX_MS: Final = 60_000
"""If a run's rows continue this long after an operation's deadline, its missing end was lost."""

_ROW: Final = ("run_id", "session_number", "operation_id", "item")
_ACROSS: Final = ("session_id", "session_number", "operation_id", "item", "registered_ms")
"""Columns that identify a wait across all runs of a daemon with a journal."""
WALL_STEP_MAX_MS: Final = 600_000
"""The largest wall clock adjustment during a wait that is still recognised."""


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
    begun = registrations.where(F.col("refusal_code") == ACCEPTED).withColumn("registered_ms", F.col("time_ms"))
    ended = outcomes.withColumn("registered_ms", F.col("time_ms") - F.col("waited_ms"))
    begun, ended = (rows.withColumn("slot", F.shiftright("registered_ms", SLOT_BITS)) for rows in (begun, ended))
    sides = [
        rows.select("run_id", "slot", "session_number", "operation_id", "item", "time_ms", F.lit(sign).alias("sign"))
        for rows, sign in ((begun, 1), (ended, -1))
    ]
    both = sides[0].unionAll(sides[1]).groupBy("run_id", "slot")
    # A row that occurs twice on one side cancels out in the digest, but not in the number of rows.
    digest = F.expr("bit_xor(xxhash64(session_number, operation_id, item))").alias("digest")
    ends = (F.min("time_ms").alias("first_ms"), F.max("time_ms").alias("last_ms"))
    sums = both.agg(F.sum("sign").alias("rows"), digest, *ends).localCheckpoint()
    differing = sums.where("rows <> 0 or digest <> 0").select("run_id", "slot")
    if differing.isEmpty():
        return UnmatchedRows()
    run_ends = sums.groupBy("run_id").agg(F.max("last_ms").alias("run_end_ms"), F.min("first_ms").alias("run_begin_ms"))
    suspects = begun.join(F.broadcast(differing), ["run_id", "slot"], "left_semi")
    partners = ended.join(F.broadcast(differing), ["run_id", "slot"], "left_semi")
    waited_ms = F.col("run_end_ms") - F.col("time_ms")
    is_lost = waited_ms > F.col("timeout_ms") + LATENESS_MAX_MS
    unfinished = suspects.join(partners, [*_ROW], "left_anti").join(F.broadcast(run_ends), "run_id")
    unfinished = unfinished.withColumn("waited_ms", F.when(~is_lost, waited_ms)).localCheckpoint()
    carried_in = partners.join(suspects, [*_ROW], "left_anti").join(F.broadcast(run_ends), "run_id")
    entered_ms = F.greatest(F.col("run_begin_ms") - F.col("registered_ms"), F.lit(0))
    carried_in = carried_in.withColumn("entered_ms", entered_ms).localCheckpoint()
    if carried_in.isEmpty():
        return UnmatchedRows(unfinished, None, unfinished)
    return _across_runs(begun, unfinished, carried_in)


def _across_runs(begun: DataFrame, unfinished: DataFrame, carried_in: DataFrame) -> UnmatchedRows:
    """Match rows without a partner in their own run with those of other runs.

    With a journal, sessions keep their numbers across a restart and the engine's clock continues. Unary waits (session
    0) end with their daemon.
    """
    left = _join_waits(carried_in, unfinished, "left_anti").localCheckpoint()
    known = _join_waits(begun, F.broadcast(left), "left_semi")
    again = _join_waits(left, known, "left_semi").localCheckpoint()
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
    return registrations.groupBy(
        _window(window_ms), *_group(), "timeout_ms", (F.col("refusal_code") != ACCEPTED).alias("refused")
    ).agg(*_counted())


def ended_counts(outcomes: DataFrame, window_ms: int) -> DataFrame:
    return _counted_by(outcomes, window_ms, F.col("outcome"), F.col("waited_ms"), F.col("lateness_ms"))


def make_facts(registered: DataFrame, ended: DataFrame, unmatched: UnmatchedRows, window_ms: int) -> DataFrame:
    """All facts: `window`, the group, `fate`, `waited_ms`, `lateness_ms`, and the number of waits with these values.

    `waits` counts every partition of an operation, `operations` only the first. `waited_ms` is null where it does not
    apply; of what was carried in, it is how long that had waited before. `registered` comes from `registered_counts`,
    `ended` from `ended_counts`.
    """
    nothing = F.lit(None).cast("bigint")
    fate = F.when(F.col("refused"), REFUSED).otherwise(REGISTERED)
    begun = registered.groupBy("window", *GROUP, fate.alias("fate")).agg(*_added())
    facts = ended.unionByName(begun.withColumns({"waited_ms": nothing, "lateness_ms": nothing}))
    if unmatched.unfinished is not None:
        unfinished = _counted_by(unmatched.unfinished, window_ms, F.lit(UNFINISHED), F.col("waited_ms"), nothing)
        facts = facts.unionByName(unfinished)
    if unmatched.carried_in is not None:
        entered = _counted_by(unmatched.carried_in, window_ms, F.lit(CARRIED_IN), F.col("entered_ms"), nothing)
        facts = facts.unionByName(entered)
    return facts


def condensed(facts: DataFrame) -> DataFrame:
    return facts.groupBy("window", "topic", "kind", "fate", "waited_ms", "lateness_ms").agg(*_added())


def has_ended() -> Column:
    return F.col("fate").isin(*ENDS)


def _window(window_ms: int) -> Column:
    return F.expr(f"unix_millis(at) div {window_ms}").alias("window")


def _group() -> list[Column]:
    """The group columns. A refused registration may have been undecodable; it then has neither topic nor principal."""
    return [
        F.coalesce("topic", F.lit("")).alias("topic"),
        F.coalesce("partition", F.lit(-1)).alias("partition"),
        F.col("kind"),
        F.coalesce("principal", F.lit("")).alias("principal"),
    ]


def _counted_by(rows: DataFrame, window_ms: int, fate: Column, waited_ms: Column, lateness_ms: Column) -> DataFrame:
    measured = (fate.alias("fate"), waited_ms.alias("waited_ms"), lateness_ms.alias("lateness_ms"))
    return rows.groupBy(_window(window_ms), *_group(), *measured).agg(*_counted())


def _counted() -> list[Column]:
    return [F.count(F.lit(1)).alias("waits"), F.sum(F.expr("if(item = 0, 1L, 0L)")).alias("operations")]


def _added() -> list[Column]:
    return [F.sum("waits").alias("waits"), F.sum("operations").alias("operations")]
