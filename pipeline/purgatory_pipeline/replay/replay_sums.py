"""Sums over replayed operations: how many ended how, recorded and replayed, and how long they waited; and the tables
made of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory_pipeline.engine_rows.row_chunk import Column
from purgatory_pipeline.location import Location, write_file
from purgatory_pipeline.replay.open_operations import OpenOperations, Outcomes
from purgatory_pipeline.replay.policy import BASELINE, Policy
from purgatory_pipeline.report.estimates import quantiles

# Verdicts on an operation.
EQUAL: Final = 0
"""The replay ended it as recorded. Under a policy: with the same outcome and after the same wait as unchanged."""
DIFFERENT: Final = 1
NO_OUTCOME: Final = 2
"""It had not ended when its history did."""
IN_DOUBT: Final = 3
"""It ended after rows of its run were lost, so a replay cannot know everything it depended on."""

COUNTER: Final = -1
"""`player` of a row that has a counter of the replay."""

SCHEMA: Final = pa.schema(
    [
        ("player", pa.int32()),
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("before", pa.int32()),  # recorded outcome; under a policy, the one of the unchanged replay
        ("replayed", pa.int32()),  # outcome in the replay
        ("verdict", pa.int32()),
        ("waited_ms", pa.int64()),  # in the replay, see `rounded`
        ("name", pa.string()),  # of a counter
        ("operations", pa.int64()),
    ]
)
"""One row for each sum. Rows with equal keys may be added up."""
_SUMMED_BY: Final = SCHEMA.names[:-1]


def added(rows: pa.Table) -> pa.Table:
    """Adds up rows with equal keys."""
    summed = rows.group_by(_SUMMED_BY, use_threads=False).aggregate([("operations", "sum")])
    return summed.rename_columns([*_SUMMED_BY, "operations"])


def rounded(waited_ms: Column) -> Column:
    """Waits with three significant digits, so that a sum has few: exact up to a second, within 0.5 % beyond."""
    digits = np.log10(np.maximum(waited_ms, 1)).astype(np.int64)
    step = 10 ** np.maximum(digits - 2, 0)
    found: Column = (np.maximum(waited_ms, 0) + step // 2) // step * step
    return found


_OF_OPERATIONS: Final = ["kind", "topic", "before", "replayed", "verdict", "waited_ms"]
_PARTS_ROWS_MAX: Final = 1_000_000


class ReplaySums:
    """The sums of one task. `topics` numbers its topics from 1."""

    def __init__(self) -> None:
        self.topics: Final[dict[str, int]] = {}
        self.counts: Final[Counter[str]] = Counter()
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, finished: OpenOperations, before: Sequence[Outcomes], verdicts: Sequence[Column]) -> None:
        """Adds operations that have ended everywhere: for each policy what it is compared with, and the verdicts."""
        topics = pa.array(["", *self.topics])
        for player, (outcomes, was, verdict) in enumerate(zip(finished.replayed, before, verdicts, strict=True)):
            waited_ms = rounded(outcomes["waited_ms"])
            columns = [finished["kind"], finished["topic"], was["outcome"], outcomes["outcome"], verdict, waited_ms]
            rows = pa.table(columns, _OF_OPERATIONS).group_by(_OF_OPERATIONS, use_threads=False)
            sums = rows.aggregate([([], "count_all")]).rename_columns([*_OF_OPERATIONS, "operations"])
            sums = sums.set_column(1, "topic", topics.take(sums["topic"]))
            same = {"player": pa.repeat(player, len(sums)), "name": pa.repeat("", len(sums))}
            whole = dict(zip(sums.column_names, sums.columns, strict=True)) | same
            self._parts.append(pa.table(whole).select(SCHEMA.names).cast(SCHEMA))
            self._rows += len(sums)
        if self._rows > _PARTS_ROWS_MAX and len(self._parts) > 1:
            self._parts = [added(pa.concat_tables(self._parts))]
            self._rows = len(self._parts[0])

    def table(self) -> pa.Table:
        nothing = dict.fromkeys(SCHEMA.names, 0) | {"player": COUNTER, "topic": ""}
        counted = [
            {**nothing, "name": name, "operations": count} for name, count in sorted(self.counts.items()) if count
        ]
        return added(pa.concat_tables([*self._parts, pa.Table.from_pylist(counted, SCHEMA)]))


OPEN: Final = "open"
"""Outcome of operations still waiting when their history ends."""
UNCHANGED_NAME: Final = ""
"""The policy of the first lines: the unchanged replay, with the same clock and of the same operations as the others."""
KEYS: Final = "(keys)"
"""The topic of signals: there may be too many keys to list."""
QUANTILES: Final = {"wait_p50_ms": 500_000, "wait_p90_ms": 900_000, "wait_p99_ms": 990_000}


def frames_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> dict[str, pd.DataFrame]:
    frames = {
        "outcomes": outcomes_of(sums, policies),
        "waits": waits_of(sums, policies),
        "changes": changes_of(sums, policies),
    }
    return {name: _ordered(frame, policies) for name, frame in frames.items()}


def write_frames(place: Location, frames: Mapping[str, pd.DataFrame]) -> None:
    """Writes each table as NAME.csv, for people, and NAME.parquet, for programs."""
    for name, frame in frames.items():
        write_file(place, f"{name}.csv", frame.to_csv(index=False).encode())
        write_file(place, f"{name}.parquet", frame.to_parquet(index=False))


def outcomes_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Operations by policy, topic (missing: all), kind and outcome, with their share; UNCHANGED_NAME comes first.

    The operations of a topic and kind are the same for each policy. Those in doubt are left out; a column has them.
    """
    own = _waits(sums, policies)
    key = ["policy", "topic", "kind", "outcome"]
    by_topic = own.groupby(key, sort=False, dropna=False)["operations"].sum().reset_index()
    overall = by_topic.groupby(["policy", "kind", "outcome"], sort=False)["operations"].sum().reset_index()
    frame = pd.concat([overall.assign(topic=None), by_topic], ignore_index=True)
    frame["operations"] = frame["operations"].astype(np.int64)
    of_all = frame.groupby(["policy", "topic", "kind"], dropna=False)["operations"].transform("sum")
    frame["share"] = frame["operations"] / of_all
    doubts = _named(sums[(sums["player"] == 0) & (sums["verdict"] == IN_DOUBT)])
    doubts = pd.concat([doubts.assign(topic=None), doubts])
    doubts = doubts.groupby(["topic", "kind"], dropna=False)["operations"].sum().rename("in_doubt").reset_index()
    frame = frame.merge(doubts.astype({"topic": object}), how="left", on=["topic", "kind"])
    frame["in_doubt"] = frame["in_doubt"].fillna(0).astype(np.int64)
    return frame[[*key, "operations", "share", "in_doubt"]]


def waits_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Quantiles of the waits of ended operations, by policy, topic (missing: all) and kind."""
    own = _waits(sums, policies)
    own = own[own["outcome"] != OPEN]
    both = pd.concat([own.assign(topic=None), own], ignore_index=True)
    both["total_ms"] = both["waited_ms"] * both["operations"]
    groups = both.groupby(["policy", "topic", "kind"], sort=False, dropna=False)
    rows = groups[["operations", "total_ms"]].sum().reset_index()
    waited_ms, operations = (both[name].to_numpy(np.int64) for name in ("waited_ms", "operations"))
    found = quantiles(groups.ngroup().to_numpy(), waited_ms, operations, len(rows), QUANTILES)
    rows = rows.assign(wait_mean_ms=rows.pop("total_ms") / rows["operations"], **found)
    return rows.astype({"topic": object, **dict.fromkeys(QUANTILES, float)})


def changes_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Operations by policy, kind, and outcome in the unchanged replay and under the policy, where these two differ."""
    own = sums[(sums["before"] != sums["replayed"]) & (sums["verdict"] != IN_DOUBT)]
    labels = {place: policy.label for place, policy in enumerate(policies) if policy.changes_something}
    own = own[own["player"].isin(list(labels))]
    frame = pd.DataFrame(
        {
            "policy": own["player"].map(labels),
            "kind": own["kind"].map(KIND_NAMES),
            "unchanged": _outcomes(own["before"]),
            "replayed": _outcomes(own["replayed"]),
            "operations": own["operations"].astype(np.int64),
        }
    )
    key = ["policy", "kind", "unchanged", "replayed"]
    return frame.groupby(key, sort=False)["operations"].sum().reset_index()


def _waits(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """The waits of the unchanged replay, and those of policies that change something, with names for codes. Operations
    in doubt have none: no line of a table counts them as ended.
    """
    shown = {policies.index(BASELINE) if BASELINE in policies else 0: UNCHANGED_NAME}
    shown |= {place: policy.label for place, policy in enumerate(policies) if policy.changes_something}
    own = sums[sums["player"].isin(list(shown)) & (sums["verdict"] != IN_DOUBT)]
    names = {"policy": own["player"].map(shown), "outcome": _outcomes(own["replayed"])}
    return _named(own).assign(**names, waited_ms=own["waited_ms"])


def _named(sums: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "topic": sums["topic"].replace("", KEYS),
            "kind": sums["kind"].map(KIND_NAMES),
            "operations": sums["operations"],
        }
    )


def _outcomes(codes: pd.Series) -> pd.Series:
    return codes.map(OUTCOME_NAMES).fillna(OPEN)


def _ordered(frame: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Sorted by policy as asked for, then by the other columns; sums over all topics first."""
    places = {UNCHANGED_NAME: -1} | {policy.label: place for place, policy in enumerate(policies) if policy.label}
    order = frame.assign(place=frame["policy"].map(places))
    by = ["place", *[name for name in ("topic", "kind", "unchanged", "replayed", "outcome") if name in frame.columns]]
    order = order.sort_values(by, na_position="first", kind="stable")
    return order.drop(columns="place").reset_index(drop=True)
