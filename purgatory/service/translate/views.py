"""Encoding of the engine's views. Pure functions: wall time is an argument."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.pace import pace_per_second, remaining_ms
from purgatory.engine.names import PARTITION_MAX
from purgatory.engine.views import ItemView, KindCounts, PartitionView, PendingView, RemainingTimes
from purgatory.service.errors import check_range
from purgatory.service.sources.source_table import Staleness
from purgatory.service.translate.results import ROW_COLUMNS, fill_partition, topic_partition
from purgatory.v1 import operation_pb2, purgatory_service_pb2, result_pb2

REMAINING_BOUNDS_MS: Final = (1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
"""Bounds of the histogram of remaining time of pending operations."""


def _fields(message_type: type[Message], *others: str) -> list[str]:
    """The fields of a message except `others`."""
    return [field.name for field in message_type.DESCRIPTOR.fields if field.name not in others]


PARTITION_FIELDS: Final = _fields(
    purgatory_service_pb2.Partition, "topic_partition", "replicas", "stale_ms", "stale_reason"
)
REPLICA_FIELDS: Final = _fields(purgatory_service_pb2.Replica)
KIND_FIELDS: Final = _fields(purgatory_service_pb2.KindStatus, "kind")
ENDED_COLUMNS: Final = [one for one in ROW_COLUMNS if one.name in _fields(purgatory_service_pb2.EndedOperation)]


class WallTime:
    """Converts engine time to timestamps. `now_ms` is the current engine time, `now_s` the current wall time."""

    def __init__(self, now_ms: int, now_s: float) -> None:
        self.now_ms: Final = now_ms
        self.now_s: Final = now_s

    def timestamp(self, engine_ms: int) -> timestamp_pb2.Timestamp:
        return timestamp(self.now_s + (engine_ms - self.now_ms) / 1_000)


def timestamp(wall_s: float) -> timestamp_pb2.Timestamp:
    """Convert seconds since the epoch to a timestamp with millisecond precision."""
    stamp = timestamp_pb2.Timestamp()
    stamp.FromMilliseconds(round(wall_s * 1_000))
    return stamp


def pending_operation(
    view: PendingView, session_id: str, principal: str, wall_time: WallTime, held_back_by: Sequence[str] = ()
) -> purgatory_service_pb2.PendingOperation:
    """A pending operation. `session_id` and `principal` are empty for unary waits."""
    waited_ms = wall_time.now_ms - view.registered_ms
    return purgatory_service_pb2.PendingOperation(
        session_id=session_id,
        principal=principal,
        operation_id=view.operation_id,
        kind=view.kind,
        registered_time=wall_time.timestamp(view.registered_ms),
        deadline_time=wall_time.timestamp(view.deadline_ms),
        waited_ms=waited_ms,
        remaining_ms=max(0, view.deadline_ms - wall_time.now_ms),
        partitions=[_item(item, wall_time.now_ms) for item in view.items],
        min_bytes=view.min_bytes if view.kind == codes.FETCH else None,
        required_terms=view.required_terms if view.kind == codes.COMPOSITE else None,
        unless_count=view.unless_count if view.kind == codes.COMPOSITE else None,
        held_back_by=held_back_by,
    )


def no_remaining_times() -> RemainingTimes:
    return RemainingTimes(list(REMAINING_BOUNDS_MS))


def remaining(times: RemainingTimes) -> purgatory_service_pb2.RemainingTime:
    return purgatory_service_pb2.RemainingTime(
        soonest_ms=times.soonest_ms if times.soonest_ms >= 0 else None,
        latest_ms=times.latest_ms if times.latest_ms >= 0 else None,
        bound_ms=times.bounds_ms,
        operations=times.operations,
    )


def _item(item: ItemView, now_ms: int) -> result_pb2.PartitionResult:
    is_key, before, reached = item.name[1] < 0, item.mark_before, item.reached_offset
    paced_ms = now_ms - item.paced_from_ms
    left_ms = remaining_ms(before, reached, item.required_offset, paced_ms) if before >= 0 and paced_ms > 0 else -1
    return result_pb2.PartitionResult(
        topic_partition=None if is_key else topic_partition(item.name),
        key=item.name[0] if is_key else "",
        error_code=item.error_code,
        required_offset=item.required_offset,
        reached_offset=reached,
        log_start_offset=item.log_start_offset,
        estimated_remaining_ms=left_ms if left_ms >= 0 else None,
        pace_per_second=pace_per_second(before, reached, paced_ms) if left_ms >= 0 else None,
    )


def partition(view: PartitionView, staleness: Staleness | None, listening_ms: int) -> purgatory_service_pb2.Partition:
    """A partition; with `staleness` if no source sees it."""
    return purgatory_service_pb2.Partition(
        stale_ms=None if staleness is None else staleness.ms(listening_ms),
        stale_reason="" if staleness is None else staleness.reason,
        topic_partition=topic_partition(view.name),
        replicas=[purgatory_service_pb2.Replica(**_same_fields(REPLICA_FIELDS, replica)) for replica in view.replicas],
        **_same_fields(PARTITION_FIELDS, view),
    )


def _same_fields(names: Sequence[str], view: object) -> dict[str, Any]:
    """The values of a message's fields from a view that calls them the same."""
    return {name: getattr(view, name) for name in names}


def partition_name(message: operation_pb2.TopicPartition) -> PartitionName:
    """The partition that a request names.

    Raises:
        RpcError: Its number is negative, which stands for a key in the engine's names.
    """
    check_range("topic_partition.partition", message.partition, 0, PARTITION_MAX)
    return (message.topic, message.partition)


def is_known_kind(kind: int) -> bool:
    return kind in codes.KINDS


def kind_statuses(counts_of: Callable[[int], KindCounts]) -> list[purgatory_service_pb2.KindStatus]:
    message = purgatory_service_pb2.KindStatus
    return [message(kind=kind, **_same_fields(KIND_FIELDS, counts_of(kind))) for kind in codes.KINDS]


def is_known_outcome(outcome: int) -> bool:
    """Whether it is a possible outcome of a pending operation."""
    return outcome in codes.OUTCOMES


def hot_names_response(names: Sequence[tuple[int, tuple[str, int]]]) -> purgatory_service_pb2.ListHotNamesResponse:
    """Encode pairs of watch entries and name; a key is (key, -1)."""
    response = purgatory_service_pb2.ListHotNamesResponse()
    for watched, name in names:
        hot = response.names.add(watched=watched)
        if name[1] < 0:
            hot.key = name[0]
        else:
            hot.topic_partition.CopyFrom(topic_partition(name))
    return response


def ended_operation(
    completions: Completions, place: int, first_item: int, session_id: str, principal: str, ended_s: float
) -> purgatory_service_pb2.EndedOperation:
    """Encode an operation that has ended, with its first items. Unary waits have no session and no id."""
    count = completions.item_counts[place]
    message = purgatory_service_pb2.EndedOperation(
        session_id=session_id,
        principal=principal,
        ended_time=timestamp(ended_s),
        partitions_left_out=max(0, count - sizes.TAIL_ITEMS_MAX),
    )
    for column in ENDED_COLUMNS:
        if session_id or column.name != "operation_id":
            setattr(message, column.name, getattr(completions, column.attribute)[place])
    for item in range(first_item, first_item + min(count, sizes.TAIL_ITEMS_MAX)):
        fill_partition(message.partitions.add(), completions, item)
    return message
