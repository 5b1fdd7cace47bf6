"""The section on causes: one list of replicas, partitions, clients and timeouts by the time lost, and who waits."""

from collections.abc import Mapping
from typing import Final

import pandas as pd
from markupsafe import Markup

from purgatory.engine import codes
from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import CLIENT, KIND, PageColumn, PageTable, Section, columns

FETCH: Final = codes.KIND_NAMES[codes.FETCH]
SIGNAL: Final = codes.KIND_NAMES[codes.SIGNAL]


def causes_section(frames: Mapping[str, pd.DataFrame]) -> Section:
    """Fetches have no causes: waiting for data is what they are for."""
    title = "Where time is lost, and who waits"
    if frames["principals"].empty:
        return Section("causes", title, ("Nothing ended in this time.",))
    causes = causes_by_lost_time(frames)
    total_ms = frames["topics"].loc[frames["topics"]["kind"] != FETCH, "waited_total_ms"].sum()
    lead = Markup(
        "Everything but fetches waited {} in all. A wait may be counted for its replica, its partition, its client and "
        "its timeout at once, so the rows do not add up. Clients and partitions are compared with others of the same "
        "topics."
    ).format(wording.strong(wording.total_time(total_ms)))
    lost = PageTable(
        "Causes, by time lost",
        causes.assign(share=causes["lost_ms"] / max(total_ms, 1)),
        (
            *columns(wording.text, "cause"),
            PageColumn("name", "which", wording.name),
            *columns(wording.total_time, lost_ms="time lost"),
            *columns(wording.share, share="of all waiting"),
            KIND,
            *columns(wording.count, "waits"),
            *columns(wording.text, meaning="how it is counted"),
        ),
    )
    return Section("causes", title, (lead,), (lost, _who_waits(frames["principals"])))


def causes_by_lost_time(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every known cause of waiting in the report's tables, the costliest first. The keys of signals are one cause."""
    replicas = frames["stragglers"][frames["stragglers"]["topic"].isna()].assign(kind="produce")
    partitions = frames["hot_keys"][frames["hot_keys"]["by"] == "lost"]
    clients, topics = frames["principals"], frames["topics"]
    keys = topics["topic"].mask(topics["kind"] == SIGNAL, "all signals")
    timeouts = (
        topics.assign(topic=keys).groupby(["topic", "kind"], as_index=False)[["expired", "expired_total_ms"]].sum()
    )
    on = partitions["topic"] + "-" + partitions["partition"].astype(str)
    found = [
        _named("replica", replicas, replicas["replica_id"], "held_back", "total_ms", "after the second-last one"),
        _named("partition", partitions, on, "waits", "lost_ms", "more than its neighbours"),
        _named(
            "client",
            clients,
            clients["principal"].replace("", "(not authenticated)"),
            "waits",
            "lost_ms",
            "more than other clients",
        ),
        _named("timeout", timeouts, timeouts["topic"], "expired", "expired_total_ms", "waited until it expired"),
    ]
    every = pd.concat([rows.astype(object) for rows in found], ignore_index=True)
    lost_ms = pd.to_numeric(every["lost_ms"])
    known = every.assign(lost_ms=lost_ms)[(lost_ms > 0) & (every["kind"] != FETCH)]
    return known.sort_values("lost_ms", ascending=False, kind="stable")


def _named(
    cause: str, rows: pd.DataFrame, names: "pd.Series[str]", waits: str, lost_ms: str, meaning: str
) -> pd.DataFrame:
    named = {"cause": cause, "name": names.astype(str), "kind": rows["kind"], "meaning": meaning}
    return pd.DataFrame({"waits": rows[waits], "lost_ms": rows[lost_ms], **named})


def _who_waits(principals: pd.DataFrame) -> PageTable:
    waits = pd.to_numeric(principals["waits"])
    means = {"mean_ms": pd.to_numeric(principals["waited_total_ms"]) / waits}
    return PageTable(
        "Who waits",
        principals.assign(rate=pd.to_numeric(principals["expired"]) / waits, **means),
        (
            CLIENT,
            KIND,
            *columns(wording.count, "waits"),
            *columns(wording.share, rate="expired"),
            *columns(wording.milliseconds, mean_ms="mean wait"),
            *columns(wording.total_time, waited_total_ms="time waited"),
        ),
        rest="csv/principals.csv",
    )
