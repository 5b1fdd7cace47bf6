"""Events on the wire: columns if possible, otherwise rows, in a safe order."""

from collections.abc import Callable

import pytest
from purgatory_client import events
from purgatory_client.errors import InvalidRequest
from purgatory_client.events import Event
from purgatory_client.marks import Marks, events_of
from purgatory_client.wire.encode_events import advance_request

from purgatory.v1 import event_pb2

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
    """Columns contain dictionaries of partitions and keys, and one value per event."""
    columns = advance_request([make() for make in COLUMN_FORM]).columns
    assert [(one.topic, one.partition) for one in columns.partitions] == [("p", 1), ("p", 2), ("p", 3)]
    assert list(columns.keys) == ["key"]
    assert list(columns.type) == [1, 2, 3, 4, 4, 5, 9, 10, 11, 12, 13]
    assert list(columns.item_index) == [0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0]
    assert list(columns.offset) == [5, 4, 5, -1, 3, 2, 4, -1, -1, -1, 3]
    assert list(columns.leader_epoch) == [3] + [-1] * 10


def test_columns_that_say_nothing_are_left_out() -> None:
    """Columns without values are omitted."""
    columns = advance_request([events.high_watermark("p-1", 5), events.high_watermark("p-1", 6)]).columns
    assert [field.name for field, _ in columns.ListFields()] == ["partitions", "type", "offset"]


def test_rows_when_one_event_needs_them() -> None:
    """One event without a column form turns the whole message into rows, without losing values."""
    rows = advance_request([*(make() for make in COLUMN_FORM), events.removed("p-1", moved=True)]).rows.events
    assert [row.WhichOneof("event") for row in rows] == [
        "leader_append",
        "follower_progress",
        "high_watermark",
        "last_stable_offset",
        "last_stable_offset",
        "log_start_offset",
        "truncation",
        "partition_removed",
        "storage_failed",
        "storage_online",
        "key_signalled",
        "partition_removed",
    ]
    assert rows[0].leader_append.byte_position == 500
    assert rows[0].leader_append.segment_base_offset == 0
    assert rows[0].leader_epoch == 3
    assert rows[1].follower_progress == event_pb2.FollowerProgress(replica_id=2, log_end_offset=4, log_start_offset=1)
    assert not rows[3].last_stable_offset.HasField("offset")
    assert rows[4].last_stable_offset.offset == 3
    assert rows[10].key_signalled == event_pb2.KeySignalled(key="key", count=3)
    assert not rows[10].HasField("topic_partition")
    assert [row.partition_removed.moved for row in rows if row.HasField("partition_removed")] == [False, True]


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


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({}, "at least one mark"),
        ({"leader_epoch": 3}, "at least one mark"),
        ({"is_leader": True}, "needs its leader_epoch"),
        ({"high_watermark": 3, "byte_position": 9}, "belong to log_end_offset"),
        ({"high_watermark": 2**63}, "does not fit 64 bits"),
    ],
)
def test_marks_that_mean_nothing_are_refused(marks: Marks, says: str) -> None:
    """Marks that cannot be encoded are refused before they are sent."""
    with pytest.raises(InvalidRequest, match=says):
        events_of("p-1", marks)
