"""Why a pending item has not been reached, as text for people: for `GetOperation` and the page."""

from typing import Final

from purgatory.engine.codes import PRODUCE, REQUEST_TIMED_OUT
from purgatory.engine.views import ItemView
from purgatory.service.host import Host

REPLICAS_NAMED: Final = 5


def held_back_by(host: Host, kind: int, item: ItemView) -> str:
    """Why a partition's mark has not reached the required offset; empty for keys, and once it has."""
    if item.error_code != REQUEST_TIMED_OUT or item.name[1] < 0:
        return ""
    now_ms = host.time.now_ms()
    stale = host.sources.stale(item.name, now_ms)
    if stale is not None:
        return f"the mark has been stale for {stale.ms(now_ms) / 1_000:.1f} s: {stale.reason}"
    partition = host.engine.partition_view(item.name, now_ms)
    if partition is None or max(partition.log_end_offset, partition.high_watermark) < 0:
        return "nothing has been reported for this partition yet"
    if kind == PRODUCE and partition.log_end_offset >= 0:
        if partition.log_end_offset < item.required_offset:
            return f"the leader's log ends at {partition.log_end_offset}"
        behind = sorted(
            (one for one in partition.replicas if one.in_sync and one.log_end_offset < item.required_offset),
            key=lambda one: one.log_end_offset,
        )
        if behind:
            named = ", ".join(f"{one.replica_id} (at {one.log_end_offset})" for one in behind[:REPLICAS_NAMED])
            return f"in-sync replica{'s' if len(behind) > 1 else ''} {named}"
        if len(partition.in_sync_replica_ids) < partition.min_in_sync_replicas:
            in_sync = len(partition.in_sync_replica_ids)
            return f"only {in_sync} replicas are in sync, {partition.min_in_sync_replicas} must be"
    return "the mark has not reached the offset yet"
