"""Why a pending operation has not ended yet: the replica, connector, mark or key that it waits for, in words."""

import re
from collections.abc import Sequence
from typing import Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import DELETE_RECORDS, FETCH, REQUEST_TIMED_OUT
from purgatory.engine.views import ItemView, PartitionView, PendingView
from purgatory.service.host import Host

REPLICAS_NAMED: Final = 5
REASONS_MAX: Final = 100
"""Maximum number of items of an operation that are looked up, with their replicas."""


def spelled(name: PartitionName) -> str:
    """A name as the command line spells it: "orders-3", or a signal's key."""
    return f"{name[0]}-{name[1]}" if name[1] >= 0 else name[0]


def plain_name(text: str) -> str:
    """The name in a target as the command line prints it, such as "orders-3@42" or "signal:job-17"."""
    return re.sub(r"^signal:|@\d{1,19}$", "", text.strip(), flags=re.ASCII)


def _required(view: PendingView) -> Sequence[ItemView]:
    """The items without the failure arm of a composite, which holds nothing back."""
    return view.items[: len(view.items) - max(0, view.unless_count)]


def awaited_item(view: PendingView, name: PartitionName | None) -> ItemView | None:
    """The first item that is still waited for, of those with this name if one is given; None if there is none."""
    waiting = (one for one in _required(view) if one.error_code == REQUEST_TIMED_OUT and name in (None, one.name))
    return next(waiting, None)


def held_back(host: Host, view: PendingView) -> list[str]:
    """The reason for each of the first items of an operation; an empty string if the item is reached."""
    items = _required(view)[:REASONS_MAX]
    return [held_back_by(host, view, item) if item.error_code == REQUEST_TIMED_OUT else "" for item in items]


def held_back_by(host: Host, view: PendingView, item: ItemView) -> str:
    """The reason why an item that is waited for has not reached its target."""
    name = item.name
    if name[1] < 0:
        if item.reached_offset <= 0:
            return f"{name[0]} has not been signalled yet"
        return f"{name[0]} has been signalled {item.reached_offset} of {item.required_offset} times"
    feeding = [one for one in host.sources if name[0].startswith(one.topic_prefixes)] if host.sources else []
    connectors = ", ".join(dict.fromkeys(one.name for one in feeding))
    listening_ms = host.listening.now_ms()
    stale = host.sources.stale(name, listening_ms)
    if stale is not None:
        stale_s = stale.ms(listening_ms) / 1_000
        return f"connector {connectors}: the mark has been stale for {stale_s:.1f} s: {stale.reason}"
    partition = host.engine.inspection.partition_view(name)
    if partition is None or max(partition.log_end_offset, partition.high_watermark, partition.log_start_offset - 1) < 0:
        by = f" by connector {connectors}" if connectors else ""
        return f"nothing has been reported{by} for {spelled(name)} yet"
    if view.kind == DELETE_RECORDS:
        return _log_start_reason(partition, item)
    if view.kind == FETCH and item.reached_offset >= item.required_offset:
        return f"fewer than {view.min_bytes:,} bytes are available" if view.min_bytes > 1 else "no bytes are available"
    return _mark_reason(partition, item, connectors)


def _mark_reason(partition: PartitionView, item: ItemView, connectors: str) -> str:
    required = item.required_offset
    if not (partition.replicas or partition.in_sync_replica_ids):
        # Only the mark is known: its publisher does not report replicas.
        reached = item.reached_offset
        return f"connector {connectors} has reported {reached} so far" if connectors else f"the mark is at {reached}"
    if 0 <= partition.log_end_offset < required:
        return f"the leader's log ends at {partition.log_end_offset}"
    behind = {
        one.replica_id: one.log_end_offset
        for one in partition.replicas
        if one.in_sync and one.log_end_offset < required
    }
    if partition.is_leader and behind:
        return f"in-sync {_replicas(behind)}"
    in_sync, least = len(partition.in_sync_replica_ids), partition.min_in_sync_replicas
    if 0 < in_sync < least:
        return f"{in_sync} {'replica is' if in_sync == 1 else 'replicas are'} in sync, and {least} must be"
    return f"the mark is at {item.reached_offset}"


def _log_start_reason(partition: PartitionView, item: ItemView) -> str:
    required = item.required_offset
    if partition.log_start_offset < required:
        return f"the leader's log starts at {partition.log_start_offset}"
    behind = {
        one.replica_id: one.log_start_offset
        for one in partition.replicas
        if not one.dead and one.log_start_offset < required
    }
    return _replicas(behind) if behind else f"the low watermark is at {item.reached_offset}"


def _replicas(offsets: dict[int, int]) -> str:
    """Replicas that are behind, the last one first."""
    shown = sorted(offsets.items(), key=lambda one: one[1])[:REPLICAS_NAMED]
    named = [
        f"{replica} (at {offset})" if offset >= 0 else f"{replica} (nothing reported)" for replica, offset in shown
    ]
    more = len(offsets) - len(shown)
    return f"replica{'s' if len(offsets) > 1 else ''} {', '.join(named)}" + (f" and {more} more" if more else "")
