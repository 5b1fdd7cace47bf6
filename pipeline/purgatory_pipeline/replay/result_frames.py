"""Turns the sums of a replay into the displayed tables."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from purgatory.engine.codes import KIND_NAMES, OUTCOME_NAMES
from purgatory_pipeline.location import Location, write_file
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.replay_sums import CHANGES, RECORDED, WAITS, middle_of

OPEN: Final = "open"
"""Outcome of operations still waiting when their history ends."""
AS_RECORDED: Final = ""
"""The policy name of recorded outcomes."""
KEYS: Final = "(keys)"
"""The topic of signals: there may be too many keys to list."""
QUANTILES: Final = {"wait_p50_ms": 0.5, "wait_p90_ms": 0.9, "wait_p99_ms": 0.99}


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
    """Operations by policy, topic (missing: all), kind and outcome, with their share; AS_RECORDED comes first."""
    own = _waits(sums, policies)
    key = ["policy", "topic", "kind", "outcome"]
    by_topic = own.groupby(key, sort=False, dropna=False)["operations"].sum().reset_index()
    overall = by_topic.groupby(["policy", "kind", "outcome"], sort=False)["operations"].sum().reset_index()
    frame = pd.concat([overall.assign(topic=None), by_topic], ignore_index=True)
    frame["operations"] = frame["operations"].astype(np.int64)
    of_all = frame.groupby(["policy", "topic", "kind"], dropna=False)["operations"].transform("sum")
    frame["share"] = frame["operations"] / of_all
    return frame[[*key, "operations", "share"]]


def waits_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Quantiles of the waits of ended operations, by policy, topic (missing: all) and kind."""
    own = _waits(sums, policies)
    own = own[own["outcome"] != OPEN]
    rows: list[dict[str, Any]] = []
    for key in (["policy", "kind"], ["policy", "topic", "kind"]):
        for values, part in own.groupby(key, sort=False):
            buckets = part.groupby("detail")["operations"].sum().sort_index()
            rows.append({**dict(zip(key, values, strict=True)), **quantiles(buckets)})
    columns = ["policy", "topic", "kind", "operations", "wait_mean_ms", *QUANTILES]
    return pd.DataFrame(rows, columns=columns).astype({"topic": object})


def quantiles(buckets: pd.Series) -> dict[str, float]:
    """Count, mean and quantiles of waits counted in buckets, which are in rising order."""
    counts = buckets.to_numpy(np.int64)
    values = middle_of(buckets.index.to_numpy(np.int64))
    reached = np.cumsum(counts)
    found: dict[str, float] = {"operations": int(reached[-1]), "wait_mean_ms": float(values @ counts / reached[-1])}
    for name, quantile in QUANTILES.items():
        found[name] = float(values[np.searchsorted(reached, max(1, np.ceil(quantile * reached[-1])))])
    return found


def changes_of(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Operations by policy, kind, recorded and replayed outcome, where these two differ."""
    own = sums[(sums["section"] == CHANGES) & (sums["recorded"] != sums["replayed"])]
    frame = pd.DataFrame(
        {
            "policy": own["player"].map(dict(enumerate(policy.label for policy in policies))),
            "kind": own["kind"].map(KIND_NAMES),
            "recorded": _outcomes(own["recorded"]),
            "replayed": _outcomes(own["replayed"]),
            "operations": own["operations"].astype(np.int64),
        }
    )
    key = ["policy", "kind", "recorded", "replayed"]
    return frame.groupby(key, sort=False)["operations"].sum().reset_index()


def _waits(sums: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """The recorded waits, and those of policies that change something, with names for codes."""
    shown = {RECORDED: AS_RECORDED}
    shown |= {place: policy.label for place, policy in enumerate(policies) if not policy.is_unchanged}
    own = sums[(sums["section"] == WAITS) & sums["player"].isin(list(shown))]
    return pd.DataFrame(
        {
            "policy": own["player"].map(shown),
            "topic": own["topic"].replace("", KEYS),
            "kind": own["kind"].map(KIND_NAMES),
            "outcome": _outcomes(own["replayed"]),
            "detail": own["detail"],
            "operations": own["operations"],
        }
    )


def _outcomes(codes: pd.Series) -> pd.Series:
    return codes.map(OUTCOME_NAMES).fillna(OPEN)


def _ordered(frame: pd.DataFrame, policies: Sequence[Policy]) -> pd.DataFrame:
    """Sorted by policy as asked for, then by the other columns; sums over all topics first."""
    places = {AS_RECORDED: -1} | {policy.label: place for place, policy in enumerate(policies) if policy.label}
    order = frame.assign(place=frame["policy"].map(places))
    by = ["place", *[name for name in ("topic", "kind", "recorded", "replayed", "outcome") if name in frame.columns]]
    order = order.sort_values(by, na_position="first", kind="stable")
    return order.drop(columns="place").reset_index(drop=True)
