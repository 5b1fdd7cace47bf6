"""Calls on a purgatory and their results as plain data: the common language of oracle, engine and tests.

This module imports nothing of the engine. Numbers are those of the wire (proto/purgatory/v1); -1: missing or unknown.
"""

from typing import Final, NamedTuple

PRODUCE: Final = 1
FETCH: Final = 2
DELETE_RECORDS: Final = 3
SIGNAL: Final = 4
COMPOSITE: Final = 5
KINDS: Final = (PRODUCE, FETCH, DELETE_RECORDS, SIGNAL, COMPOSITE)

SATISFIED: Final = 1
FAILED: Final = 2
EXPIRED: Final = 3
CANCELLED: Final = 4
SHUTTING_DOWN: Final = 5
OUTCOME_WORDS: Final = {1: "satisfied", 2: "failed", 3: "expired", 4: "cancelled", 5: "shutting down"}

READ_UNCOMMITTED: Final = 1
READ_COMMITTED: Final = 2

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

INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
FAILED_PRECONDITION: Final = 9

Name = tuple[str, int]
"""(topic, partition), or (key, -1) for a signal's key."""


class Settings(NamedTuple):
    """Settings of an engine and its oracle."""

    now_ms: int = 0
    tick_ms: int = 1
    wheel_size: int = 20
    strict: bool = False
    lag_max_ms: int = 30_000
    timeout_ms_max: int = 2**31 - 1


DEFAULTS: Final = Settings()


class Item(NamedTuple):
    """One partition (or key) of an operation."""

    name: Name
    offset: int
    """Required offset, fetch offset, offset to delete to, or count."""
    epoch: int = -1
    local_error: int = 0
    max_bytes: int = 1_048_576
    last_epoch: int = -1
    throttled: bool = False


class Operation(NamedTuple):
    """One registration."""

    kind: int
    operation_id: int
    timeout_ms: int
    items: tuple[Item, ...]
    min_bytes: int = 1
    replica_id: int = -1
    isolation: int = READ_UNCOMMITTED
    follower_reads: bool = False
    any_key: bool = False
    from_now: bool = False
    stale_timeout_ms: int = -1
    heartbeat_timeout_ms: int = -1
    required_terms: int = 0
    """Composites: how many terms must be true; 0: all."""
    unless_count: int = 0
    """Composites: the number of last items that form the failure arm."""


class Event(NamedTuple):
    """One event. `offset` is a mark or a count; the lists belong to IN_SYNC_REPLICAS and LEADERSHIP."""

    type: int
    name: Name
    offset: int = -1
    epoch: int = -1
    replica_id: int = -1
    position: int = -1
    segment: int = -1
    log_start: int = -1
    flag: int = 0
    """LEADERSHIP: is leader. PARTITION_REMOVED: moved. REPLICA_STATE: dead (1), fenced (2). KEY_SIGNALLED: failed (1),
    decided by another shard (2; not in the oracle)."""
    in_sync: tuple[int, ...] = ()
    proposed: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    leader_id: int = -1
    min_in_sync: int = -1
    value: int = 0
    """KEY_SIGNALLED: a number that stands for a value; 0: none."""


class EventAnswer(NamedTuple):
    """The effect of one event: operations ended and `unchanged`, or its refusal (google.rpc.Code, Kafka code)."""

    ended: int = 0
    unchanged: bool = False
    refused: tuple[int, int] | None = None


class EndedItem(NamedTuple):
    """One partition (or key) of an ended operation."""

    name: Name
    error: int
    required: int
    reached: int
    log_start: int = -1
    remaining_ms: int = -1
    pace: float = -1.0
    available_bytes: int = -1
    """This field and the following ones: fetches only; -1 for other kinds."""
    high_watermark: int = -1
    last_stable: int = -1
    diverging_epoch: int = -1
    diverging_end: int = -1
    value: int = 0
    """Signals: the value of the key."""


class Ended(NamedTuple):
    """One ended operation."""

    owner_id: int
    operation_id: int
    kind: int
    outcome: int
    waited_ms: int
    lateness_ms: int
    items: tuple[EndedItem, ...]


class Pending(NamedTuple):
    """A pending operation as seen from outside."""

    kind: int
    registered_ms: int
    deadline_ms: int
    min_bytes: int
    items: tuple[tuple[Name, int, int, int], ...]
    """For each item: name, error code (7 while waited for), required and reached offset."""
    required_terms: int = -1
    unless_count: int = -1
    """Composites only; -1 for other kinds."""


class PartitionMarks(NamedTuple):
    """One partition as seen from outside."""

    epoch: int
    is_leader: bool
    leader_id: int
    storage_failed: bool
    log_start: int
    last_stable: int
    high_watermark: int
    log_end: int
    low_watermark: int
    min_in_sync: int
    in_sync: tuple[int, ...]
    replicas: tuple[tuple[int, int, int, bool, bool, bool], ...]
    """(id, log end offset, log start offset, in sync, dead, fenced), by id."""
    unchanged: int
    stale: int


class Counts(NamedTuple):
    """Counts of one kind by outcome."""

    registered: int
    pending: int
    satisfied: int
    failed: int
    expired: int
    cancelled: int
    shutting_down: int


def brief(value: object) -> str:
    """A value without its default fields, as source code."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        defaults: dict[str, object] = vars(type(value))["_field_defaults"]
        said = [
            f"{field}={brief(given)}"
            for field, given in zip(value._fields, value, strict=True)
            if field not in defaults or defaults[field] != given
        ]
        return f"{type(value).__name__}({', '.join(said)})"
    if isinstance(value, list):
        return f"[{', '.join(brief(member) for member in value)}]"
    if isinstance(value, tuple) and any(isinstance(member, tuple) and hasattr(member, "_fields") for member in value):
        return f"({', '.join(brief(member) for member in value)},)"
    return repr(value)
