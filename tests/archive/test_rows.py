"""Rows from engine calls: compared with rows built with lists and loops from the same calls of a real engine."""

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch, Receipt, Refusal
from purgatory.engine.calls import Apply, Cancel, CancelAll, PassTime, Register
from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_COLUMNS, RESULT_ITEM_COLUMNS, Completions
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, ITEM, OPERATION, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.records import (
    REPLICA_COLUMNS,
    Names,
    Record,
    Span,
    completion_records,
    event_records,
    registration_records,
    row_record,
)
from purgatory.extensions.archive.rows import make_rows
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant
from tests.engine.adapter import event_batch
from tests.histories.plan import PARTITIONS, one_owner
from tests.histories.worlds.archive import drawn_operations, shorten

Row = dict[str, Any]

WHOSE = Registrant(7, "orders-service", "alice")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_MS = 30_000


def stamp(call_number: int = 1, time_ms: int = 5) -> CallStamp:
    return CallStamp("run-a", call_number, time_ms, 1_700_000_000_000 + time_ms)


def plain(rows: pa.RecordBatch) -> list[Row]:
    assert rows.validate(full=True) is None
    return [row | {"at": (row["at"] - EPOCH) // timedelta(milliseconds=1)} for row in rows.to_pylist()]


def rows_of(make: Callable[..., list[Record]], *calls: tuple[Any, ...]) -> list[Row]:
    """The rows of some calls to one table, which share their names."""
    names: Names = {}
    records = [record for given in calls for record in make(names, *given)]
    return plain(make_rows(records[0].table, records, list(names))) if records else []


class DrawnCalls:
    """Batches as callers send them, some of which the engine refuses."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._plan = one_owner(seed, timeout_max_ms=300)

    def operations(self, kind: int) -> OperationBatch:
        """Some ids may be known already."""
        if self._random.random() < 0.3:
            self._plan.next_ids[0] = max(1, self._plan.next_ids[0] - 5)
        batch = drawn_operations(self._plan, self._random, kind, self._random.choice((1, 2, 3, 6, 50)))
        if self._random.random() < 0.3:
            batch.operation_ids[-1] = self._random.choice((0, 2**64 - 1))
        return batch

    def events(self) -> EventBatch:
        batch = event_batch([self._plan.event() for _ in range(self._random.choice((1, 2, 3, 6, 50)))])
        if self._random.random() < 0.3:
            batch.types[0] = self._random.choice((0, 99))
        if self._random.random() < 0.3:
            batch.item_indexes[0] = 99
        shorten(batch, [one.batch_name for one in EVENT_COLUMNS if one.batch_name != "flags"], self._random)
        return batch


# The expected rows.


def at(values: Sequence[Any], row: int, default: Any = None) -> Any:  # noqa: ANN401 - any column
    """The value in a row of a column that has one value for each row, one for all rows, or none."""
    return values[row] if len(values) > 1 else values[0] if values else default


def common(stamp: CallStamp, whose: Registrant | None = None) -> Row:
    row: Row = {"run_id": stamp.run_id, "call_number": stamp.call_number, "time_ms": stamp.time_ms, "at": stamp.at_ms}
    return row if whose is None else row | whose._asdict()


def values_of(kind: int, level: str, batch: OperationBatch, row: int) -> Row:
    return {one.name: at(getattr(batch, one.batch_name), row) for one in columns_of(kind) if one.level == level}


def plain_registrations(
    stamp: CallStamp, whose: Registrant, kind: int, batch: OperationBatch, receipt: Receipt, known: int
) -> list[Row]:
    """Rows of a batch; ids from 1 to `known` were known before.

    Refused operations whose items cannot be identified have one row without a name.
    """
    refused = {refusal.index: refusal.code for refusal in receipt.refusals}
    keys = [(key, -1) for key in batch.keys]
    names = {codes.SIGNAL: keys, codes.COMPOSITE: batch.partitions + keys}.get(kind, batch.partitions)
    rows: list[Row] = []
    stop = 0
    for index, operation_id in enumerate(batch.operation_ids):
        start, stop = stop, stop + at(batch.item_counts, index, 1)
        operation = common(stamp, whose) | dict.fromkeys(COLUMNS_BY_NAME) | {
            "operation_id": min(operation_id, 2**63 - 1),
            "kind": codes.KIND_NAMES[kind],
            "timeout_ms": at(batch.timeouts_ms, index, DEFAULT_MS),
            "refusal_code": refused.get(index, schema.ACCEPTED),
            "item_count": stop - start,
        }  # fmt: skip
        places = [at(batch.item_indexes, item, 0) for item in range(start, stop)]
        items: list[Row] = [{"item": 0, "topic": None, "partition": None}]
        if places and max(places) < len(names) and (len(places) == 1 or len(batch.item_indexes) > 1):
            items = [
                {"item": item, "topic": names[place][0], "partition": names[place][1]}
                | values_of(kind, ITEM, batch, start + item)
                for item, place in enumerate(places)
            ]
        if not 1 <= operation_id <= known:
            rows += [operation | values_of(kind, OPERATION, batch, index) | item for item in items]
    return rows


def plain_outcomes(stamp: CallStamp, whose: Registrant, completions: Completions) -> list[Row]:
    rows: list[Row] = []
    fetched = iter(completions.fetched)
    for index in range(len(completions)):
        operation: Row = {one.name: getattr(completions, one.attribute)[index] for one in RESULT_COLUMNS}
        is_fetch = operation["kind"] == codes.FETCH
        operation["kind"] = codes.KIND_NAMES[operation["kind"]]
        operation["outcome"] = codes.OUTCOME_NAMES[operation["outcome"]]
        for item in range(operation["item_count"]):
            place = len(rows)
            topic, partition = completions.item_partitions[place]
            values = {one.name: getattr(completions, one.attribute)[place] for one in RESULT_ITEM_COLUMNS}
            values |= {one.name: None for one in RESULT_ITEM_COLUMNS if one.is_optional and values[one.name] < 0}
            read = next(fetched) if is_fetch else None
            values |= {one.name: read and getattr(read, one.attribute) for one in FETCHED_COLUMNS}
            rows.append(
                common(stamp, whose) | operation | {"item": item, "topic": topic, "partition": partition} | values
            )
    return rows


def plain_events(stamp: CallStamp, principal: str, batch: EventBatch, start: int, receipt: Receipt) -> list[Row]:
    """Rows of a slice of a principal's events."""
    refused = {refusal.index: refusal.code for refusal in receipt.refusals}
    rows: list[Row] = []
    for place in range(start, receipt.next_index):
        event_type = batch.types[place]
        names = [(key, -1) for key in batch.keys] if event_type == codes.KEY_SIGNALLED else batch.partitions
        where = at(batch.item_indexes, place, 0)
        topic, partition = names[where] if where < len(names) else (None, None)
        sets = at(batch.replica_sets, place)
        rows.append(
            common(stamp)
            | {
                "principal": principal,
                "row": place - start,
                "type": codes.EVENT_NAMES.get(event_type, ""),
                "topic": topic,
                "partition": partition,
                "refusal_code": refused.get(place, schema.ACCEPTED),
                "ended": receipt.ended_by_event[place - start],
            }
            | {one.name: at(getattr(batch, one.batch_name), place) for one in EVENT_COLUMNS}
            | {name: sets and getattr(sets, name) for name in REPLICA_COLUMNS}
        )
    return rows


@given(st.integers(0, 2**32), st.sampled_from(codes.KINDS))
def test_registrations_are_rows_for_each_item(seed: int, kind: int) -> None:
    drawn = DrawnCalls(seed)
    engine = Engine(EngineLimits(pending_operations_max=60), 0)
    owner = engine.add_owner()
    calls, expected = [], list[Row]()
    for number in (1, 2, 3):
        batch = drawn.operations(kind)
        known = owner.highest_operation_id
        receipt = engine.perform(owner, Register(kind, batch), number)
        rows = plain_registrations(stamp(number), WHOSE, kind, batch, receipt, known)
        calls += [(stamp(number), WHOSE, kind, batch, receipt, DEFAULT_MS)] if rows else []
        expected += rows
    assert in_order(rows_of(registration_records, *calls)) == in_order(expected)


def in_order(rows: list[Row]) -> list[Row]:
    """Rows sorted by call; within a call the order is not specified."""
    return sorted(
        rows, key=lambda row: (row["call_number"], row["operation_id"], row["item"], str(sorted(row.items())))
    )


@given(st.integers(0, 2**32))
def test_outcomes_are_rows_for_each_item(seed: int) -> None:
    drawn = DrawnCalls(seed)
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    calls, expected = [], list[Row]()
    for number, kind in enumerate((*codes.KINDS, codes.PRODUCE), 1):
        now_ms = number * 50
        engine.perform(owner, Register(kind, drawn.operations(kind)), now_ms)
        engine.perform(None, Apply(drawn.events()), now_ms)
        engine.perform(None, PassTime(100), now_ms)
        if number > 4:
            engine.perform(owner, CancelAll(), now_ms)
        for completions in engine.take_completions():
            calls.append((stamp(number), WHOSE, completions))
            expected += plain_outcomes(*calls[-1])
    assert rows_of(completion_records, *calls) == expected


@given(st.integers(0, 2**32), st.integers(1, 8))
def test_events_are_rows_of_their_slices(seed: int, limit: int) -> None:
    """In each slice of a batch, `row` counts from 0."""
    batch = DrawnCalls(seed).events()
    engine = Engine(EngineLimits(), 0)
    calls, expected, start = [], list[Row](), 0
    while start < len(batch.types):
        receipt = engine.perform(None, Apply(batch, start), 1, limit)
        calls.append((stamp(start + 1), WHOSE, batch, start, receipt))
        expected += plain_events(stamp(start + 1), WHOSE.principal, batch, start, receipt)
        start = receipt.next_index
    assert rows_of(event_records, *calls) == expected


def test_a_batch_that_no_engine_could_read_has_bare_rows() -> None:
    receipt = Receipt()
    receipt.refusals.extend(Refusal(place, codes.UNAVAILABLE, "", "") for place in range(3))
    batch = OperationBatch([1, 2, 3], partitions=PARTITIONS, offsets=[1, 2], timeouts_ms=[5, 6])
    rows = rows_of(registration_records, (stamp(), WHOSE, codes.PRODUCE, batch, receipt, DEFAULT_MS))
    assert [(row["operation_id"], row["refusal_code"], row["topic"], row["timeout_ms"]) for row in rows] == [
        (number, codes.UNAVAILABLE, None, DEFAULT_MS) for number in (1, 2, 3)
    ]


def test_an_operation_of_a_billion_items_has_one_row() -> None:
    engine = Engine(EngineLimits(), 0)
    batch = OperationBatch([1, 2], partitions=PARTITIONS, item_counts=[2**31])
    receipt = engine.perform(engine.add_owner(), Register(codes.PRODUCE, batch), 0)
    rows = rows_of(registration_records, (stamp(), WHOSE, codes.PRODUCE, batch, receipt, DEFAULT_MS))
    assert [(row["operation_id"], row["item_count"], row["topic"]) for row in rows] == [
        (1, 2**31 - 1, None),
        (2, 2**31 - 1, None),
    ]


def test_calls_and_markers_are_single_rows() -> None:
    common = {"run_id": "run-a", "call_number": 3, "time_ms": 5, "at": 1_700_000_000_005}
    record = row_record(
        schema.CALLS, stamp(3), call=schema.CALL_NAMES[Cancel], session_number=2, operation_ids=[1, 9], ended=1
    )
    [call] = plain(make_rows(schema.CALLS, [record]))
    assert call == common | {
        "call": "cancel", "session_number": 2, "operation_ids": [1, 9], "topic": None, "partition": None, "ended": 1,
        "timeout_ms": None,
    }  # fmt: skip
    [record] = Span([record]).dropped_markers()
    [marker] = plain(make_rows(schema.MARKERS, [record]))
    assert marker == common | {
        "marker": "dropped", "table": "calls", "rows": 1, "last_call_number": 3, "detail": None,
    }  # fmt: skip


def test_a_marker_of_a_gap_that_is_lost_itself_is_told_again() -> None:
    lost = Span(
        [row_record(schema.CALLS, stamp(3), call=schema.CALL_NAMES[Cancel]), row_record(schema.CALLS, stamp(7))]
    )
    again = Span(lost.dropped_markers())
    alone_again = [(record.extra["rows"], record.extra["last_call_number"]) for record in again.dropped_markers()]
    again.extend(Span([row_record(schema.CALLS, stamp(9), call=schema.CALL_NAMES[Cancel])]))
    [record] = again.dropped_markers()
    assert alone_again == [(2, 7)]
    assert (record.stamp, record.extra["table"], record.extra["rows"]) == (stamp(3), schema.CALLS, 3)
    assert record.extra["last_call_number"] == 9
