"""The engine's enumerations as plain integers: stored in packed arrays and sent on the wire unchanged.

Error codes are Kafka's (each is explained in docs/semantics.md). The values of kinds, outcomes and event types equal
those of the enums in proto/purgatory/v1; a test compares them.
"""

from typing import Final

# Kinds of operation.
PRODUCE: Final = 1
FETCH: Final = 2
DELETE_RECORDS: Final = 3
SIGNAL: Final = 4
COMPOSITE: Final = 5
KIND_NAMES: Final = {
    PRODUCE: "produce",
    FETCH: "fetch",
    DELETE_RECORDS: "delete_records",
    SIGNAL: "signal",
    COMPOSITE: "composite",
}
KINDS: Final = tuple(KIND_NAMES)

# Outcomes. All except PENDING are final.
PENDING: Final = 0
SATISFIED: Final = 1
FAILED: Final = 2
EXPIRED: Final = 3
CANCELLED: Final = 4
SHUTTING_DOWN: Final = 5
REFUSED: Final = 6
OUTCOMES: Final = (SATISFIED, FAILED, EXPIRED, CANCELLED, SHUTTING_DOWN)
OUTCOME_NAMES: Final = {
    SATISFIED: "satisfied",
    FAILED: "failed",
    EXPIRED: "expired",
    CANCELLED: "cancelled",
    SHUTTING_DOWN: "shutting_down",
    REFUSED: "refused",
}

# Isolation levels of a consumer's fetch.
READ_UNCOMMITTED: Final = 1
READ_COMMITTED: Final = 2

# Types of event.
LEADER_APPEND: Final = 1
FOLLOWER_PROGRESS: Final = 2
HIGH_WATERMARK: Final = 3
LAST_STABLE_OFFSET: Final = 4
LOG_START_OFFSET: Final = 5
IN_SYNC_REPLICAS: Final = 6
LEADERSHIP: Final = 7
REPLICA_STATE: Final = 8
TRUNCATION: Final = 9
PARTITION_REMOVED: Final = 10
STORAGE_FAILED: Final = 11
STORAGE_ONLINE: Final = 12
KEY_SIGNALLED: Final = 13
EVENT_NAMES: Final = {
    LEADER_APPEND: "leader_append",
    FOLLOWER_PROGRESS: "follower_progress",
    HIGH_WATERMARK: "high_watermark",
    LAST_STABLE_OFFSET: "last_stable_offset",
    LOG_START_OFFSET: "log_start_offset",
    IN_SYNC_REPLICAS: "in_sync_replicas",
    LEADERSHIP: "leadership",
    REPLICA_STATE: "replica_state",
    TRUNCATION: "truncation",
    PARTITION_REMOVED: "partition_removed",
    STORAGE_FAILED: "storage_failed",
    STORAGE_ONLINE: "storage_online",
    KEY_SIGNALLED: "key_signalled",
}

# Kafka's error codes.
UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
KAFKA_STORAGE_ERROR: Final = 56
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78

MARK_STALE: Final = 1001
"""Not one of Kafka's codes: the mark was stale for longer than the stale timeout of the wait."""
UNLESS_REACHED: Final = 1002
"""Not one of Kafka's codes: this term of the failure arm became true, so the composite wait failed."""

SIGNAL_FAILED: Final = 1003
"""Not one of Kafka's codes: the key was signalled as failed."""

HEARTBEAT_MISSED: Final = 1004
"""Not one of Kafka's codes: the key was silent for longer than the heartbeat timeout of the wait."""

ERROR_NAMES: Final = {
    UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR",
    OFFSET_OUT_OF_RANGE: "OFFSET_OUT_OF_RANGE",
    UNKNOWN_TOPIC_OR_PARTITION: "UNKNOWN_TOPIC_OR_PARTITION",
    NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_OR_FOLLOWER",
    REQUEST_TIMED_OUT: "REQUEST_TIMED_OUT",
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    KAFKA_STORAGE_ERROR: "KAFKA_STORAGE_ERROR",
    FENCED_LEADER_EPOCH: "FENCED_LEADER_EPOCH",
    UNKNOWN_LEADER_EPOCH: "UNKNOWN_LEADER_EPOCH",
    OFFSET_NOT_AVAILABLE: "OFFSET_NOT_AVAILABLE",
    MARK_STALE: "MARK_STALE",
    UNLESS_REACHED: "UNLESS_REACHED",
    SIGNAL_FAILED: "SIGNAL_FAILED",
    HEARTBEAT_MISSED: "HEARTBEAT_MISSED",
}
"""As the command line and the page print them; 0 has no name."""

# google.rpc.Code of refusals.
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
UNAVAILABLE: Final = 14

UNKNOWN: Final = -1
"""An offset, epoch, byte position or replica id that is unknown or was not passed."""

OFFSET_MAX: Final = 2**61
"""Offsets, byte positions and counts at or above this are refused: packed arithmetic must not wrap."""
