"""Views of the engine's state for inspection: copies, never the live state."""

from typing import Final

from purgatory.engine.batches import PartitionName

__all__ = ["ItemView", "KindCounts", "PartitionView", "PendingView", "RemainingTimes", "ReplicaView"]


class ItemView:
    """One partition (or key: (key, -1)) of a pending operation. error_code is 7 while it is waited for.

    `mark_before` is the mark at `paced_from_ms`: at registration or, where it was not known then, when it first was.
    The pace is measured from there; -1 where there is none.
    """

    def __init__(
        self,
        name: PartitionName,
        error_code: int,
        required_offset: int,
        reached_offset: int,
        log_start_offset: int,
        mark_before: int = -1,
        paced_from_ms: int = -1,
    ) -> None:
        self.name: Final = name
        self.error_code: Final = error_code
        self.required_offset: Final = required_offset
        self.reached_offset: Final = reached_offset
        self.log_start_offset: Final = log_start_offset
        self.mark_before: Final = mark_before
        self.paced_from_ms: Final = paced_from_ms


class PendingView:
    """A pending operation. Times are engine time in milliseconds; min_bytes is -1 except for a fetch.

    `required_terms` and `unless_count` are -1 except for a composite. They are the number of its items that must become
    true, and the number of its last items that are the failure arm.
    """

    def __init__(
        self,
        owner_id: int,
        operation_id: int,
        kind: int,
        registered_ms: int,
        deadline_ms: int,
        min_bytes: int,
        items: list[ItemView],
        required_terms: int = -1,
        unless_count: int = -1,
    ) -> None:
        self.owner_id: Final = owner_id
        self.operation_id: Final = operation_id
        self.kind: Final = kind
        self.registered_ms: Final = registered_ms
        self.deadline_ms: Final = deadline_ms
        self.min_bytes: Final = min_bytes
        self.items: Final = items
        self.required_terms: Final = required_terms
        self.unless_count: Final = unless_count


class RemainingTimes:
    """A histogram of the time left of pending operations.

    `operations[i]` counts those with at most `bounds_ms[i]` left and more than the bound before; the last entry counts
    the rest. `soonest_ms` and `latest_ms` are the extremes; -1: no operation was counted. `bounds_ms` must be
    ascending.
    """

    def __init__(self, bounds_ms: list[int]) -> None:
        self.bounds_ms: Final = bounds_ms
        self.operations: Final = [0] * (len(bounds_ms) + 1)
        self.soonest_ms = -1
        self.latest_ms = -1


class ReplicaView:
    """A remote replica as the leader sees it; offsets are -1 until it has fetched."""

    def __init__(
        self, replica_id: int, log_end_offset: int, log_start_offset: int, in_sync: bool, dead: bool, fenced: bool
    ) -> None:
        self.replica_id: Final = replica_id
        self.log_end_offset: Final = log_end_offset
        self.log_start_offset: Final = log_start_offset
        self.in_sync: Final = in_sync
        self.dead: Final = dead
        self.fenced: Final = fenced


class PartitionView:
    """A partition's marks, replicas and waits; -1 where unknown."""

    def __init__(
        self,
        name: PartitionName,
        *,
        leader_epoch: int,
        is_leader: bool,
        leader_id: int,
        storage_failed: bool,
        log_start_offset: int,
        last_stable_offset: int,
        high_watermark: int,
        log_end_offset: int,
        low_watermark: int,
        min_in_sync_replicas: int,
        in_sync_replica_ids: list[int],
        replicas: list[ReplicaView],
        watched: int,
        unchanged_events: int,
        stale_events: int,
    ) -> None:
        self.name: Final = name
        self.leader_epoch: Final = leader_epoch
        self.is_leader: Final = is_leader
        self.leader_id: Final = leader_id
        self.storage_failed: Final = storage_failed
        self.log_start_offset: Final = log_start_offset
        self.last_stable_offset: Final = last_stable_offset
        self.high_watermark: Final = high_watermark
        self.log_end_offset: Final = log_end_offset
        self.low_watermark: Final = low_watermark
        self.min_in_sync_replicas: Final = min_in_sync_replicas
        self.in_sync_replica_ids: Final = in_sync_replica_ids
        self.replicas: Final = replicas
        self.watched: Final = watched
        self.unchanged_events: Final = unchanged_events
        self.stale_events: Final = stale_events


class KindCounts:
    """Counters of one kind. Always: registered = satisfied + failed + expired + cancelled + shutting_down + pending."""

    def __init__(
        self,
        *,
        registered: int,
        pending: int,
        watched: int,
        satisfied: int,
        failed: int,
        expired: int,
        cancelled: int,
        shutting_down: int,
        evaluations: int,
    ) -> None:
        self.registered: Final = registered
        self.pending: Final = pending
        self.watched: Final = watched
        self.satisfied: Final = satisfied
        self.failed: Final = failed
        self.expired: Final = expired
        self.cancelled: Final = cancelled
        self.shutting_down: Final = shutting_down
        self.evaluations: Final = evaluations
