"""What happened, counted: the small frames that nearly all tables are made of, so that rows are read once.

A *fact* is a number of waits that share window, topic, partition, kind, principal, fate and times. Waits are whole
milliseconds, so many share all of that, and a quantile over facts is exactly the quantile over rows.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from purgatory.archive.schema import ACCEPTED
from purgatory.engine import codes
from purgatory_pipeline.report.unmatched_rows import UnmatchedRows

# Fates other than outcomes.
REGISTERED: Final = "registered"
REFUSED: Final = codes.OUTCOME_NAMES[codes.REFUSED]
UNFINISHED: Final = "unfinished"
CARRIED_IN: Final = "carried_in"

SATISFIED: Final = codes.OUTCOME_NAMES[codes.SATISFIED]
EXPIRED: Final = codes.OUTCOME_NAMES[codes.EXPIRED]
ENDS: Final = tuple(codes.OUTCOME_NAMES[outcome] for outcome in codes.OUTCOMES)
"""Fates of operations that have ended."""

GROUP: Final = ("topic", "partition", "kind", "principal")

BITS_KEPT: Final = 7
"""Significant bits of an approximate wait: less than 1 % is rounded away."""


def registered_counts(registrations: DataFrame, window_ms: int) -> DataFrame:
    """Registrations by window, group, timeout and whether they were refused: `waits` and `operations`."""
    return registrations.groupBy(
        _window(window_ms), *_group(), "timeout_ms", (F.col("refusal_code") != ACCEPTED).alias("refused")
    ).agg(*_counted())


def make_facts(
    registered: DataFrame, outcomes: DataFrame, unmatched: UnmatchedRows, window_ms: int, *, approximate: bool
) -> DataFrame:
    """All facts: `window`, the group, `fate`, `waited_ms`, `lateness_ms`, and how many waits share these.

    `waits` counts each partition of an operation, `operations` only the first. `waited_ms` is null where it does
    not apply. `registered` comes from `registered_counts`. `approximate` rounds `waited_ms`, which makes fewer
    facts.
    """
    nothing = F.lit(None).cast("bigint")
    waited_ms = rounded(F.col("waited_ms")) if approximate else F.col("waited_ms")

    def counted(rows: DataFrame, fate: Column, waited_ms: Column = nothing, lateness_ms: Column = nothing) -> DataFrame:
        measured = (fate.alias("fate"), waited_ms.alias("waited_ms"), lateness_ms.alias("lateness_ms"))
        return rows.groupBy(_window(window_ms), *_group(), *measured).agg(*_counted())

    fate = F.when(F.col("refused"), REFUSED).otherwise(REGISTERED)
    begun = registered.groupBy("window", *GROUP, fate.alias("fate")).agg(*_added())
    facts = counted(outcomes, F.col("outcome"), waited_ms, F.col("lateness_ms"))
    facts = facts.unionByName(begun.withColumns({"waited_ms": nothing, "lateness_ms": nothing}))
    if unmatched.unfinished is not None:
        facts = facts.unionByName(counted(unmatched.unfinished, F.lit(UNFINISHED), waited_ms))
    if unmatched.carried_in is not None:
        facts = facts.unionByName(counted(unmatched.carried_in, F.lit(CARRIED_IN)))
    return facts


def condensed(facts: DataFrame) -> DataFrame:
    """The facts without partition and principal."""
    return facts.groupBy("window", "topic", "kind", "fate", "waited_ms", "lateness_ms").agg(*_added())


def rounded(value: Column) -> Column:
    """Rounds to the highest bits, in the middle of the values that share them."""
    dropped = F.greatest(F.floor(F.log2(F.greatest(value, F.lit(1)))).cast("int") - (BITS_KEPT - 1), F.lit(0))
    step = F.pow(F.lit(2.0), dropped).cast("bigint")
    return (F.floor(value / step) * step + F.floor(step / 2)).cast("bigint")


def has_ended() -> Column:
    """Whether a fact is about an end."""
    return F.col("fate").isin(*ENDS)


def _window(window_ms: int) -> Column:
    return F.expr(f"unix_millis(at) div {window_ms}").alias("window")


def _group() -> list[Column]:
    """A refused registration may have been unreadable, and then has neither topic nor principal."""
    return [
        F.coalesce("topic", F.lit("")).alias("topic"),
        F.coalesce("partition", F.lit(-1)).alias("partition"),
        F.col("kind"),
        F.coalesce("principal", F.lit("")).alias("principal"),
    ]


def _counted() -> list[Column]:
    return [F.count(F.lit(1)).alias("waits"), F.sum(F.expr("if(item = 0, 1L, 0L)")).alias("operations")]


def _added() -> list[Column]:
    return [F.sum("waits").alias("waits"), F.sum("operations").alias("operations")]
