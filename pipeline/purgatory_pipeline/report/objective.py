"""The smallest timeouts that meet an objective, by kind, topic and principal: one replay finds, another confirms them.

The first replay lets every operation wait until it ends by itself. So it is known, from the engine that decided the
history, which share would have expired under any timeout. A timeout must meet the objective over all and on each day,
except on days on which none does; what holds on each of many days is likely to hold on the next. The second replay
gives the operations of each principal the timeouts that are advised for them. Operations that a replay cannot compare,
and immediate answers (timeout 0), are left out.
"""

import json
from typing import Any, Final

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

from purgatory.extensions.archive.schema import REGISTRATIONS
from purgatory_pipeline.archive.catalog import ArchiveCatalog
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.replay.policy import HIGHEST, KIND_CODES, POLICIES_MAX, TIMEOUT_MS, UNCHANGED, Change, Policy
from purgatory_pipeline.replay.replay_task import replay_rows
from purgatory_pipeline.report.advice import ADVISED_MIN, COMPETING
from purgatory_pipeline.report.estimates import SLACK
from purgatory_pipeline.report.facts import EXPIRED, queried

GROUP: Final = ["kind", "topic", "principal"]
"""The topic of signals is empty: there may be too many keys to advise on each."""
_NO_TIMEOUTS: Final = Policy((Change(TIMEOUT_MS, "=", HIGHEST[TIMEOUT_MS]),), label="no timeouts")


def parse_objective(text: str) -> float:
    """The share that may not expire, from a percentage such as 99.5%. Raises `PipelineError`."""
    number, percent, rest = text.strip().partition("%")
    digits = number.replace(".", "", 1)
    if not percent or rest or not digits.isascii() or not digits.isdecimal() or not 0 < float(number) < 100:
        raise PipelineError(f"--slo {text}: give a percentage between 0 and 100, for example 99.5%")
    return float(number) / 100


def advise_timeouts(spark: SparkSession, found: ArchiveCatalog, objective: float) -> tuple[pd.DataFrame, int]:
    """A row for each group of ADVISED_MIN operations or more: what was recorded, the advised timeout (`advised_ms`,
    missing: none meets the objective), and the result of its replay. Of principals, the POLICIES_MAX largest.

    Also returns how many operations did not end as recorded in the unchanged replay; there should be none.
    """

    def counts_of(*policies: Policy) -> pd.DataFrame:
        rows, registrations = replay_rows(spark, found, policies), found.read(spark, REGISTRATIONS)
        return queried("objective", rows=rows, registrations=registrations).toPandas()

    counts = counts_of(UNCHANGED, _NO_TIMEOUTS)
    is_check = counts["policy"] == UNCHANGED.label
    different = int(counts["operations"][is_check & (counts["verdict"] == "different")].sum())
    largest = counts.groupby("principal")["operations"].sum().nlargest(POLICIES_MAX).index
    rows = [
        dict(zip(GROUP, names, strict=True)) | _advised(group, objective)
        for names, group in counts[~is_check & counts["principal"].isin(largest)].groupby(GROUP)
        if group["operations"].sum() >= ADVISED_MIN
    ]
    columns = [*GROUP, "operations", TIMEOUT_MS, "expired_share", "waited_mean_ms", "advised_ms", "days"]
    advised = pd.DataFrame(rows, columns=columns).astype({"advised_ms": "Int64"})
    known = advised.dropna(subset=["advised_ms"])
    policies = [_policy(str(principal), own) for principal, own in known.groupby("principal")]
    counts = counts_of(*policies) if policies else counts[:0]
    # The policy of a principal counts for its own operations only.
    own = counts[counts["policy"] == "for " + counts["principal"]].merge(known[GROUP])
    confirmed = pd.DataFrame(
        dict(zip(GROUP, names, strict=True)) | _replayed(group, objective) for names, group in own.groupby(GROUP)
    ).reindex(columns=[*GROUP, "advised_expired_share", "advised_waited_mean_ms", "days_met"])
    advised = advised.merge(confirmed, how="left", on=GROUP).sort_values("operations", ascending=False, kind="stable")
    return advised.assign(is_met=advised["advised_expired_share"].astype(float) <= 1 - objective + SLACK), different


def to_toml(advised: pd.DataFrame, objective: float) -> str:
    """The confirmed timeouts as TOML: a table `timeout` for each group, for clients to load as their defaults."""
    lines = [f"objective = {objective:.6g}"]
    for row in advised[advised["is_met"]].to_dict("records"):
        quoted = {name: json.dumps(row[name], ensure_ascii=False).replace("\x7f", "\\u007f") for name in GROUP}
        lines += ["", "[[timeout]]", *(f"{name} = {text}" for name, text in quoted.items())]
        lines += [f"timeout_ms = {row['advised_ms']}", f"expired_share = {row['advised_expired_share']:.6f}"]
    return "\n".join(lines) + "\n"


def _policy(principal: str, advised: pd.DataFrame) -> Policy:
    known = zip(advised["advised_ms"], advised["kind"], advised["topic"], strict=True)
    changes = (Change(TIMEOUT_MS, "=", ms, KIND_CODES[kind], topic) for ms, kind, topic in known)
    return Policy(tuple(changes), label=f"for {principal}")


def _advised(group: pd.DataFrame, objective: float) -> dict[str, Any]:
    """The recorded outcome of a group, and the smallest timeout that meets the objective over all and on each day."""
    operations = group["operations"].sum()
    whole_ms, *days_ms = (_need_ms(rows, objective) for rows in (group, *(day for _, day in group.groupby("day"))))
    return {
        "operations": operations,
        TIMEOUT_MS: group.groupby(TIMEOUT_MS)["operations"].sum().idxmax(),
        "expired_share": group["operations"][group["recorded"] == EXPIRED].sum() / operations,
        "waited_mean_ms": group["recorded_sum_ms"].sum() / operations,
        "advised_ms": whole_ms and max(whole_ms, *(need_ms or 0 for need_ms in days_ms)),
        "days": len(days_ms),
    }


def _need_ms(rows: pd.DataFrame, objective: float) -> int | None:
    """The smallest timeout that expires at most the rest of the objective; None: too many never end by themselves."""
    by_itself = rows[rows["replayed"].isin(COMPETING)].groupby("replayed_waited_ms")["operations"].sum()
    enough = by_itself.cumsum().to_numpy() >= rows["operations"].sum() * objective - SLACK
    # An operation that would end by itself in the very millisecond in which its timeout is over has expired.
    return int(by_itself.index[np.argmax(enough)]) + 1 if enough.any() else None


def _replayed(group: pd.DataFrame, objective: float) -> dict[str, float]:
    """The outcome of a group in the replay with its advised timeout."""
    days = group.assign(expired=group["operations"].where(group["replayed"] == EXPIRED, 0)).groupby("day")
    sums = days[["operations", "expired"]].sum()
    return {
        "advised_expired_share": sums["expired"].sum() / sums["operations"].sum(),
        "advised_waited_mean_ms": group["replayed_sum_ms"].sum() / sums["operations"].sum(),
        "days_met": (sums["expired"] <= sums["operations"] * (1 - objective) + SLACK).sum(),
    }
