"""The engine's input: batches as columns (one list per field), and the receipts returned for them.

A batch is checked item by item. Refused items change nothing, and the rest is processed. Columns are plain lists of
ints, so that protobuf's packed columns need one copy and no object per operation.

Operation-level columns have one value per operation. Item-level columns have one value per partition (or key) of each
operation, in order. Optional columns may be empty (use the default for all) or hold one value (used for all).

Constructor arguments are ordered by how often they are passed: a compiled constructor searches the keywords in this
order until it has found all that were passed.
"""

from typing import Any, Final, NamedTuple

PartitionName = tuple[str, int]
"""(topic, partition): ("orders", 3) is orders-3."""

AsGiven = Any
"""A `PartitionName` that keeps its identity: compiled code unpacks a value typed as a tuple and builds a new one."""

NOTHING: Final[list[Any]] = []
"""The value of omitted columns. All batches share it, so it must never change; pass your own lists to append to."""


class OperationBatch:
    """A batch of operations of one kind. `partitions` is the dictionary of partitions (for signals: `keys`).

    Composites have both dictionaries: an index below `len(partitions)` is a partition, any other a key. The last
    `unless_counts` items of an operation are its failure arm.
    """

    def __init__(
        self,
        operation_ids: list[int],
        *,
        partitions: list[PartitionName] = NOTHING,
        item_indexes: list[int] = NOTHING,
        offsets: list[int] = NOTHING,
        timeouts_ms: list[int] = NOTHING,
        keys: list[str] = NOTHING,
        item_counts: list[int] = NOTHING,
        local_error_codes: list[int] = NOTHING,
        leader_epochs: list[int] = NOTHING,
        min_bytes: list[int] = NOTHING,
        replica_ids: list[int] = NOTHING,
        isolation_levels: list[int] = NOTHING,
        follower_reads: list[bool] = NOTHING,
        partition_max_bytes: list[int] = NOTHING,
        last_fetched_epochs: list[int] = NOTHING,
        throttled: list[bool] = NOTHING,
        any_key: list[bool] = NOTHING,
        from_now: list[bool] = NOTHING,
        stale_timeouts_ms: list[int] = NOTHING,
        heartbeat_timeouts_ms: list[int] = NOTHING,
        required_terms: list[int] = NOTHING,
        unless_counts: list[int] = NOTHING,
    ) -> None:
        self.operation_ids: Final = operation_ids
        self.partitions: Final[list[AsGiven]] = partitions
        self.keys: Final[list[str]] = keys
        self.timeouts_ms: Final[list[int]] = timeouts_ms
        self.item_counts: Final[list[int]] = item_counts
        self.item_indexes: Final[list[int]] = item_indexes
        self.offsets: Final[list[int]] = offsets
        self.local_error_codes: Final[list[int]] = local_error_codes
        self.leader_epochs: Final[list[int]] = leader_epochs
        self.min_bytes: Final[list[int]] = min_bytes
        self.replica_ids: Final[list[int]] = replica_ids
        self.isolation_levels: Final[list[int]] = isolation_levels
        self.follower_reads: Final[list[bool]] = follower_reads
        self.partition_max_bytes: Final[list[int]] = partition_max_bytes
        self.last_fetched_epochs: Final[list[int]] = last_fetched_epochs
        self.throttled: Final[list[bool]] = throttled
        self.any_key: Final[list[bool]] = any_key
        self.from_now: Final[list[bool]] = from_now
        self.stale_timeouts_ms: Final[list[int]] = stale_timeouts_ms
        self.heartbeat_timeouts_ms: Final[list[int]] = heartbeat_timeouts_ms
        self.required_terms: Final[list[int]] = required_terms
        self.unless_counts: Final[list[int]] = unless_counts

    @staticmethod
    def to_fill() -> "OperationBatch":
        """An empty batch with lists of its own in every column, for appending."""
        return OperationBatch(
            [], partitions=[], item_indexes=[], offsets=[], timeouts_ms=[], keys=[], item_counts=[],
            local_error_codes=[], leader_epochs=[], min_bytes=[], replica_ids=[], isolation_levels=[],
            follower_reads=[], partition_max_bytes=[], last_fetched_epochs=[], throttled=[], any_key=[], from_now=[],
            stale_timeouts_ms=[], heartbeat_timeouts_ms=[], required_terms=[], unless_counts=[],
        )  # fmt: skip


class Refusal:
    """Why one item of a batch was refused: its index, a google.rpc.Code, the faulty field and a message with its value.

    `error_code` is Kafka's where one fits (events only), else 0. `field` is a path in the row form of the wire.
    """

    def __init__(self, index: int, code: int, field: str, message: str, error_code: int = 0) -> None:
        self.index: Final = index
        self.code: Final = code
        self.field: Final = field
        self.message: Final = message
        self.error_code: Final = error_code


class EventBatch:
    """A batch of events. The item of an event is a partition (for KEY_SIGNALLED: a key) of the dictionary.

    `replica_sets` has a `ReplicaSets` for events with lists of replicas (IN_SYNC_REPLICAS, LEADERSHIP), else None.
    `flags` holds LEADERSHIP's is_leader, PARTITION_REMOVED's moved, REPLICA_STATE's dead (1) and fenced (2) bits, and
    KEY_SIGNALLED's failed (1) and decided (2) bits; see `Signals`. `values` has the value of each KEY_SIGNALLED event;
    empty: none.
    """

    def __init__(
        self,
        types: list[int],
        *,
        partitions: list[PartitionName] = NOTHING,
        item_indexes: list[int] = NOTHING,
        offsets: list[int] = NOTHING,
        keys: list[str] = NOTHING,
        leader_epochs: list[int] = NOTHING,
        replica_ids: list[int] = NOTHING,
        byte_positions: list[int] = NOTHING,
        segment_base_offsets: list[int] = NOTHING,
        log_start_offsets: list[int] = NOTHING,
        flags: list[int] = NOTHING,
        replica_sets: "list[ReplicaSets | None]" = NOTHING,
        values: list[bytes] = NOTHING,
    ) -> None:
        self.types: Final = types
        self.partitions: Final[list[AsGiven]] = partitions
        self.keys: Final[list[str]] = keys
        self.item_indexes: Final[list[int]] = item_indexes
        self.offsets: Final[list[int]] = offsets
        self.leader_epochs: Final[list[int]] = leader_epochs
        self.replica_ids: Final[list[int]] = replica_ids
        self.byte_positions: Final[list[int]] = byte_positions
        self.segment_base_offsets: Final[list[int]] = segment_base_offsets
        self.log_start_offsets: Final[list[int]] = log_start_offsets
        self.flags: Final[list[int]] = flags
        self.replica_sets: Final[list[ReplicaSets | None]] = replica_sets
        self.values: Final[list[bytes]] = values


class ReplicaSets(NamedTuple):
    """Lists of an IN_SYNC_REPLICAS or LEADERSHIP event. Empty or -1: unchanged (`proposed`: nothing proposed)."""

    replicas: list[int] = NOTHING
    in_sync: list[int] = NOTHING
    proposed: list[int] = NOTHING
    leader_id: int = -1
    min_in_sync_replicas: int = -1


class Receipt:
    """The effects of one call of the engine. Fields that do not apply to the call have their initial values."""

    def __init__(self) -> None:
        self.ended = 0
        """How many operations the call has ended."""
        self.has_more = False
        """The call stopped before its end; make it again for the rest."""
        self.refusals: Final[list[Refusal]] = []
        """Refused operations of `Register`, refused events of `Apply`."""
        # Register.
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        # Apply.
        self.next_index = 0
        """Where the next slice starts. The batch is done when this is its length."""
        self.ended_by_event: Final[list[int]] = []
        """For each event of the slice: how many operations it ended."""
        self.unchanged = 0
        """Events that changed nothing."""
        # Cancel, Extend, FailStale.
        self.were_pending: Final[list[bool]] = []
        """For each id: False if the operation had ended or was never registered. Shorter than the ids if `has_more`."""
