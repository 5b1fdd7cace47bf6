"""The effect of a micro-batch of rows on a real daemon: repeated, out of order, split over tasks or micro-batches."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from purgatory_client import Client, Outcome
from purgatory_pipeline.datasource.daemon_options import DaemonOptions
from purgatory_pipeline.datasource.daemon_writer import DaemonWriter
from purgatory_pipeline.errors import PipelineError
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from purgatory.testing import RunningDaemon
from purgatory.v1 import event_pb2

Row = dict[str, Any]
MIDNIGHT = datetime(2026, 11, 25, tzinfo=UTC)
RISING = ("leader_append", "high_watermark", "log_start_offset")
EVENTS = event_pb2.Event.DESCRIPTOR.oneofs_by_name["event"].fields
NOT_RISING = [field.name for field in EVENTS if field.name not in RISING]


def write(daemon: RunningDaemon, *tasks: Sequence[Row]) -> None:
    """Commit one micro-batch that consists of these tasks."""
    whole = pa.Table.from_pylist([row for task in tasks for row in task])
    writer = DaemonWriter(DaemonOptions.of({"address": daemon.address}), from_arrow_schema(whole.schema))
    batches = [iter(pa.Table.from_pylist(list(task), whole.schema).to_batches()) for task in tasks]
    writer.commit([writer.write(task) for task in batches], 0)


def waits(*ids: int, offset: int = 1_000, items: int = 1, topic: str = "t") -> list[Row]:
    """The rows of produce waits of these ids, each for the same offset of `items` partitions."""
    return [
        {"session_id": "s", "operation_id": id_, "kind": "produce", "timeout_ms": 60_000, "item": item,
         "item_count": items, "topic": topic, "partition": item, "offset": offset}
        for id_ in ids for item in range(items)
    ]  # fmt: skip


def event(second: int, name: str, offset: int | None, **columns: Any) -> Row:  # noqa: ANN401 - values of any column
    """The row of an event, on partition t-0 unless the columns say otherwise."""
    at = MIDNIGHT + timedelta(seconds=second)
    return {"at": at, "type": name, "topic": "t", "partition": 0, "offset": offset, **columns}


def pending_ids(client: Client) -> list[int]:
    return sorted(operation.operation_id for operation in client.operations())


def test_a_repeated_micro_batch_registers_nothing_twice(daemon: RunningDaemon) -> None:
    """The same rows again, spread over other tasks, leave the same operations. If a kill let only a part through, the
    rest is registered. Operations that have ended are not registered again.
    """
    write(daemon, waits(3, 1, items=2), waits(2, items=2))
    write(daemon, waits(1, 2, 3, items=2))
    assert pending_ids(daemon.client) == [1, 2, 3]
    write(daemon, waits(3, items=2), waits(4, 5))
    assert pending_ids(daemon.client) == [1, 2, 3, 4, 5]
    daemon.client.advance(("t", 0), high_watermark=1_000)
    write(daemon, waits(3, items=2), waits(4, 5))
    assert pending_ids(daemon.client) == [1, 2, 3]
    assert daemon.client.status().unacknowledged_results == 2


def test_ids_below_those_of_an_earlier_micro_batch_are_an_error(daemon: RunningDaemon) -> None:
    """The daemon would ignore them as known, so their waits would never have a result. The message names them, and
    nothing of the micro-batch is registered, in any session.
    """
    write(daemon, waits(10, 11))
    for ids in [(5, 6), (5, 12), (12, 10)]:
        others = [row | {"session_id": "r"} for row in waits(1)]
        with pytest.raises(PipelineError, match=rf"session s: operation ids \[{min(ids)}\b.*not above 11"):
            write(daemon, waits(*ids), others)
    assert pending_ids(daemon.client) == [10, 11]


def test_an_operation_split_over_two_micro_batches_is_an_error(daemon: RunningDaemon) -> None:
    first, second = waits(1, items=2)
    for part in ([first], [second], [first, first], [first, second, second]):
        with pytest.raises(PipelineError, match="operation 1: item"):
            write(daemon, part, waits(2))
    assert pending_ids(daemon.client) == []
    write(daemon, [second], [first])
    assert pending_ids(daemon.client) == [1]


def bad_batches() -> Iterator[tuple[list[Row], str]]:
    """The rows of micro-batches, the last of which is bad, and the error message about it."""
    for columns, message in (
        ({"session_id": None}, "session_id: null or empty"),
        ({"session_id": ""}, "session_id: null or empty"),
        ({"operation_id": None}, "operation_id: None; allowed: 1 to"),
        ({"operation_id": 0}, "operation_id: 0; allowed: 1 to"),
        ({"kind": "nonsense"}, "kind: nonsense; allowed: produce"),
    ):
        yield [*waits(1, 2), waits(3)[0] | columns], message
    first, last = event(1, "high_watermark", 4), event(2, "high_watermark", 5)
    # A repetition would apply all other events twice.
    for name in (*NOT_RISING, "nonsense"):
        yield [first, last | {"type": name, "offset": None}], f"type: {name}; allowed: {', '.join(RISING)}"
    # Without a time, their order would depend on how Spark spread them over tasks. Text need not sort by time.
    yield [first, last | {"at": None}], "at: null in 1 of 2 events"
    yield [last | {"at": "2026-11-25T00:00:00Z"}], "column at is a string"
    yield [{name: value for name, value in last.items() if name != "at"}], "column at is missing"


def test_a_bad_row_stops_its_micro_batch(daemon: RunningDaemon) -> None:
    for rows, message in bad_batches():
        with pytest.raises(PipelineError, match=message):
            write(daemon, rows[:-1], rows[-1:])
    assert pending_ids(daemon.client) == []
    assert list(daemon.client.partitions()) == []


def test_large_operations_are_sent_in_several_calls(daemon: RunningDaemon) -> None:
    """One call with all of them would be larger than the daemon accepts (4 MiB)."""
    write(daemon, waits(*range(1, 131), items=150, topic="t" * 240))
    assert len(pending_ids(daemon.client)) == 130


def test_events_are_applied_in_the_order_of_their_time(daemon: RunningDaemon) -> None:
    """Across all tasks, and within a millisecond in the order of the archive. A log start above the high watermark
    would be refused.
    """
    rising = [
        event(1, "high_watermark", 5, call_number=1, row=0),
        event(2, "log_start_offset", 5, call_number=2, row=0),
        event(3, "high_watermark", 7, call_number=3, row=1),
        event(3, "log_start_offset", 7, call_number=3, row=2),
        event(3, "high_watermark", 9, call_number=4, row=0),
        event(3, "log_start_offset", 9, call_number=4, row=1),
    ]
    write(daemon, rising[5:], rising[3:5], rising[::-1][3:])
    found = daemon.client.partition(("t", 0))
    assert (found.high_watermark, found.log_start_offset) == (9, 9)


def test_repeated_events_change_nothing(daemon: RunningDaemon) -> None:
    """Marks have moved on and waits were registered when the micro-batch is repeated: none of them ends."""
    batch = [
        event(1, "leader_append", 8, leader_epoch=1),
        event(2, "high_watermark", 6, leader_epoch=1),
        event(3, "log_start_offset", 4, leader_epoch=1),
        event(4, "high_watermark", 8, leader_epoch=2),
    ]
    write(daemon, batch)
    daemon.client.advance(("t", 0), high_watermark=20, leader_epoch=2)
    before = daemon.client.partition(("t", 0))
    write(daemon, waits(1, offset=21), waits(2, offset=20))
    write(daemon, batch)
    after = daemon.client.partition(("t", 0))
    assert (after.high_watermark, after.log_start_offset, after.log_end_offset, after.leader_epoch) == (
        before.high_watermark, before.log_start_offset, before.log_end_offset, before.leader_epoch,
    )  # fmt: skip
    assert pending_ids(daemon.client) == [1]
    assert next(iter(daemon.client.results("s"))).results.outcomes == [Outcome.SATISFIED]


@pytest.mark.parametrize("columns", [("topic",), ("type", "kind")])
def test_a_frame_must_be_of_events_or_of_registrations(columns: tuple[str, ...]) -> None:
    schema = StructType([StructField(name, StringType()) for name in columns])
    with pytest.raises(PipelineError, match="`type`, or registrations with a column `kind`"):
        DaemonWriter(DaemonOptions.of({}), schema)
