"""A history's rows as records of the wire, for the topics of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from purgatory_pipeline.stream.wire_records import EVENT_FIELDS, REPLICA_FIELDS, operation_of

from purgatory.engine.codes import EVENT_NAMES, KEY_SIGNALLED, KIND_NAMES
from purgatory.v1 import event_pb2
from tests.histories.plan import Generator, Step
from tests.pipeline.stream.simulated_history import Row, SimulatedHistory

FLAGS = {"leadership": ("is_leader",), "partition_removed": ("moved",), "replica_state": ("dead", "fenced")}


class TopicRecord(NamedTuple):
    """An operation or an event as a record of a topic."""

    topic: str
    at_ms: int
    caller: str
    octets: bytes


def spaced_history(seed: int, step_count: int) -> SimulatedHistory:
    """A history in which time passes after each step, as records of one millisecond in two topics have no order."""

    def spaced() -> Iterator[Step]:
        for step in Generator(seed).steps(step_count):
            yield from (step, Step(None, pass_ms=1))

    return SimulatedHistory(spaced())


def records_of(rows: Sequence[Row]) -> list[TopicRecord]:
    """Rows of a history, in order, as records of `registrations` and `events`."""
    records = []
    for _, same in groupby(rows, key=lambda row: row["place"]):
        of_one = list(same)
        first = of_one[0]
        if first.get("kind"):
            named = [row | {"kind": KIND_NAMES[row["kind"]]} for row in of_one]
            octets = operation_of(named).SerializeToString()
            records.append(TopicRecord("registrations", first["at_ms"], first["caller"], octets))
        else:
            records.append(TopicRecord("events", first["at_ms"], "", event_record(first)))
    return records


def event_record(row: Row) -> bytes:
    """An event of any type: the data source sends only marks that rise."""
    name = EVENT_NAMES[row["type"]]
    if row["type"] == KEY_SIGNALLED:
        signal = event_pb2.KeySignalled(key=row["topic"], count=row["offset"])
        return event_pb2.Event(key_signalled=signal).SerializeToString()
    event = event_pb2.Event(leader_epoch=row.get("leader_epoch"))
    event.topic_partition.topic, event.topic_partition.partition = row["topic"], row.get("partition") or 0
    message = getattr(event, name)
    message.SetInParent()
    for field, column in EVENT_FIELDS.items():
        described, value = message.DESCRIPTOR.fields_by_name.get(field), row.get(column)
        if described is not None and value is not None:
            if described.is_repeated:
                getattr(message, field).extend(value)
            else:
                setattr(message, field, value)
    for place, flag in enumerate(FLAGS.get(name, ())):
        setattr(message, flag, bool((row.get("flags") or 0) >> place & 1))
    if name in REPLICA_FIELDS:
        message.replica_ids.extend(row.get(REPLICA_FIELDS[name]) or ())
    return event.SerializeToString()
