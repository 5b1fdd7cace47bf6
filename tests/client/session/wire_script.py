"""Wire messages as a daemon would send them, for tests that drive a session without one."""

from collections.abc import Sequence
from typing import Any

from purgatory_client.batches import Entry, WaitBatch, partition_columns
from purgatory_client.results import OperationKind
from purgatory_client.session.session_core import SessionCore

from purgatory.v1 import operation_pb2, purgatory_service_pb2, result_pb2

Request = purgatory_service_pb2.SessionRequest
Response = purgatory_service_pb2.SessionResponse


def many(count: int, timeout_ms: int = 5_000) -> WaitBatch:
    """A batch of produce waits for offsets from 1 on."""
    return partition_columns(OperationKind.PRODUCE, ["orders-3"], None, range(1, count + 1), [timeout_ms], None)


def opened(*, highest: int = 0, **fields: Any) -> Response:  # noqa: ANN401 - those of the message
    """The message with which the daemon opens the session."""
    opening = purgatory_service_pb2.SessionOpened(highest_operation_id=highest, heartbeat_interval_ms=1_000, **fields)
    return Response(opened=opening)


def open_core(*entries: Entry, **fields: Any) -> SessionCore:  # noqa: ANN401 - those of the opening
    """A session that the daemon has opened at time 0, and that has sent these waits, each in a batch of its own."""
    core = SessionCore("s", 1_000_000)
    core.receive(opened(**fields), 0.0)
    for entry in entries:
        core.submit(entry, 0.0)
        sent(core, 0.0)
    return core


def receipt(batch_id: int, refusals: Sequence[operation_pb2.OperationRefusal] = ()) -> Response:
    """The message with which the daemon accepts a batch."""
    return Response(receipt=purgatory_service_pb2.Receipt(batch_id=batch_id, refusals=refusals))


def results(first: int, operation_ids: Sequence[int], outcome: int = 1, kind: int = 1) -> Response:
    """The results of operations on one partition each, "orders-3"."""
    count = len(operation_ids)
    columns = result_pb2.ResultColumns(
        kind=kind,
        partitions=[operation_pb2.TopicPartition(topic="orders", partition=3)],
        operation_id=operation_ids,
        outcome=[outcome] * count,
        waited_ms=[5] * count,
        required_offset=operation_ids,
        reached_offset=[100] * count,
    )
    return Response(results=purgatory_service_pb2.ResultBatch(first_sequence=first, columns=columns))


def sent(core: SessionCore, now: float) -> list[Request]:
    """All messages that the session wants to send now."""
    messages: list[Request] = []
    while (message := core.next_message(now)) is not None:
        messages.append(message)
    return messages


def registered(messages: Sequence[Request]) -> list[list[int]]:
    """The operation ids of each batch among the messages."""
    return [list(one.register.columns.operation_id) for one in messages if one.HasField("register")]
