"""Advice on timeouts, computed from survival curves: three tables, with a sentence per curve.

Curves are computed from counts by topic, kind and milliseconds waited. Only these counts are collected on the driver:
for the topics (and keys) with the most operations, and for all topics together.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory_pipeline.report.estimates import MILLION, QUANTILES, Curve, Share, estimate
from purgatory_pipeline.report.facts import EXPIRED, SATISFIED, UNFINISHED, has_ended
from purgatory_pipeline.report.report_tables import ADVICE, SURVIVAL, TIMEOUTS

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

Row = dict[str, Any]


def largest_topics(facts: DataFrame, topics_max: int) -> dict[str, list[str]]:
    """The topics with the most operations by kind, from condensed facts."""
    by_size = Window.partitionBy("kind").orderBy(F.desc("size"), "topic")
    sizes = _seen(facts).groupBy("kind", "topic").agg(F.sum("operations").alias("size"))
    placed = sizes.withColumn("place", F.row_number().over(by_size)).where(F.col("place") <= topics_max)
    rows: pd.DataFrame = placed.select("kind", "topic").toPandas()
    return {str(kind): [*of_kind] for kind, of_kind in rows.groupby("kind")["topic"]}


def waited_counts(facts: DataFrame, largest: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Operations by topic, kind, fate and time waited, from condensed facts. The topic is null for smaller topics."""
    seen = _seen(facts).where("waited_ms is not null")
    return _of_large(seen, largest, "fate", "waited_ms").toPandas()


def timeout_counts(registered: DataFrame, largest: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Operations by topic, kind and timeout, from `registered_counts`. The topic is null for smaller topics."""
    return _of_large(registered.where("not refused and operations > 0"), largest, "timeout_ms").toPandas()


def timeouts_in_use(counts: pd.DataFrame) -> pd.DataFrame:
    """The most common timeouts of each topic and of all topics (null), from `timeout_counts`, numbered by `place`.

    Adds `timeouts`, the number of distinct timeouts, and `share`.
    """
    of_all = counts.groupby(["kind", "timeout_ms"], as_index=False)["operations"].sum().assign(topic=ALL)
    both = pd.concat([counts.dropna(subset=["topic"]), of_all], ignore_index=True)
    both = both.sort_values(["operations", "timeout_ms"], ascending=[False, True], ignore_index=True)
    curves = both.groupby(["topic", "kind"], dropna=False)
    placed = both.assign(
        place=curves.cumcount() + 1,
        share=both["operations"] / curves["operations"].transform("sum"),
        timeouts=curves["timeout_ms"].transform("size"),
    )
    return placed[placed["place"] <= IN_USE_MAX]


def _seen(facts: DataFrame) -> DataFrame:
    return facts.where((has_ended() | (F.col("fate") == UNFINISHED)) & (F.col("operations") > 0))


def _of_large(rows: DataFrame, largest: Mapping[str, Sequence[str]], *columns: str) -> DataFrame:
    """`operations` by topic (null for smaller topics), kind and these columns."""
    large = [f"{kind}\0{topic}" for kind, topics in largest.items() for topic in topics]
    topic = F.when(F.concat("kind", F.lit("\0"), "topic").isin(large), F.col("topic")).alias("topic")
    return rows.groupBy(topic, "kind", *columns).agg(F.sum("operations").alias("operations"))


def advise(counts: pd.DataFrame, in_use: pd.DataFrame, asked_ms: Sequence[int] = ()) -> dict[str, pa.Table]:
    """Makes the three tables, by name, from `waited_counts` and `timeouts_in_use`."""
    advice: list[Row] = []
    timeouts: list[Row] = []
    points: list[Row] = []
    used = _used(in_use)
    for topic, kind, frame in _curves(counts):
        curve = estimate(*(frame[name].to_numpy(np.int64) for name in ("waited_ms", SATISFIED, "others")))
        owned = used.get((topic, kind), [])
        judged = {timeout_ms: curve.expires(timeout_ms) for timeout_ms in _candidates(curve, owned, asked_ms)}
        head: Row = {"topic": topic, "kind": kind}
        row = head | _needs(curve, int(frame[SATISFIED].sum()), int(frame[EXPIRED].sum())) | _use(owned, judged)
        advice.append(row | {"sentence": sentence(row, judged)})
        timeouts += [
            head | {"timeout_ms": timeout_ms, "in_use": timeout_ms == row["timeout_ms"]} | share.columns("expires")
            for timeout_ms, share in judged.items()
        ]
        points += [head | point for point in _points(curve)]
    rows = {ADVICE: advice, TIMEOUTS: timeouts, SURVIVAL: points}
    return {table.name: pa.Table.from_pylist(part, schema=table.schema) for table, part in rows.items()}


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


def _curves(counts: pd.DataFrame) -> Iterator[tuple[str | None, str, pd.DataFrame]]:
    """Yields topic, kind and counts by time waited for each curve."""
    fates = {
        SATISFIED: counts["fate"] == SATISFIED,
        EXPIRED: counts["fate"] == EXPIRED,
        "others": counts["fate"] != SATISFIED,
    }
    split = counts.assign(**{name: counts["operations"].where(is_so, 0) for name, is_so in fates.items()})
    both = pd.concat([split.assign(topic=ALL), split.dropna(subset=["topic"])])
    for (topic, kind), rows in both.groupby(["topic", "kind"], dropna=False):
        by_wait = rows.groupby("waited_ms")[[*fates]].sum().reset_index()
        yield ALL if pd.isna(topic) else str(topic), str(kind), by_wait


def _used(in_use: pd.DataFrame) -> dict[tuple[str | None, str], list[Row]]:
    """The timeouts in use by curve, most common first."""
    used: dict[tuple[str | None, str], list[Row]] = {}
    for row in in_use.sort_values("place").to_dict("records"):
        used.setdefault((ALL if pd.isna(row["topic"]) else row["topic"], row["kind"]), []).append(row)
    return used


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


def _use(used: Sequence[Row], judged: Mapping[int, Share]) -> Row:
    if not used:
        none: Row = dict.fromkeys(("timeout_ms", "timeout_share", *Share(None, 0, 1).columns("timeout_expires")))
        return none | {"timeouts": 0}
    first = used[0]
    timeout_ms = int(first["timeout_ms"])
    use = {"timeout_ms": timeout_ms, "timeout_share": float(first["share"]), "timeouts": int(first["timeouts"])}
    return use | judged[timeout_ms].columns("timeout_expires")


def _points(curve: Curve) -> Iterator[Row]:
    names = ("waited_ms", "waiting", "waiting_low", "waiting_high", "at_risk")
    columns = (curve.waited_ms, curve.waiting, curve.low, curve.high, curve.at_risk)
    shown = curve.shown()
    for values in zip(*(column[shown].tolist() for column in columns), strict=True):
        yield {name: None if np.isnan(value) else value for name, value in zip(names, values, strict=True)}
