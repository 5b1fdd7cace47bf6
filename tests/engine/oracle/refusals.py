"""The refusals of the oracle and their codes. A refused item changes nothing."""

from tests.engine import plain
from tests.engine.oracle.partition import Index, Partition

OFFSET_MAX = 2**62
REACH_MAX = 2**61
ITEMS_MAX = 2_000
NAME_LENGTHS = range(1, 250)
LOWEST_OFFSET = {plain.PRODUCE: 0, plain.FETCH: 0, plain.DELETE_RECORDS: -1, plain.SIGNAL: 1, plain.COMPOSITE: 0}
NEEDS_OFFSET = (
    plain.LEADER_APPEND,
    plain.FOLLOWER_PROGRESS,
    plain.HIGH_WATERMARK,
    plain.LOG_START_OFFSET,
    plain.TRUNCATION,
)
ALLOWED_WHEN_FAILED = (plain.STORAGE_ONLINE, plain.STORAGE_FAILED, plain.PARTITION_REMOVED, plain.LEADERSHIP)


def event_fault(event: plain.Event) -> bool:
    """Whether the event's fields are invalid in any state of the partition."""
    offset_faulty = event.type in NEEDS_OFFSET and not 0 <= event.offset < OFFSET_MAX
    replica_faulty = event.type in {plain.FOLLOWER_PROGRESS, plain.REPLICA_STATE} and event.replica_id < 0
    epoch_faulty = event.type == plain.LEADERSHIP and event.epoch < 0
    min_faulty = event.type == plain.IN_SYNC_REPLICAS and event.min_in_sync == 0
    segment_faulty = event.type == plain.LEADER_APPEND and event.segment > event.offset
    return segment_faulty or offset_faulty or replica_faulty or epoch_faulty or min_faulty


def event_refusal(event: plain.Event, partition: Partition) -> tuple[int, int] | None:
    """(google.rpc.Code, Kafka code) if the state of the partition forbids the event."""
    if 0 <= event.epoch < partition.epoch:
        return (plain.FAILED_PRECONDITION, 74)
    if partition.storage_failed and event.type not in ALLOWED_WHEN_FAILED:
        return (plain.FAILED_PRECONDITION, 56)
    if event.type in {plain.FOLLOWER_PROGRESS, plain.REPLICA_STATE} and event.replica_id == partition.leader_id:
        return (plain.INVALID_ARGUMENT, 0)
    if event.type == plain.IN_SYNC_REPLICAS and event.leader_id < 0 and partition.leader_id < 0:
        return (plain.INVALID_ARGUMENT, 0)
    if event.type == plain.LOG_START_OFFSET and 0 <= partition.high_watermark < event.offset:
        return (plain.INVALID_ARGUMENT, 1)
    if event.type == plain.LEADER_APPEND and position_fault(event, partition):
        return (plain.INVALID_ARGUMENT, 1)
    return None


def position_fault(event: plain.Event, partition: Partition) -> bool:
    """Whether the position contradicts earlier ones. Appends below the log end are not checked."""
    if event.offset < partition.log_end or event.segment == event.position == -1:
        return False
    grown = Index()
    grown.entries = list(partition.index.entries)
    grown.add(event.offset, event.segment, event.position)
    if grown.entries[-1].reach >= REACH_MAX:
        return True
    if not partition.index.entries:
        return False
    last = partition.index.entries[-1]
    if 0 <= event.segment < last.segment or last.segment < event.segment < last.offset:
        return True
    return event.segment in {-1, last.segment} and 0 <= event.position < last.position


def operation_fault(operation: plain.Operation, timeout_ms_max: int) -> bool:
    """Whether the registration is invalid."""
    names = [item.name for item in operation.items]
    if not 0 <= operation.timeout_ms <= timeout_ms_max or not 1 <= len(names) <= ITEMS_MAX:
        return True
    if any(len(name) not in NAME_LENGTHS for name, _ in names):
        return True
    if operation.kind == plain.COMPOSITE:
        return composite_fault(operation)
    if len(set(names)) < len(names):
        return True
    if operation.kind == plain.SIGNAL and operation.heartbeat_timeout_ms < -1:
        return True
    if operation.kind == plain.FETCH:
        bad_maximum = any(item.max_bytes < 1 for item in operation.items)
        if bad_maximum or operation.min_bytes < 1 or operation.replica_id < -1:
            return True
    lowest = LOWEST_OFFSET[operation.kind]
    return any(not lowest <= item.offset < OFFSET_MAX for item in operation.items)


def composite_fault(operation: plain.Operation) -> bool:
    """Whether the terms of a composite are invalid. They may repeat names."""
    terms = len(operation.items) - operation.unless_count
    if not 0 <= operation.unless_count < len(operation.items) or not 0 <= operation.required_terms <= terms:
        return True
    return any(not (item.name[1] < 0) <= item.offset < OFFSET_MAX for item in operation.items)
