"""The request for the start offsets and lags of share groups (KIP-932, KIP-1226), which no Python client has.

All records below a start offset have been acknowledged, rejected or given up after the last attempt. Brokers store a
start offset together with the next acknowledgement, so that it stays behind while nothing follows. The lag does not: it
is 0 once all records of the partition are done.
"""

from typing import Any, Final, NamedTuple

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from purgatory_connectors.kafka.offset_records import Partition

_TEXT: Final = CompactString("utf-8")
_TAGS: Final = ("tags", TaggedFields)
_ERROR: Final = (("error_code", Int16), ("error_message", _TEXT))
_GROUP_ID_NOT_FOUND: Final = 69


class ShareStart(NamedTuple):
    """The start offset of a share group on a partition, its lag (-1: unknown), and the topic that both refer to."""

    offset: int
    lag: int
    topic_id: str


class _Starts(Response):  # type: ignore[misc] # aiokafka has no types
    API_KEY = 90
    API_VERSION = 1
    _START = (("start_offset", Int64), ("leader_epoch", Int32), ("lag", Int64))
    _PARTITION = (("partition", Int32), *_START, *_ERROR, _TAGS)
    _TOPIC = (("topic", _TEXT), ("id_high", Int64), ("id_low", Int64), ("partitions", CompactArray(*_PARTITION)), _TAGS)
    _GROUP = (("group", _TEXT), ("topics", CompactArray(*_TOPIC)), *_ERROR, _TAGS)
    SCHEMA = Schema(("throttle_time_ms", Int32), ("groups", CompactArray(*_GROUP)), _TAGS)


class _AskStarts(RequestStruct):  # type: ignore[misc]
    API_KEY = 90
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Starts
    _TOPIC = (("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)
    _GROUP = (("group", _TEXT), ("topics", CompactArray(*_TOPIC)), _TAGS)
    SCHEMA = Schema(("groups", CompactArray(*_GROUP)), _TAGS)


class ShareStartsRequest(Request[_AskStarts]):  # type: ignore[misc]
    """Asks a group's coordinator for its start offsets on all topics."""

    API_KEY = 90

    def __init__(self, group: str) -> None:
        self._group: Final = group

    def build(self, request_struct_class: type[_AskStarts]) -> _AskStarts:
        return request_struct_class([(self._group, None, {})], {})


def starts_of(response: Any) -> dict[Partition, ShareStart]:  # noqa: ANN401 - aiokafka has no types
    """The start offsets in a response; a group that does not exist has none. Raises KafkaError."""
    found = {}
    for _, topics, group_error, said, _ in response.groups:
        if group_error not in {0, _GROUP_ID_NOT_FOUND}:
            raise for_code(group_error)(said or "")
        for topic, id_high, id_low, partitions, _ in topics:
            topic_id = f"{id_high % 2**64:016x}{id_low % 2**64:016x}"
            for number, offset, _, lag, error, partition_said, _ in partitions:
                if error:
                    raise for_code(error)(partition_said or "")
                if offset >= 0:  # otherwise no record has been done yet
                    found[topic, number] = ShareStart(offset, lag, topic_id)
    return found
