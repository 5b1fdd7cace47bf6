"""Records of the wire as rows of a stream: the same answers as on the daemon's own path from the wire to the engine."""

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION, RecordRows, operation_of

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import KIND_NAMES, UNKNOWN
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.service.translate.events import events_from_rows
from purgatory.service.translate.operations import CONDITION_KINDS, run_from_row
from purgatory.v1 import event_pb2, operation_pb2
from tests.engine import plain
from tests.engine.adapter import value_of
from tests.pipeline.stream.simulated_history import START_MS, DirectEngine, generator_of, outcomes_of
from tests.scripts.messages import operation_row

TIMEOUT_MS_DEFAULT = 30_000
WHOLE_NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 5, -1, -2, 2**31 - 1])
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_INT32: WHOLE_NUMBERS,
    FieldDescriptor.TYPE_INT64: WHOLE_NUMBERS | st.sampled_from([2**62, 2**63 - 1]),
    FieldDescriptor.TYPE_UINT64: st.just(0),  # the only one is the id, which is given below
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.sampled_from([b"", value_of(1), value_of(2), b"x" * 4_097]),
    FieldDescriptor.TYPE_STRING: st.sampled_from(["a", "a", "b", "", "\u00e9", "x" * 250]),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 3),
}
PARTITION = st.builds(
    operation_pb2.TopicPartition, topic=st.sampled_from(["a", "a", "b", ""]), partition=st.sampled_from([0, 0, 1, -1])
)
LISTED_MAX = 3
Record = operation_pb2.Operation | event_pb2.Event


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, made: Any) -> Any:  # noqa: ANN401 - of any type
    """A message with any of its fields, new ones included, and one field of each oneof."""
    message = made()
    chosen = {draw(st.sampled_from(tuple(one.fields))).name for one in descriptor.oneofs if len(one.fields) > 1}
    for field in descriptor.fields:
        is_one_of_many = field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
        if field.name not in chosen if is_one_of_many else field.has_presence and draw(st.integers(0, 3)) == 0:
            continue
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            values = st.lists(VALUES[field.type], max_size=LISTED_MAX) if field.is_repeated else VALUES[field.type]
            given = draw(values)
            if field.is_repeated:
                getattr(message, field.name).extend(given)
            else:
                setattr(message, field.name, given)
        elif field.message_type.name == "TopicPartition":
            getattr(message, field.name).CopyFrom(draw(PARTITION))
        else:
            part = messages(field.message_type, field.message_type._concrete_class)
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(part, max_size=LISTED_MAX)))
            else:
                getattr(message, field.name).CopyFrom(draw(part))
    return message


OPERATIONS = messages(operation_pb2.Operation.DESCRIPTOR, operation_pb2.Operation)
EVENTS = messages(event_pb2.Event.DESCRIPTOR, event_pb2.Event)
RECORDS = st.lists(st.tuples(st.one_of(OPERATIONS, EVENTS), st.integers(0, 2)), max_size=20)
"""Each with the milliseconds that have passed since the one before."""


def register(direct: DirectEngine, operation: operation_pb2.Operation) -> bool:
    """Registers an operation as the daemon would; whether it is one."""
    condition = operation.WhichOneof("condition")
    if condition is None or not operation.operation_id:
        return False
    items = getattr(operation, condition)
    if condition == "composite":
        terms = [*items.terms, *items.unless]
        if not terms or not all(map(can_be_a_term, terms)):
            return False
    elif not (items.keys if condition == "signal" else items.partitions):
        return False

    def batch(engine_id: int) -> OperationBatch:
        run = run_from_row(operation, engine_id, TIMEOUT_MS_DEFAULT)
        assert run is not None, f"no condition: {operation}"
        return run.batch

    direct.register("c", operation.operation_id, CONDITION_KINDS[condition], batch)
    return True


def can_be_a_term(term: operation_pb2.Term) -> bool:
    """In rows a negative partition is a key, and -1 is the default."""
    if term.WhichOneof("condition") == "mark":
        return term.mark.topic_partition.partition >= 0 and term.mark.required_offset != UNKNOWN
    return term.WhichOneof("condition") == "signal" and term.signal.required_count != UNKNOWN


def can_be_a_row(event: event_pb2.Event) -> bool:
    """Rows have neither values nor decisions of signals, so events that are refused for one are refused as records."""
    signal = event.key_signalled
    is_heartbeat = signal.HasField("count") and signal.count == 0
    has_more = signal.value or signal.HasField("decision")
    return len(signal.value) <= SIGNAL_VALUE_BYTES_MAX and not (has_more and is_heartbeat)


def as_record(message: Record, at_ms: int, *, is_json: bool) -> bytes:
    """The encoded message; as JSON it includes its time and caller."""
    if not is_json:
        return message.SerializeToString()
    said = json_format.MessageToDict(message, preserving_proto_field_name=True) | {"at": at_ms, "caller": "c"}
    return json.dumps(said).encode()


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, is_json=st.booleans())
def test_a_record_says_the_same_to_a_stream_as_to_the_daemon(records: list[tuple[Any, int]], is_json: bool) -> None:
    """All kinds and events, all fields, given or not, good and bad: the same outcomes, items and refusals."""
    direct = DirectEngine()
    sides = {side: RecordRows(side, is_json=is_json) for side in (OPERATION, EVENT)}
    at_ms, unreadable = START_MS, 0
    for place, (message, passed_ms) in enumerate(records):
        at_ms += passed_ms
        direct.pass_time(at_ms)
        if isinstance(message, operation_pb2.Operation):
            message.operation_id = place + 1
            side = OPERATION
            unreadable += not register(direct, message)
        else:
            side = EVENT
            if not can_be_a_row(message):
                unreadable += 1
            elif message.ListFields():  # if not, it is a heartbeat
                [incoming] = events_from_rows([message])
                direct.apply(incoming.batch)
        record = as_record(message, at_ms, is_json=is_json)
        sides[side].add(record, *((None, place, None) if is_json else (at_ms, place, "c")))
    direct.end_all()
    tables = [rows.tables() for rows in sides.values()]
    shard = Shard()
    played = shard.play(pa.concat_tables([rows for rows, _ in tables], promote_options="default"))
    ended = shard.play(pa.table({"at_ms": [direct.now_ms + 1]}))
    found = outcomes_of(played.outcomes) + outcomes_of(ended.outcomes)
    assert sorted(map(repr, found)) == sorted(map(repr, direct.outcomes))
    assert played.malformed.num_rows == direct.refused_events
    assert sum(malformed.num_rows for _, malformed in tables) == unreadable


@pytest.mark.parametrize("kind", plain.KINDS)
def test_an_operation_made_of_its_rows_is_the_same(kind: int) -> None:
    """An operation from a topic is written to a daemon unchanged, for all of its items and arm by arm."""
    generator = generator_of(5)
    for _ in range(50):
        operation = operation_row(generator.operation(0, kind))
        rows = RecordRows(OPERATION, is_json=False)
        rows.add(operation.SerializeToString(), 1, 0, "c")
        found = [row | {"kind": KIND_NAMES[row["kind"]]} for row in rows.tables()[0].to_pylist()]
        assert operation_of(found) == operation


@pytest.mark.parametrize("operation_id", [0, 2**63, 2**64 - 1])
def test_an_operation_without_a_usable_id_is_malformed(operation_id: int) -> None:
    rows = RecordRows(OPERATION, is_json=False)
    one = operation_pb2.ProducePartition(topic_partition=operation_pb2.TopicPartition(topic="a"))
    operation = operation_pb2.Operation(operation_id=operation_id, produce=operation_pb2.Produce(partitions=[one]))
    rows.add(operation.SerializeToString(), 1, 0, "c")
    [said] = rows.tables()[1].column("reason").to_pylist()
    assert said.startswith(f"operation_id: {operation_id} is not in 1..")


def test_time_without_an_offset_is_malformed() -> None:
    """Each executor would read it in its own time zone."""
    rows = RecordRows(EVENT, is_json=True)
    rows.add(b'{"at": "2026-11-21T18:00:00", "keySignalled": {"key": "k"}}', 1, 0, "c")
    assert "has no offset" in rows.tables()[1].column("reason").to_pylist()[0]


@pytest.mark.parametrize(("record", "is_json"), [(b"", False), (b'{"at": 7000}', True)])
def test_an_event_in_which_nothing_is_set_is_a_heartbeat(record: bytes, is_json: bool) -> None:
    """Only time passes; an event that only says where it happened stays malformed."""
    rows = RecordRows(EVENT, is_json=is_json)
    rows.add(record, None if is_json else 7_000, 3, None)
    name = operation_pb2.TopicPartition(topic="a")
    where = event_pb2.Event(topic_partition=name)
    rows.add(as_record(where, 7_000, is_json=is_json), 7_000, 4, None)
    good, malformed = rows.tables()
    assert good.to_pylist() == [{"at_ms": 7_000, "place": 3}]
    assert malformed.num_rows == 1
