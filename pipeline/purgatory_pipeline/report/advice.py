"""Advice on timeouts, computed from curves of how operations end: three tables, with a sentence per curve.

Curves are computed from counts by topic, kind and milliseconds waited. Only these counts are collected on the driver:
for the topics (and keys) with the most operations, and for all topics together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.report.estimates import MILLION, QUANTILES, Curve, Floats, Share, estimate
from purgatory_pipeline.report.facts import CANCELLED, CARRIED_IN, EXPIRED, FAILED, SATISFIED, UNFINISHED, has_ended
from purgatory_pipeline.report.near_misses import LOOKED_UP, REACHED
from purgatory_pipeline.report.report_tables import TABLES
from purgatory_pipeline.spark.tasks import small_side

IN_USE_MAX: Final = 3
"""Number of timeouts judged per curve: the most common ones."""
LADDER_MS: Final = tuple(sorted({step * 10**power // 10 for power in range(7) for step in (10, 15, 20, 30, 50, 70)}))
AROUND: Final = 5
"""Judges the timeouts in `LADDER_MS` that differ from the one in use by at most this factor."""
ACCEPTABLE: Final = 0.01
"""The sentence recommends the shortest timeout that expires at most this share."""

ADVISED_MIN: Final = 30
"""Minimum number of operations for advice."""

ALL: Final = None
"""The topic value of rows that cover all topics together."""

COMPETING: Final = (SATISFIED, FAILED, CANCELLED)
"""Ends that an operation can have without a timeout. Others expired, or were cut off by a shutdown or the end of the
rows.
"""

Row = dict[str, Any]
CurveKey = tuple[str | None, str]
"""Topic and kind."""
Widening = Callable[[Mapping[CurveKey, Curve]], Mapping[CurveKey, Floats]]
"""Finds the factors of `estimate` for the curves."""


def largest_topics(facts: DataFrame, topics_max: int) -> DataFrame:
    """The topics with the most operations: `kind`, `topic`, and the topic again as `large`. From condensed facts."""
    by_size = Window.partitionBy("kind").orderBy(F.desc("size"), "topic")
    sizes = _seen(facts).groupBy("kind", "topic").agg(F.sum("operations").alias("size"))
    placed = sizes.withColumn("place", F.row_number().over(by_size)).where(F.col("place") <= topics_max)
    return placed.select("kind", "topic", F.col("topic").alias("large"))


def waited_counts(facts: DataFrame, missed: DataFrame, largest: DataFrame) -> DataFrame:
    """Operations by topic, kind, fate, time waited and (if they expired) timeout, from condensed facts and
    `near_misses`. The topic is null for smaller topics.
    """
    is_missed = F.col("kind").isin(*LOOKED_UP) & (F.col("fate") == EXPIRED)
    counted = (has_ended() | F.col("fate").isin(UNFINISHED, CARRIED_IN)) & ~is_missed
    seen = facts.where(counted & (F.col("operations") > 0)).where("waited_ms is not null")
    timeout_ms = F.when(F.col("fate") == EXPIRED, F.col("waited_ms") - F.col("lateness_ms"))
    columns = ["topic", "kind", "fate", "waited_ms", "timeout_ms", "operations"]
    both = seen.withColumn("timeout_ms", timeout_ms).select(*columns)
    both = both.unionAll(missed.withColumn("operations", F.lit(1).cast("bigint")).select(*columns))
    return _of_large(both, largest, "fate", "waited_ms", "timeout_ms")


def timeout_counts(registered: DataFrame, largest: DataFrame) -> DataFrame:
    """Operations by topic, kind and timeout, from `registered_counts`. The topic is null for smaller topics."""
    return _of_large(registered.where("not refused and operations > 0"), largest, "timeout_ms")


def timeouts_in_use(counts: pd.DataFrame) -> dict[CurveKey, list[Row]]:
    """The most common timeouts of each topic and of all topics, from `timeout_counts`, with their `share` of the
    operations and `timeouts`, the number of distinct ones.
    """
    both = pd.concat([counts.dropna(subset=["topic"]), counts.assign(topic=ALL)])
    sums = both.groupby(["topic", "kind", "timeout_ms"], as_index=False, dropna=False)["operations"].sum()
    used: dict[CurveKey, list[Row]] = {}
    for (topic, kind), own in sums.groupby(["topic", "kind"], dropna=False):
        first = own.sort_values(["operations", "timeout_ms"], ascending=[False, True]).head(IN_USE_MAX)
        placed = first.assign(share=first["operations"] / own["operations"].sum(), timeouts=len(own))
        used[ALL if pd.isna(topic) else str(topic), str(kind)] = placed.to_dict("records")
    return used


def _seen(facts: DataFrame) -> DataFrame:
    return facts.where((has_ended() | (F.col("fate") == UNFINISHED)) & (F.col("operations") > 0))


def _of_large(rows: DataFrame, largest: DataFrame, *columns: str) -> DataFrame:
    """`operations` by topic (null for smaller topics), kind and these columns."""
    named = rows.join(small_side(largest), ["kind", "topic"], "left")
    counted = named.groupBy(F.col("large").alias("topic"), "kind", *columns)
    return counted.agg(F.sum("operations").alias("operations"))


def advise(
    counts: pd.DataFrame,
    in_use: Mapping[CurveKey, list[Row]],
    asked_ms: Sequence[int] = (),
    widening: Widening | None = None,
) -> dict[str, pa.Table]:
    """Makes the three tables, by name, from `waited_counts` and `timeouts_in_use`. An expired operation counts as
    satisfied at the time at which its mark was REACHED.
    """
    advice: list[Row] = []
    timeouts: list[Row] = []
    points: list[Row] = []
    frames = dict(_curves(counts))
    curves = {key: _estimate(frame) for key, frame in frames.items()}
    factors = widening(curves) if widening else {}
    curves |= {key: _estimate(frames[key], factor) for key, factor in factors.items()}
    for (topic, kind), frame in frames.items():
        curve = curves[topic, kind]
        owned = in_use.get((topic, kind), [])
        judged = {timeout_ms: curve.expires(timeout_ms) for timeout_ms in _candidates(curve, owned, asked_ms)}
        head: Row = {"topic": topic, "kind": kind}
        row = head | _needs(curve, int(frame["done"].sum()), int(frame[EXPIRED].sum()))
        row |= _use(owned, judged, _expired_under(counts, topic, kind))
        advice.append(row | {"sentence": sentence(row, judged)})
        for timeout_ms, share in judged.items():
            ended = [None] * len(COMPETING) if share.value is None else curve.shares_ended(timeout_ms)
            timeouts.append(
                head
                | {"timeout_ms": timeout_ms, "in_use": timeout_ms == row["timeout_ms"]}
                | share.columns("expires")
                | dict(zip(COMPETING, ended, strict=True))
                | {"estimated": curve.estimated(timeout_ms)}
            )
        points += [head | point for point in _points(curve)]
    rows = {"advice": advice, "timeouts": timeouts, "survival": points}
    return {name: pa.Table.from_pylist(part, TABLES[name].schema) for name, part in rows.items()}


def sentence(row: Row, judged: Mapping[int, Share]) -> str:
    """Puts a row of the table into words, with a timeout that would be sufficient."""
    if row["operations"] < ADVISED_MIN:
        return f"Too few to advise: {row['operations']:,} seen, {row['satisfied']:,} of them satisfied."
    seen = f"{row['seen_until_ms']:,} ms"
    needs = f"More than half of these need more than {seen}"
    for name, share in (("p50", "Half"), ("p90", "10 %"), ("p99", "1 %")):
        if row[f"need_{name}_ms"] is not None:
            needs = f"{share} of these need more than {row[f'need_{name}_ms']:,} ms"
    in_use = row["timeout_ms"]
    if in_use is None:
        return f"{needs}."
    expires = row["timeout_expires"]
    now = percent(expires) if expires is not None else f"at most {percent(row['timeout_expires_high'])}"
    advice = f"{needs}; the {in_use:,} ms in use expire {now}"
    known = [(ms, share.value) for ms, share in judged.items() if share.value is not None]
    enough = [(ms, rest) for ms, rest in known if rest <= ACCEPTABLE]
    if enough and enough[0][0] != in_use:
        first_ms, rest = enough[0]
        return f"{advice}, {first_ms:,} ms would expire {'as few' if rest == expires else percent(rest)}."
    if enough or (expires is not None and expires <= ACCEPTABLE):
        return f"{advice}."
    longest_ms, rest = known[-1] if known else (in_use, 1.0)
    if longest_ms > in_use:
        return f"{advice}, {longest_ms:,} ms would still expire {percent(rest)}."
    return f"{advice}; not enough seen beyond {seen} to say which would expire less."


def percent(share: float) -> str:
    """Formats a share as a percentage with about two significant digits: 3.1 %."""
    if share == 0:
        return "nothing"
    if share < 0.0001:
        return "less than 0.01 %"
    return f"{share * 100:.{2 if share < 0.01 else 1 if share < 0.2 else 0}f} %"


def _curves(counts: pd.DataFrame) -> Iterator[tuple[CurveKey, pd.DataFrame]]:
    """Yields the counts by time waited of each curve."""
    is_fate: dict[str, pd.Series[bool]] = {fate: counts["fate"] == fate for fate in (*COMPETING, CARRIED_IN, REACHED)}
    fates = is_fate | {
        "done": is_fate[SATISFIED],
        SATISFIED: is_fate[SATISFIED] | is_fate[REACHED],
        EXPIRED: counts["fate"].isin([EXPIRED, REACHED]),
        "censored": ~counts["fate"].isin([*is_fate]),
        "unreached": (counts["fate"] == EXPIRED) & counts["kind"].isin(LOOKED_UP),
    }
    split = counts.assign(**{name: counts["operations"].where(is_so, 0) for name, is_so in fates.items()})
    both = pd.concat([split.assign(topic=ALL), split.dropna(subset=["topic"])])
    for (topic, kind), rows in both.groupby(["topic", "kind"], dropna=False):
        by_wait = rows.groupby("waited_ms")[[*fates]].sum().reset_index()
        if by_wait.drop(columns=["waited_ms", CARRIED_IN]).to_numpy().any():
            yield (ALL if pd.isna(topic) else str(topic), str(kind)), by_wait


def _estimate(frame: pd.DataFrame, widening: Floats | None = None) -> Curve:
    waited_ms, censored, entered, unreached, *ended = (
        frame[name].to_numpy(np.int64) for name in ("waited_ms", "censored", CARRIED_IN, "unreached", *COMPETING)
    )
    return estimate(waited_ms, ended, censored, entered, widening, unreached)


def _expired_under(counts: pd.DataFrame, topic: str | None, kind: str) -> Mapping[int, int]:
    """How many operations of a curve expired, by timeout."""
    of_curve = (counts["kind"] == kind) & counts["fate"].isin([EXPIRED, REACHED])
    if topic is not ALL:
        of_curve &= counts["topic"] == topic
    sums: Mapping[int, int] = counts[of_curve].groupby("timeout_ms")["operations"].sum().to_dict()
    return sums


def _candidates(curve: Curve, used: Sequence[Row], asked_ms: Sequence[int]) -> list[int]:
    in_use = [int(row["timeout_ms"]) for row in used]
    middle_ms = (in_use[0] if in_use else 0) or max(curve.seen_until_ms, 1)
    near = [step for step in LADDER_MS if middle_ms / AROUND <= step <= middle_ms * AROUND]
    return sorted({*near, *in_use, *asked_ms})


def _needs(curve: Curve, satisfied: int, expired: int) -> Row:
    row: Row = {
        "operations": curve.operations,
        "satisfied": satisfied,
        "expired": expired,
        "expired_share": expired / curve.operations,
        "seen_until_ms": curve.seen_until_ms,
    }
    for name, millionths in QUANTILES.items():
        needs = curve.need_ms(millionths / MILLION)
        row |= {f"need_{name}{end}_ms": value for end, value in zip(("", "_low", "_high"), needs, strict=True)}
    return row


def _use(used: Sequence[Row], judged: Mapping[int, Share], expired: Mapping[int, int]) -> Row:
    if not used:
        columns = ("timeout_ms", "timeout_share", "timeout_observed")
        none: Row = dict.fromkeys((*columns, *Share(None, 0, 1).columns("timeout_expires")))
        return none | {"timeouts": 0}
    first = used[0]
    timeout_ms = int(first["timeout_ms"])
    use = {"timeout_ms": timeout_ms, "timeout_share": float(first["share"]), "timeouts": int(first["timeouts"])}
    use["timeout_observed"] = expired.get(timeout_ms, 0) / first["operations"]
    return use | judged[timeout_ms].columns("timeout_expires")


def _points(curve: Curve) -> Iterator[Row]:
    names = ("waited_ms", "waiting", "waiting_low", "waiting_high", *COMPETING, "at_risk")
    columns = (curve.waited_ms, curve.waiting, curve.low, curve.high, *curve.ended, curve.at_risk)
    shown = curve.shown()
    for values in zip(*(column[shown].tolist() for column in columns), strict=True):
        yield {name: None if np.isnan(value) else value for name, value in zip(names, values, strict=True)}
