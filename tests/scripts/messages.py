"""Plain data as messages of the wire, in rows or in columns, and results of the wire as plain data."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

from purgatory.engine.completions import FETCHED_COLUMNS, FLOAT64, RESULT_COLUMNS, RESULT_ITEM_COLUMNS
from purgatory.engine.kinds.operation_columns import OPERATION_COLUMNS
from purgatory.v1 import event_pb2, operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.engine.adapter import number_of, operation_batch, value_of
from tests.scripts.language import LISTS

COLUMN_EVENTS: Final = (plain.LEADER_APPEND, plain.FOLLOWER_PROGRESS, plain.HIGH_WATERMARK, plain.LOG_START_OFFSET)
EVENT_ROWS: Final[dict[int, tuple[str, dict[str, str]]]] = {
    plain.LEADER_APPEND: (
        "leader_append", {"offset": "log_end_offset", "position": "byte_position", "segment": "segment_base_offset"},
    ),
    plain.FOLLOWER_PROGRESS: (
        "follower_progress",
        {"offset": "log_end_offset", "replica_id": "replica_id", "log_start": "log_start_offset"},
    ),
    plain.HIGH_WATERMARK: ("high_watermark", {"offset": "offset"}),
    plain.LAST_STABLE_OFFSET: ("last_stable_offset", {"offset": "offset"}),
    plain.LOG_START_OFFSET: ("log_start_offset", {"offset": "offset"}),
    plain.IN_SYNC_REPLICAS: (
        "in_sync_replicas",
        {
            "in_sync": "replica_ids", "proposed": "proposed_replica_ids", "leader_id": "leader_id",
            "min_in_sync": "min_in_sync_replicas",
        },
    ),
    plain.LEADERSHIP: (
        "leadership", {"leader_id": "leader_id", "replicas": "replica_ids", "offset": "epoch_start_offset"},
    ),
    plain.REPLICA_STATE: ("replica_state", {"replica_id": "replica_id"}),
    plain.TRUNCATION: ("truncation", {"offset": "offset"}),
    plain.PARTITION_REMOVED: ("partition_removed", {}),
    plain.STORAGE_FAILED: ("storage_failed", {}),
    plain.STORAGE_ONLINE: ("storage_online", {}),
}  # fmt: skip
"""For each type of event except signals: its row, and the field of each field of `plain.Event`; -1 is left out."""


class Names:
    """The names of one script at a daemon that others use too: with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix

    def partition(self, name: plain.Name) -> operation_pb2.TopicPartition:
        return operation_pb2.TopicPartition(topic=self.prefix + name[0], partition=name[1])

    def renamed(self, name: plain.Name) -> plain.Name:
        return self.prefix + name[0], name[1]

    def own(self, partition: operation_pb2.TopicPartition, key: str) -> plain.Name:
        """The name in the script of a partition, or of a key."""
        if key:
            return key.removeprefix(self.prefix), -1
        return partition.topic.removeprefix(self.prefix), partition.partition

    def operations(self, operations: Sequence[plain.Operation]) -> list[plain.Operation]:
        return [
            one._replace(items=tuple(item._replace(name=self.renamed(item.name)) for item in one.items))
            for one in operations
        ]


# Requests.


def operation_rows(operations: Sequence[plain.Operation], names: Names) -> operation_pb2.OperationRows:
    return operation_pb2.OperationRows(operations=[operation_row(one) for one in names.operations(operations)])


def operation_row(given: plain.Operation) -> operation_pb2.Operation:
    row = operation_pb2.Operation(operation_id=given.operation_id, timeout_ms=given.timeout_ms)
    if given.stale_timeout_ms >= 0:
        row.stale_timeout_ms = given.stale_timeout_ms
    if given.kind == plain.PRODUCE:
        row.produce.partitions.extend(
            operation_pb2.ProducePartition(
                topic_partition=partition(item), required_offset=item.offset, local_error_code=item.local_error,
                **known(leader_epoch=item.epoch),
            )
            for item in given.items
        )  # fmt: skip
    elif given.kind == plain.FETCH:
        row.fetch.CopyFrom(fetch_row(given))
    elif given.kind == plain.DELETE_RECORDS:
        row.delete_records.partitions.extend(
            operation_pb2.DeleteRecordsPartition(
                topic_partition=partition(item), offset=item.offset, local_error_code=item.local_error
            )
            for item in given.items
        )
    elif given.kind == plain.SIGNAL:
        heartbeat = known(heartbeat_timeout_ms=given.heartbeat_timeout_ms)
        row.signal.CopyFrom(operation_pb2.Signal(any=given.any_key, from_now=given.from_now, **heartbeat))
        row.signal.keys.extend(signal_key(item) for item in given.items)
    else:
        terms = [term(item) for item in given.items]
        count = len(terms) - given.unless_count
        row.composite.CopyFrom(operation_pb2.Composite(terms=terms[:count], unless=terms[count:]))
        if given.required_terms:
            row.composite.required_terms = given.required_terms
    return row


def fetch_row(given: plain.Operation) -> operation_pb2.Fetch:
    parts = [
        operation_pb2.FetchPartition(
            topic_partition=partition(item), fetch_offset=item.offset, throttled=item.throttled,
            partition_max_bytes=item.max_bytes,
            **known(current_leader_epoch=item.epoch, last_fetched_epoch=item.last_epoch),
        )
        for item in given.items
    ]  # fmt: skip
    return operation_pb2.Fetch(
        partitions=parts, min_bytes=given.min_bytes, isolation_level=given.isolation,
        follower_reads=given.follower_reads, **known(replica_id=given.replica_id),
    )  # fmt: skip


def partition(item: plain.Item) -> operation_pb2.TopicPartition:
    return operation_pb2.TopicPartition(topic=item.name[0], partition=item.name[1])


def signal_key(item: plain.Item) -> operation_pb2.SignalKey:
    return operation_pb2.SignalKey(key=item.name[0], required_count=item.offset)


def term(item: plain.Item) -> operation_pb2.Term:
    if item.name[1] < 0:
        return operation_pb2.Term(signal=signal_key(item))
    return operation_pb2.Term(mark=operation_pb2.MarkTerm(topic_partition=partition(item), required_offset=item.offset))


def known(**fields: int) -> Any:  # noqa: ANN401 - fields of a message
    """The fields that are not missing."""
    return {name: value for name, value in fields.items() if value != -1}


def operation_columns(operations: Sequence[plain.Operation], names: Names) -> operation_pb2.OperationColumns:
    """Operations of one kind."""
    batch = operation_batch(names.operations(operations))
    columns = operation_pb2.OperationColumns(
        kind=operations[0].kind,
        partitions=[operation_pb2.TopicPartition(topic=topic, partition=number) for topic, number in batch.partitions],
        keys=batch.keys,
        operation_id=batch.operation_ids,
        timeout_ms=batch.timeouts_ms,
        item_count=batch.item_counts,
        item_index=batch.item_indexes,
    )
    for column in OPERATION_COLUMNS:
        if operations[0].kind in column.kinds:
            getattr(columns, column.wire_name).extend(getattr(batch, column.batch_name))
    return columns


def advance_request(events: Sequence[plain.Event], names: Names, *, as_columns: bool) -> wire.AdvanceRequest:
    """Events as columns if those can express them, or else as rows."""
    if not as_columns or any(event.type not in COLUMN_EVENTS for event in events):
        return wire.AdvanceRequest(rows=event_pb2.EventRows(events=[event_row(event, names) for event in events]))
    return wire.AdvanceRequest(
        columns=event_pb2.EventColumns(
            partitions=[names.partition(event.name) for event in events],
            type=[event.type for event in events],
            item_index=range(len(events)),
            offset=[event.offset for event in events],
            leader_epoch=[event.epoch for event in events],
            replica_id=[event.replica_id for event in events],
            byte_position=[event.position for event in events],
            segment_base_offset=[event.segment for event in events],
            log_start_offset=[event.log_start for event in events],
        )
    )


def event_row(event: plain.Event, names: Names) -> event_pb2.Event:
    if event.type == plain.KEY_SIGNALLED:
        signalled = event_pb2.KeySignalled(
            key=names.prefix + event.name[0], value=value_of(event.value), failed=bool(event.flag),
            **known(count=event.offset),
        )  # fmt: skip
        return event_pb2.Event(key_signalled=signalled)
    row = event_pb2.Event(topic_partition=names.partition(event.name), **known(leader_epoch=event.epoch))
    name, fields = EVENT_ROWS[event.type]
    part = getattr(row, name)
    part.SetInParent()
    for field, wire_name in fields.items():
        value = getattr(event, field)
        if field in LISTS:
            getattr(part, wire_name).extend(value)
        elif value != -1:
            setattr(part, wire_name, value)
    if event.type == plain.LEADERSHIP:
        part.is_leader = bool(event.flag)
    elif event.type == plain.PARTITION_REMOVED:
        part.moved = bool(event.flag)
    elif event.type == plain.REPLICA_STATE:
        part.dead, part.fenced = bool(event.flag & 1), bool(event.flag & 2)
    return row


# Answers.


def ended_of(batch: wire.ResultBatch, names: Names) -> Iterator[plain.Ended]:
    """The results of a message. Refused registrations are not among them: their receipt was printed."""
    if batch.HasField("columns"):
        yield from _ended_of_columns(batch.columns, names)
        return
    for row in batch.rows.results:
        if row.outcome != result_pb2.OUTCOME_REFUSED:
            items = tuple(_item_of(item, names) for item in row.partitions)
            yield plain.Ended(0, row.operation_id, row.kind, row.outcome, row.waited_ms, row.lateness_ms, items)


def _item_of(item: result_pb2.PartitionResult, names: Names) -> plain.EndedItem:
    pace = (-1, -1.0)
    if item.HasField("estimated_remaining_ms"):
        pace = (item.estimated_remaining_ms, item.pace_per_second)
    row = plain.EndedItem(
        names.own(item.topic_partition, item.key),
        item.error_code, item.required_offset, item.reached_offset, item.log_start_offset, *pace,
        value=number_of(item.signal_value),
    )  # fmt: skip
    if not item.HasField("fetched"):
        return row
    read = item.fetched
    diverging = (-1, -1)
    if read.HasField("diverging_end_offset"):
        diverging = (read.diverging_epoch, read.diverging_end_offset)
    return row._replace(
        available_bytes=read.available_bytes, high_watermark=read.high_watermark, last_stable=read.last_stable_offset,
        diverging_epoch=diverging[0], diverging_end=diverging[1],
    )  # fmt: skip


def _ended_of_columns(columns: result_pb2.ResultColumns, names: Names) -> Iterator[plain.Ended]:
    count = len(columns.operation_id)
    rows = _expanded(columns, RESULT_COLUMNS, count)
    item_total = sum(rows.item_count)
    items = _expanded(columns, (*RESULT_ITEM_COLUMNS, *FETCHED_COLUMNS), item_total)
    dictionary = [names.own(one, "") for one in columns.partitions]
    dictionary += [names.own(operation_pb2.TopicPartition(), key) for key in columns.keys]
    indexes = list(columns.item_index) or [0]
    indexes = indexes * item_total if len(indexes) == 1 else indexes
    values = [0, *[number_of(value) for value in columns.signal_values]]
    place = 0
    for row in range(count):
        found = []
        for item in range(place, place + rows.item_count[row]):
            given = [getattr(items, column.name)[item] for column in RESULT_ITEM_COLUMNS]
            read = [getattr(items, column.name)[item] for column in FETCHED_COLUMNS]
            value = values[columns.signal_value_index[item]] if columns.signal_value_index else 0
            read = read if columns.kind == plain.FETCH else [-1] * len(read)
            found.append(plain.EndedItem._make([dictionary[indexes[item]], *given, *read, value]))
        place += rows.item_count[row]
        if rows.outcome[row] != result_pb2.OUTCOME_REFUSED:
            end = (columns.kind, rows.outcome[row], rows.waited_ms[row], rows.lateness_ms[row])
            yield plain.Ended(0, columns.operation_id[row], *end, tuple(found))


def _expanded(columns: result_pb2.ResultColumns, table: Sequence[Any], count: int) -> Any:  # noqa: ANN401 - by name
    """Each column with all of its values: an absent one has the default, and a single value is that of all."""
    found = SimpleNamespace()
    for column in table:
        if column.name != "kind":
            default = column.default if column.type_name == FLOAT64 else int(column.default)
            values = list(getattr(columns, column.name)) or [default]
            setattr(found, column.name, values * count if len(values) == 1 else values)
    return found


def marks_of(partition: wire.Partition) -> plain.PartitionMarks:
    replicas = tuple(
        (one.replica_id, one.log_end_offset, one.log_start_offset, one.in_sync, one.dead, one.fenced)
        for one in sorted(partition.replicas, key=lambda replica: replica.replica_id)
    )
    fields = [name for name in plain.PartitionMarks._fields if name not in {"in_sync", "replicas"}]
    wire_names = {
        "epoch": "leader_epoch", "log_start": "log_start_offset", "last_stable": "last_stable_offset",
        "log_end": "log_end_offset", "min_in_sync": "min_in_sync_replicas", "unchanged": "unchanged_events",
        "stale": "stale_events",
    }  # fmt: skip
    values: dict[str, Any] = {name: getattr(partition, wire_names.get(name, name)) for name in fields}
    return plain.PartitionMarks(**values, in_sync=tuple(sorted(partition.in_sync_replica_ids)), replicas=replicas)
