"""What goes into the engine: batches as columns, one list a field, and the receipts that answer them.

A batch is checked item by item; what is refused changes nothing and the rest is served. Lists are plain lists of ints
so that protobuf's packed columns need one copy and no object per operation.

Operation-level columns have one value for each operation; item-level columns one for each partition (or key) of each
operation, in order. Optional columns may be empty (the default for all), or hold one value (that value for all).
"""

from __future__ import annotations

from typing import Any, Final

PartitionName = tuple[str, int]
"""(topic, partition): ("orders", 3) is orders-3."""

AsGiven = Any
"""A `PartitionName` that stays the object it is: compiled, what is typed as a tuple is taken apart and made anew."""


class OperationBatch:
    """A batch of operations of one kind. `partitions` is the dictionary of partitions (for signals: `keys`)."""

    def __init__(
        self,
        operation_ids: list[int],
        *,
        partitions: list[PartitionName] | None = None,
        keys: list[str] | None = None,
        timeouts_ms: list[int] | None = None,
        item_counts: list[int] | None = None,
        item_indexes: list[int] | None = None,
        offsets: list[int] | None = None,
        local_error_codes: list[int] | None = None,
        leader_epochs: list[int] | None = None,
        min_bytes: list[int] | None = None,
        replica_ids: list[int] | None = None,
        isolation_levels: list[int] | None = None,
        follower_reads: list[bool] | None = None,
        partition_max_bytes: list[int] | None = None,
        last_fetched_epochs: list[int] | None = None,
        throttled: list[bool] | None = None,
        any_key: list[bool] | None = None,
        from_now: list[bool] | None = None,
    ) -> None:
        self.operation_ids: Final = operation_ids
        self.partitions: Final[list[AsGiven]] = [] if partitions is None else partitions
        self.keys: Final[list[str]] = [] if keys is None else keys
        self.timeouts_ms: Final[list[int]] = [] if timeouts_ms is None else timeouts_ms
        self.item_counts: Final[list[int]] = [] if item_counts is None else item_counts
        self.item_indexes: Final[list[int]] = [] if item_indexes is None else item_indexes
        self.offsets: Final[list[int]] = [] if offsets is None else offsets
        self.local_error_codes: Final[list[int]] = [] if local_error_codes is None else local_error_codes
        self.leader_epochs: Final[list[int]] = [] if leader_epochs is None else leader_epochs
        self.min_bytes: Final[list[int]] = [] if min_bytes is None else min_bytes
        self.replica_ids: Final[list[int]] = [] if replica_ids is None else replica_ids
        self.isolation_levels: Final[list[int]] = [] if isolation_levels is None else isolation_levels
        self.follower_reads: Final[list[bool]] = [] if follower_reads is None else follower_reads
        self.partition_max_bytes: Final[list[int]] = [] if partition_max_bytes is None else partition_max_bytes
        self.last_fetched_epochs: Final[list[int]] = [] if last_fetched_epochs is None else last_fetched_epochs
        self.throttled: Final[list[bool]] = [] if throttled is None else throttled
        self.any_key: Final[list[bool]] = [] if any_key is None else any_key
        self.from_now: Final[list[bool]] = [] if from_now is None else from_now


class Refusal:
    """Why one item of a batch was refused: its index, a google.rpc.Code, the field at fault and a message with its
    value.

    `error_code` is Kafka's where one fits (events only), else 0. `field` is a path in the row form of the wire.
    """

    def __init__(self, index: int, code: int, field: str, message: str, error_code: int = 0) -> None:
        self.index: Final = index
        self.code: Final = code
        self.field: Final = field
        self.message: Final = message
        self.error_code: Final = error_code


class RegisterReceipt:
    """What became of an `OperationBatch`."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refusals: Final[list[Refusal]] = []


class EventBatch:
    """A batch of events. An event's item is a partition (or, for KEY_SIGNALLED, a key) of the dictionary.

    Lists of replicas travel in `replica_sets`: for event i (IN_SYNC_REPLICAS, LEADERSHIP) a `ReplicaSets`, or None.
    `flags` hold LEADERSHIP's is_leader, PARTITION_REMOVED's moved, and REPLICA_STATE's dead (1) and fenced (2) bits.
    """

    def __init__(
        self,
        types: list[int],
        *,
        partitions: list[PartitionName] | None = None,
        keys: list[str] | None = None,
        item_indexes: list[int] | None = None,
        offsets: list[int] | None = None,
        leader_epochs: list[int] | None = None,
        replica_ids: list[int] | None = None,
        byte_positions: list[int] | None = None,
        segment_base_offsets: list[int] | None = None,
        log_start_offsets: list[int] | None = None,
        flags: list[int] | None = None,
        replica_sets: list[ReplicaSets | None] | None = None,
    ) -> None:
        self.types: Final = types
        self.partitions: Final[list[AsGiven]] = [] if partitions is None else partitions
        self.keys: Final[list[str]] = [] if keys is None else keys
        self.item_indexes: Final[list[int]] = [] if item_indexes is None else item_indexes
        self.offsets: Final[list[int]] = [] if offsets is None else offsets
        self.leader_epochs: Final[list[int]] = [] if leader_epochs is None else leader_epochs
        self.replica_ids: Final[list[int]] = [] if replica_ids is None else replica_ids
        self.byte_positions: Final[list[int]] = [] if byte_positions is None else byte_positions
        self.segment_base_offsets: Final[list[int]] = [] if segment_base_offsets is None else segment_base_offsets
        self.log_start_offsets: Final[list[int]] = [] if log_start_offsets is None else log_start_offsets
        self.flags: Final[list[int]] = [] if flags is None else flags
        self.replica_sets: Final[list[ReplicaSets | None]] = [] if replica_sets is None else replica_sets


class ReplicaSets:
    """The lists of an IN_SYNC_REPLICAS or LEADERSHIP event. Empty or -1: unchanged (for `proposed`: nothing
    proposed).
    """

    def __init__(
        self,
        *,
        replicas: list[int] | None = None,
        in_sync: list[int] | None = None,
        proposed: list[int] | None = None,
        leader_id: int = -1,
        min_in_sync_replicas: int = -1,
    ) -> None:
        self.replicas: Final[list[int]] = [] if replicas is None else replicas
        self.in_sync: Final[list[int]] = [] if in_sync is None else in_sync
        self.proposed: Final[list[int]] = [] if proposed is None else proposed
        self.leader_id: Final = leader_id
        self.min_in_sync_replicas: Final = min_in_sync_replicas


class EventsReceipt:
    """What a slice of an `EventBatch` did. `next_index` is where the next slice starts; the batch is done at its
    length.
    """

    def __init__(self) -> None:
        self.next_index = 0
        self.ended: Final[list[int]] = []
        """For each event of the slice: how many operations it ended."""
        self.unchanged = 0
        self.refusals: Final[list[Refusal]] = []
