"""Messages for `tail` subscribers and for the list of hot names. Pure functions."""

from collections.abc import Sequence

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.translate.results import ROW_COLUMNS, fill_partition, topic_partition
from purgatory.service.translate.views import timestamp
from purgatory.v1 import purgatory_service_pb2


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
    for column in ROW_COLUMNS:
        if session_id or column.name != "operation_id":
            setattr(message, column.name, getattr(completions, column.attribute)[place])
    for item in range(first_item, first_item + min(count, sizes.TAIL_ITEMS_MAX)):
        fill_partition(message.partitions.add(), completions, item)
    return message
