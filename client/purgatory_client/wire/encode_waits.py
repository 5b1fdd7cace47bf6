"""Encodes waits: single waits of one kind or a slice of a `WaitBatch` as columns, one wait as a row.

Values were checked when the waits were created (`argument_checks`, `partition_names`), so nothing is refused here.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

from google.protobuf.message import Message

from purgatory.v1 import operation_pb2 as wire
from purgatory_client.argument_checks import squeeze, take
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.partition_names import PartitionName
from purgatory_client.results import OperationKind
from purgatory_client.waits import ITEM_DEFAULTS, Wait

_OFFSET_FIELDS: Final = {
    OperationKind.PRODUCE: "required_offset",
    OperationKind.FETCH: "fetch_offset",
    OperationKind.DELETE_RECORDS: "offset",
}
"""Names of an item's offset in rows, by kind."""
_FETCH_FIELDS: Final = {"leader_epoch": "current_leader_epoch"}
"""Fields of a fetch row whose names differ from their columns."""
_NEVER_LOST: Final = float("-inf")
_ABSENT_BELOW_0: Final = frozenset(
    ("replica_id", "leader_epoch", "current_leader_epoch", "last_fetched_epoch", "heartbeat_timeout_ms")
)


def fill_with_entry(columns: wire.OperationColumns, entry: Entry) -> None:
    """Encode a wait or a whole batch, which is sent with its whole timeout."""
    if isinstance(entry, WaitBatch):
        fill_with_many(columns, entry, range(entry.count), _NEVER_LOST, 0.0)
    else:
        fill_with_waits(columns, [entry], _NEVER_LOST, 0.0)


def fill_with_waits(columns: wire.OperationColumns, waits: Sequence[Wait], lost_at: float, now: float) -> None:
    """Encode waits of one kind, all with a timeout or all without.

    A wait submitted before a connection was last lost (at `lost_at`, monotonic seconds like `now`) is sent with its
    remaining time: time without a connection counts.
    """
    first = waits[0]
    columns.kind = first.kind.value  # type: ignore[assignment]
    columns.operation_id.extend([wait.operation_id for wait in waits])
    for wait in waits:
        if wait.submitted_at < lost_at:
            wait.waited_before_ms = _elapsed_ms(wait, now)
    if first.timeout_ms is not None:
        columns.timeout_ms.extend(squeeze([_remaining_ms(wait) for wait in waits]))
    counts = squeeze([len(wait.names) for wait in waits])
    if counts != [1]:
        columns.item_count.extend(counts)
    _add_names(columns, waits)
    columns.offset.extend(squeeze([offset for wait in waits for offset in wait.offsets]))
    stale = [-1 if wait.stale_timeout_ms is None else wait.stale_timeout_ms for wait in waits]
    if max(stale) >= 0:
        columns.stale_timeout_ms.extend(squeeze(stale))
    for field in first.operation_columns:
        getattr(columns, field).extend(squeeze([wait.operation_columns[field] for wait in waits]))
    for field in set().union(*(wait.item_columns for wait in waits)):
        default = [ITEM_DEFAULTS[field]]
        values = [wait.item_columns.get(field) or default * len(wait.names) for wait in waits]
        getattr(columns, field).extend(squeeze(list(chain.from_iterable(values))))


def fill_with_many(
    columns: wire.OperationColumns, batch: WaitBatch, positions: Sequence[int], lost_at: float, now: float
) -> None:
    """Encode the operations of a batch at `positions`, which must increase; timeouts as in `fill_with_waits`."""
    items = batch.items_of(positions)
    columns.kind = batch.kind.value  # type: ignore[assignment]
    columns.operation_id.extend(batch.ids_of(positions))
    timeouts_ms = batch.timeouts_ms
    if batch.submitted_at < lost_at:
        elapsed_ms = _elapsed_ms(batch, now)
        batch.note_sent_again(positions[0], elapsed_ms)
        timeouts_ms = [_remaining(timeout_ms, elapsed_ms) for timeout_ms in timeouts_ms]
    columns.timeout_ms.extend(take(timeouts_ms, positions))
    if batch.item_counts:
        columns.item_count.extend([batch.item_counts[position] for position in positions])
    columns.offset.extend(take(batch.offsets, items))
    for field, column in batch.operation_columns.items():
        getattr(columns, field).extend(take(column, positions))
    for field, column in batch.item_columns.items():
        getattr(columns, field).extend(take(column, items))
    indexes = take(batch.indexes, items)
    names = batch.names
    if len(names) > len(items):
        indexes, names = _narrowed(indexes, names)
    columns.item_index.extend(indexes)
    _extend_names(columns, names)


def row_of_wait(wait: Wait) -> wire.Operation:
    """Encode a wait as a row, for the unary call."""
    row = wire.Operation(timeout_ms=wait.timeout_ms)
    if wait.stale_timeout_ms is not None:
        row.stale_timeout_ms = wait.stale_timeout_ms
    if wait.kind == OperationKind.COMPOSITE:
        _fill_composite(row.composite, wait)
        return row
    condition: Any = getattr(row, wait.kind.name.lower())
    for field, option in wait.operation_columns.items():
        _set(condition, field, option)
    for place, (name, offset) in enumerate(zip(wait.names, wait.offsets, strict=True)):
        if isinstance(name, str):
            condition.keys.add(key=name, required_count=offset)
            continue
        item = condition.partitions.add(topic_partition=wire.TopicPartition(topic=name[0], partition=name[1]))
        setattr(item, _OFFSET_FIELDS[wait.kind], offset)
        for field, column in wait.item_columns.items():
            _set(item, _FETCH_FIELDS.get(field, field) if wait.kind == OperationKind.FETCH else field, column[place])
    return row


def _fill_composite(composite: wire.Composite, wait: Wait) -> None:
    composite.required_terms = wait.operation_columns["required_terms"]
    first_failure = len(wait.names) - wait.operation_columns["unless_count"]
    for place, (name, required) in enumerate(zip(wait.names, wait.offsets, strict=True)):
        term = (composite.terms if place < first_failure else composite.unless).add()
        if isinstance(name, str):
            term.signal.key, term.signal.required_count = name, required
        else:
            term.mark.topic_partition.topic, term.mark.topic_partition.partition = name
            term.mark.required_offset = required


def _set(message: Message, field: str, value: int) -> None:
    """Set a field of a row, unless the value means that it is absent."""
    if value >= 0 or field not in _ABSENT_BELOW_0:
        setattr(message, field, value)


def _elapsed_ms(entry: Entry, now: float) -> int:
    return int((now - entry.submitted_at) * 1_000)


def _remaining_ms(wait: Wait) -> int:
    assert wait.timeout_ms is not None, "a wait without a timeout among waits with one"
    return _remaining(wait.timeout_ms, wait.waited_before_ms)


def _remaining(timeout_ms: int, elapsed_ms: int) -> int:
    """The remaining timeout, at least 1 ms because 0 requests an immediate answer. Values of 0 or less are not
    changed.
    """
    return max(1, timeout_ms - elapsed_ms) if timeout_ms > 0 else timeout_ms


def _add_names(columns: wire.OperationColumns, waits: Sequence[Wait]) -> None:
    """Add the dictionary of names, and the index of each item's name in it."""
    places: dict[PartitionName | str, int] = {}
    if waits[0].kind == OperationKind.COMPOSITE:
        # Keys follow partitions.
        names = {name for wait in waits for name in wait.names}
        places = {name: place for place, name in enumerate(sorted(names, key=lambda name: isinstance(name, str)))}
    indexes = [places.setdefault(name, len(places)) for wait in waits for name in wait.names]
    if len(places) > 1:
        columns.item_index.extend(indexes)
    _extend_names(columns, places)


def _extend_names(columns: wire.OperationColumns, names: Iterable[PartitionName | str]) -> None:
    for name in names:
        if isinstance(name, str):
            columns.keys.append(name)
            continue
        topic, partition = name
        columns.partitions.add(topic=topic, partition=partition)


def _narrowed(
    indexes: Sequence[int], names: Sequence[PartitionName | str]
) -> tuple[Sequence[int], Sequence[PartitionName | str]]:
    """Convert the items to use a dictionary of only the names that they refer to, in the same order."""
    places = {index: place for place, index in enumerate(sorted(set(indexes or [0])))}
    return [places[index] for index in indexes or [0]], [names[index] for index in places]
