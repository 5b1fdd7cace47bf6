"""Messages for `tail` subscribers and for the list of hot names. Pure functions."""

from collections.abc import Sequence
from typing import cast

from purgatory.engine import codes
from purgatory.service.listeners.result_tail import TailItem, TailOperation
from purgatory.service.translate.results import topic_partition
from purgatory.service.translate.views import timestamp
from purgatory.v1 import operation_pb2, purgatory_service_pb2, result_pb2


def is_known_outcome(outcome: int) -> bool:
    """Whether it is a possible outcome of a pending operation."""
    return outcome in codes.OUTCOMES


def hot_names_response(
    names: Sequence[tuple[int, tuple[str, int]]],
) -> purgatory_service_pb2.ListHotNamesResponse:
    """Encode pairs of watch entries and name; a key is (key, -1)."""
    response = purgatory_service_pb2.ListHotNamesResponse()
    for watched, name in names:
        hot = response.names.add(watched=watched)
        if name[1] < 0:
            hot.key = name[0]
        else:
            hot.topic_partition.CopyFrom(topic_partition(name))
    return response


def tail_response(operations: Sequence[TailOperation], left_out: int) -> purgatory_service_pb2.TailResultsResponse:
    return purgatory_service_pb2.TailResultsResponse(
        operations=[_ended_operation(one) for one in operations], left_out=left_out
    )


def _ended_operation(one: TailOperation) -> purgatory_service_pb2.EndedOperation:
    return purgatory_service_pb2.EndedOperation(
        session_id=one.session_id,
        principal=one.principal,
        operation_id=one.operation_id,
        kind=cast("operation_pb2.OperationKind", one.kind),
        outcome=cast("result_pb2.Outcome", one.outcome),
        ended_time=timestamp(one.ended_s),
        waited_ms=one.waited_ms,
        lateness_ms=one.lateness_ms,
        partitions=[_ended_item(item, one.kind) for item in one.items],
        partitions_left_out=one.items_left_out,
    )


def _ended_item(item: TailItem, kind: int) -> result_pb2.PartitionResult:
    is_key = kind == codes.SIGNAL
    return result_pb2.PartitionResult(
        topic_partition=None if is_key else topic_partition(item.name),
        key=item.name[0] if is_key else "",
        error_code=item.error_code,
        required_offset=item.required_offset,
        reached_offset=item.reached_offset,
    )
