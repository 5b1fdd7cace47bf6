"""Events on the wire: columns if possible, otherwise rows, in a safe order."""

import asyncio
from collections.abc import Callable

import pytest
from purgatory_client import events
from purgatory_client.errors import ProtocolError
from purgatory_client.events import Event
from purgatory_client.marks import Marks, events_of
from purgatory_client.session.event_sender import EventSender, advance_request
from purgatory_client.wire import sizes

from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

COLUMN_FORM: list[Callable[[], Event]] = [
    lambda: events.log_end_offset("p-1", 5, byte_position=500, segment_base_offset=0, leader_epoch=3),
    lambda: events.follower_progress("p-1", 2, 4, log_start_offset=1),
    lambda: events.high_watermark("p-2", 5),
    lambda: events.last_stable_offset("p-1", None),
    lambda: events.last_stable_offset("p-1", 3),
    lambda: events.log_start_offset("p-1", 2),
    lambda: events.truncation("p-1", 4),
    lambda: events.removed("p-3"),
    lambda: events.storage_failed("p-1"),
    lambda: events.storage_online("p-1"),
    lambda: events.signalled("key", 3),
]


def test_columns_when_every_event_has_them() -> None:
    columns = advance_request([make() for make in COLUMN_FORM]).columns
    assert [(one.topic, one.partition) for one in columns.partitions] == [("p", 1), ("p", 2), ("p", 3)]
    assert list(columns.keys) == ["key"]
    assert list(columns.type) == [1, 2, 3, 4, 4, 5, 9, 10, 11, 12, 13]
    assert list(columns.item_index) == [0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0]
    assert list(columns.offset) == [5, 4, 5, -1, 3, 2, 4, -1, -1, -1, 3]
    assert list(columns.leader_epoch) == [3] + [-1] * 10


def test_columns_that_say_nothing_are_left_out() -> None:
    columns = advance_request([events.high_watermark("p-1", 5), events.high_watermark("p-1", 6)]).columns
    assert [field.name for field, _ in columns.ListFields()] == ["partitions", "type", "offset"]


def test_types_without_a_column_form_are_rows() -> None:
    made = [
        events.removed("p-1", moved=True, leader_epoch=3),
        events.replica_state("p-2", 4, dead=True),
        events.leadership("p-1", is_leader=False, leader_epoch=8),
        events.in_sync_replicas("p-1", [1, 2], leader_id=1),
    ]
    rows = advance_request(made).rows.events
    assert [row.WhichOneof("event") for row in rows] == [
        "partition_removed", "replica_state", "leadership", "in_sync_replicas",
    ]  # fmt: skip
    assert [row.topic_partition.partition for row in rows] == [1, 2, 1, 1]
    assert [row.leader_epoch if row.HasField("leader_epoch") else None for row in rows] == [3, None, 8, None]
    assert rows[0].partition_removed.moved
    assert rows[1].replica_state == event_pb2.ReplicaState(replica_id=4, dead=True)


async def test_columns_and_rows_travel_in_messages_of_their_own() -> None:
    """The events of a call are cut where the form changes, in their order, and have one receipt."""
    sent: list[wire.AdvanceStreamRequest] = []

    async def exchange(request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        sent.append(request)
        count = len(request.rows.events) or len(request.columns.type)
        refusals = [event_pb2.EventRefusal(index=count - 1)]
        return wire.AdvanceReceipt(ended=range(count), unchanged=1, refusals=refusals)

    marks: Marks = {"is_leader": True, "leader_epoch": 7, "log_end_offset": 9, "high_watermark": 9, "removed": "moved"}
    receipt = await EventSender(exchange).send(events_of("p-1", marks))
    assert [len(request.rows.events) or -len(request.columns.type) for request in sent] == [1, -2, 1]
    assert (receipt.ended, receipt.unchanged) == ([0, 0, 1, 0], 3)
    assert [refusal.index for refusal in receipt.refusals] == [0, 2, 3]


async def test_a_fault_of_this_client_is_not_taken_for_its_closing() -> None:
    answers: list[wire.AdvanceReceipt | None] = [None, wire.AdvanceReceipt(ended=[3])]

    async def send(_request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        answer = answers.pop(0)
        if answer is None:
            raise RuntimeError("a fault")
        return answer

    sender = EventSender(send)
    full = [events.signalled("key")] * sizes.EVENTS_PER_MESSAGE_MAX
    hit, served = (asyncio.create_task(sender.send(batch)) for batch in (full, full[:1]))
    with pytest.raises(ProtocolError, match="internal error in this client: RuntimeError") as failed:
        await hit
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert (await served).ended == [3]


def test_marks_become_events_in_a_safe_order() -> None:
    """In any order of the keywords, storage and leadership are sent first and removal last."""
    marks: Marks = {
        "removed": "moved",
        "high_watermark": 9,
        "last_stable_offset": 4,
        "replica": (2, 9, 1),
        "log_end_offset": 10,
        "in_sync_replicas": [1, 2],
        "dead_replica": 3,
        "truncate_to": 8,
        "is_leader": True,
        "leader_epoch": 7,
        "storage": "online",
        "log_start_offset": 1,
    }
    found = events_of("p-1", marks)
    assert [event.type for event in found] == [12, 7, 9, 6, 8, 4, 1, 2, 3, 5, 10]
    assert {event.leader_epoch for event in found} == {7}
