"""Views of the engine's state for inspection: copies, never the live state."""

from typing import Final, NamedTuple

from purgatory.engine.batches import PartitionName


class ItemView(NamedTuple):
    """One partition (or key: (key, -1)) of a pending operation. error_code is 7 while it is waited for.

    `mark_before` is the mark at `paced_from_ms`: at registration or, where it was not known then, when it first was.
    The pace is measured from there; -1 where there is none.
    """

    name: PartitionName
    error_code: int
    required_offset: int
    reached_offset: int
    log_start_offset: int
    mark_before: int = -1
    paced_from_ms: int = -1


class PendingView(NamedTuple):
    """A pending operation. Times are engine time in milliseconds; min_bytes is -1 except for a fetch.

    `required_terms` and `unless_count` are -1 except for a composite. They are the number of its items that must become
    true, and the number of its last items that are the failure arm.
    """

    owner_id: int
    operation_id: int
    kind: int
    registered_ms: int
    deadline_ms: int
    min_bytes: int
    items: list[ItemView]
    required_terms: int = -1
    unless_count: int = -1


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


class ReplicaView(NamedTuple):
    """A remote replica as the leader sees it; offsets are -1 until it has fetched."""

    replica_id: int
    log_end_offset: int
    log_start_offset: int
    in_sync: bool
    dead: bool
    fenced: bool


class PartitionView(NamedTuple):
    """A partition's marks, replicas and waits; -1 where unknown."""

    name: PartitionName
    leader_epoch: int
    is_leader: bool
    leader_id: int
    storage_failed: bool
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    low_watermark: int
    min_in_sync_replicas: int
    in_sync_replica_ids: list[int]
    replicas: list[ReplicaView]
    watched: int
    unchanged_events: int
    stale_events: int


class KindCounts(NamedTuple):
    """Counters of one kind. Always: registered = satisfied + failed + expired + cancelled + shutting_down + pending."""

    registered: int
    pending: int
    watched: int
    satisfied: int
    failed: int
    expired: int
    cancelled: int
    shutting_down: int
    evaluations: int
