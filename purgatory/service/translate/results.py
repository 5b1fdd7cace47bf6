"""Encoding of results and refusals, as columns and as rows. Pure functions."""

from array import array
from collections.abc import Sequence
from itertools import compress, repeat
from operator import attrgetter, getitem, ne
from typing import Final, cast

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.completions import (
    FETCHED_COLUMNS,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    FetchedPartition,
    ResultColumn,
)
from purgatory.service.translate.result_slices import SIGNED, UNSIGNED, Results, ResultSlice, shortened, values_of
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2

ABSENT: Final = -1
"""Marks absent values in columns of optional fields on the wire."""

OPERATION_ID: Final = RESULT_COLUMNS[0]
SHORTENED: Final = tuple(column for column in RESULT_COLUMNS if column.name not in ("operation_id", "kind"))
"""Columns with a single value if all are equal; ids are always complete, and a message has one kind."""
SHORTENED_OF: Final = attrgetter(*(column.attribute for column in SHORTENED))
ITEM_COLUMNS_OF: Final = attrgetter(*(column.attribute for column in RESULT_ITEM_COLUMNS))
SINGLE_NAMES: Final = [column.name for column in (*SHORTENED, *RESULT_ITEM_COLUMNS)]
SINGLE_DEFAULTS: Final = [column.default for column in (*SHORTENED, *RESULT_ITEM_COLUMNS)]
ROW_COLUMNS: Final = tuple(column for column in RESULT_COLUMNS if column.name != "item_count")
"""Fields of a result's row."""
ROW_COLUMNS_OF: Final = attrgetter(*(column.attribute for column in ROW_COLUMNS))
ROW_NAMES: Final = [column.name for column in ROW_COLUMNS]
ITEM_NAMES: Final = [column.name for column in RESULT_ITEM_COLUMNS]
ITEM_DEFAULTS: Final = [column.default for column in RESULT_ITEM_COLUMNS]


def operation_refusal(refusal: Refusal, operation_id: int, *, brief: bool = False) -> operation_pb2.OperationRefusal:
    return operation_pb2.OperationRefusal(
        index=refusal.index,
        operation_id=operation_id,
        code=refusal.code,
        field="" if brief else refusal.field,
        message="" if brief else refusal.message,
    )


def operation_refusals(refused: Sequence[tuple[Refusal, int]], before: int = 0) -> list[operation_pb2.OperationRefusal]:
    """Encode refusals of operations in batch order. `before`: the number of refusals already in the receipt."""
    return [
        operation_refusal(refusal, operation_id, brief=place >= sizes.REFUSAL_MESSAGES_MAX)
        for place, (refusal, operation_id) in enumerate(refused, before)
    ]


def event_refusals(refusals: Sequence[Refusal], before: int = 0) -> list[event_pb2.EventRefusal]:
    """Encode refusals of events in batch order. `before`: the number of refusals already in the receipt."""
    return [
        event_pb2.EventRefusal(
            index=refusal.index,
            code=refusal.code,
            error_code=refusal.error_code,
            field=refusal.field if place < sizes.REFUSAL_MESSAGES_MAX else "",
            message=refusal.message if place < sizes.REFUSAL_MESSAGES_MAX else "",
        )
        for place, refusal in enumerate(refusals, before)
    ]


def fill_batch(
    batch: purgatory_service_pb2.ResultBatch, first_sequence: int, slices: Sequence[ResultSlice], *, columns: bool
) -> None:
    """Write consecutive results of one kind into an empty message. Returning a new message would cost a copy."""
    batch.first_sequence = first_sequence
    if columns:
        fill_columns(batch.columns, slices)
    else:
        for part in slices:
            fill_rows(batch.rows.results, part)


def fill_columns(columns: result_pb2.ResultColumns, slices: Sequence[ResultSlice]) -> None:
    """Write results of one kind as columns with one dictionary. A column of equal values is shortened."""
    kind = slices[0].kind
    if len(slices) == 1 and _fill_single(columns, slices[0]):
        return
    assert all(part.kind == kind for part in slices), f"one message has one kind: {[part.kind for part in slices]}"
    columns.kind = cast("operation_pb2.OperationKind", kind)
    operations = [(part.completions, part.start, part.stop) for part in slices]
    items = [(part.completions, part.item_start, part.item_stop) for part in slices]
    _fill(columns, OPERATION_ID, values_of(_joined(OPERATION_ID, operations), UNSIGNED))
    for column in SHORTENED:
        _fill(columns, column, _column(column, operations))
    for column in RESULT_ITEM_COLUMNS:
        _fill(columns, column, _column(column, items))
    _fill_dictionary(columns, slices)
    if kind == codes.FETCH:
        _fill_fetched(columns, slices)
    left_out = [_left_out(part) for part in slices]
    if any(part.completions.stale_marks for part in slices):
        _fill_stale_marks(columns, slices, left_out)
    if any(part.completions.signal_values for part in slices):
        _fill_signal_values(columns, slices, left_out)
    for part in slices:
        for place in range(part.start, part.stop) if part.refusals else ():
            columns.refusals.append(operation_refusal(part.refusals[place], part.completions.operation_ids[place]))


def _fill_single(columns: result_pb2.ResultColumns, part: ResultSlice) -> bool:
    """Write a single result with a single item, as on an idle daemon, value by value. Returns False for others."""
    completions, start, item = part.completions, part.start, part.item_start
    if part.stop - start != 1 or part.item_stop - item != 1 or part.kind == codes.FETCH or part.refusals:
        return False
    if completions.stale_marks or completions.signal_values:
        return False
    columns.kind = cast("operation_pb2.OperationKind", part.kind)
    columns.operation_id.append(completions.operation_ids[start])
    values = [
        *map(getitem, SHORTENED_OF(completions), repeat(start)),
        *map(getitem, ITEM_COLUMNS_OF(completions), repeat(item)),
    ]
    for name, value in compress(zip(SINGLE_NAMES, values, strict=True), map(ne, values, SINGLE_DEFAULTS)):
        getattr(columns, name).append(value)
    _add_name(columns, *completions.item_partitions[item])
    return True


def _column(column: ResultColumn, spans: Sequence[tuple[Results, int, int]]) -> list[int] | list[float]:
    """A column as the wire has it. A single value is read; many are compared as bytes."""
    completions, start, stop = spans[0]
    if len(spans) == 1 and stop - start == 1:
        value = getattr(completions, column.attribute)[start]
        return [] if value == column.default else [value]
    return shortened(_joined(column, spans), column.form, column.default)


def _joined(column: ResultColumn, spans: Sequence[tuple[Results, int, int]]) -> bytes:
    """The bytes of a column over several slices of completions."""
    return b"".join([getattr(completions, column.attribute)[start:stop] for completions, start, stop in spans])


def _fill(columns: result_pb2.ResultColumns, column: ResultColumn, values: list[int] | list[float]) -> None:
    if values:
        getattr(columns, column.name).extend(values)


def _fill_dictionary(columns: result_pb2.ResultColumns, slices: Sequence[ResultSlice]) -> None:
    places: dict[tuple[str, int], int] = {}
    indexes: list[int] = []
    if columns.kind == codes.COMPOSITE:
        names = [name for part in slices for name in part.completions.item_partitions[part.item_start : part.item_stop]]
        # Partitions come before keys: (key, -1).
        places = {name: place for place, name in enumerate(sorted(set(names), key=lambda name: name[1] < 0))}
    for part in slices:
        names = part.completions.item_partitions[part.item_start : part.item_stop]
        if names and names.count(names[0]) == len(names):
            indexes += [places.setdefault(names[0], len(places))] * len(names)
        else:
            indexes += [places.setdefault(name, len(places)) for name in names]
    if len(places) > 1:
        columns.item_index.extend(indexes)
    for name in places:
        _add_name(columns, *name)


def _add_name(columns: result_pb2.ResultColumns, name: str, partition: int) -> None:
    if partition < 0:
        columns.keys.append(name)
    else:
        columns.partitions.add(topic=name, partition=partition)


def _fill_fetched(columns: result_pb2.ResultColumns, slices: Sequence[ResultSlice]) -> None:
    fetched: list[FetchedPartition] = []
    for part in slices:
        stop = part.fetched_start + part.item_stop - part.item_start
        fetched += part.completions.fetched[part.fetched_start : stop]
    for column in FETCHED_COLUMNS:
        values = array(SIGNED, [getattr(one, column.attribute) for one in fetched])
        _fill(columns, column, shortened(values.tobytes(), SIGNED, column.default))


def full_at(completions: Results, item: int, stop: int) -> int:
    """Return the first of the items `item` to `stop` of a result whose value and stale reason no longer fit into a
    message; `stop`: all fit. The same for rows and columns: how a result is read must not change it.
    """
    values, stale = completions.signal_values, completions.stale_marks
    if stop - item < sizes.FULL_ITEMS_MIN or not (values or stale):
        return stop
    room = sizes.MESSAGE_BYTES_MAX - sizes.ITEM_BYTES_MAX
    room -= sum(sizes.ITEM_BYTES_MAX + len(name.encode()) for name, _ in completions.item_partitions[item:stop])
    for place in range(item, stop):
        if place in values:
            room -= len(values[place])
        if place in stale:
            room -= len(stale[place][1].encode())
        if room < 0:
            return place
    return stop


def _left_out(part: ResultSlice) -> set[int]:
    """The items of a slice whose values and stale reasons are left out."""
    item, found = part.item_start, set[int]()
    if part.item_stop - item >= sizes.FULL_ITEMS_MIN and (
        part.completions.signal_values or part.completions.stale_marks
    ):
        for count in part.completions.item_counts[part.start : part.stop]:
            found.update(range(full_at(part.completions, item, item + count), item + count))
            item += count
    return found


def _fill_stale_marks(
    columns: result_pb2.ResultColumns, slices: Sequence[ResultSlice], left_out: Sequence[set[int]]
) -> None:
    reasons: dict[str, int] = {}
    stale_ms: list[int] = []
    indexes: list[int] = []
    for part, without in zip(slices, left_out, strict=True):
        for item in range(part.item_start, part.item_stop):
            one_ms, reason = part.completions.stale_marks.get(item, (ABSENT, ""))
            if item in without:
                reason = ""
            stale_ms.append(one_ms)
            indexes.append(reasons.setdefault(reason, len(reasons)) if one_ms != ABSENT else 0)
    if not reasons:
        return
    columns.stale_ms.extend(stale_ms)
    columns.stale_reasons.extend(reasons)
    if len(reasons) > 1:
        columns.stale_reason_index.extend(indexes)


def _fill_signal_values(
    columns: result_pb2.ResultColumns, slices: Sequence[ResultSlice], left_out: Sequence[set[int]]
) -> None:
    values: dict[bytes, int] = {}
    indexes: list[int] = []
    flags: list[bool] = []
    for part, without in zip(slices, left_out, strict=True):
        own = part.completions.signal_values
        indexes += [
            values.setdefault(own[item], len(values) + 1) if item in own and item not in without else 0
            for item in range(part.item_start, part.item_stop)
        ]
        flags += [item in own and item in without for item in range(part.item_start, part.item_stop)]
    if any(flags):
        columns.signal_value_left_out.extend(flags)
    if values:
        columns.signal_value_index.extend(indexes[:1] if indexes.count(indexes[0]) == len(indexes) else indexes)
        columns.signal_values.extend(values)


def fill_rows(rows: RepeatedCompositeFieldContainer[result_pb2.Result], part: ResultSlice) -> None:
    item, fetched = part.item_start, part.fetched_start
    for place in range(part.start, part.stop):
        fill_row(rows.add(), part, place, item, fetched)
        count = part.completions.item_counts[place]
        item += count
        fetched += count


def fill_row(row: result_pb2.Result, part: ResultSlice, place: int, item: int, fetched: int) -> None:
    """Write one result into an empty message. Its items start at `item`, and those of a fetch at `fetched`."""
    completions, kind = part.completions, part.kind
    # Zeros are left out: fields of a new message are 0 already.
    values = [*map(getitem, ROW_COLUMNS_OF(completions), repeat(place))]
    for name, value in compress(zip(ROW_NAMES, values, strict=True), values):
        setattr(row, name, value)
    stop = item + completions.item_counts[place]
    full = full_at(completions, item, stop)
    for number, one in enumerate(range(item, stop)):
        partition = row.partitions.add()
        fill_partition(partition, completions, one)
        if kind == codes.FETCH:
            _fill_fetched_partition(partition.fetched, completions.fetched[fetched + number])
        if one >= full:
            partition.stale_reason = ""
            partition.signal_value_left_out = one in completions.signal_values
        elif one in completions.signal_values:
            partition.signal_value = completions.signal_values[one]
    if part.refusals:
        row.refusal.CopyFrom(operation_refusal(part.refusals[place], row.operation_id))


def fill_partition(partition: result_pb2.PartitionResult, completions: Results, item: int) -> None:
    """Write the result of one partition or key into an empty message."""
    name, number = completions.item_partitions[item]
    if number < 0:
        partition.key = name
    else:
        named = partition.topic_partition
        named.topic, named.partition = name, number
    values = [*map(getitem, ITEM_COLUMNS_OF(completions), repeat(item))]
    for column, value in compress(zip(ITEM_NAMES, values, strict=True), map(ne, values, ITEM_DEFAULTS)):
        setattr(partition, column, value)
    if item in completions.stale_marks:
        partition.stale_ms, partition.stale_reason = completions.stale_marks[item]


def _fill_fetched_partition(message: result_pb2.FetchedPartition, fetched: FetchedPartition) -> None:
    has_diverged = fetched.diverging_epoch >= 0 or fetched.diverging_end_offset >= 0
    for column in FETCHED_COLUMNS:
        if has_diverged or column.default == 0:
            setattr(message, column.name, getattr(fetched, column.attribute))


def topic_partition(name: tuple[str, int]) -> operation_pb2.TopicPartition:
    return operation_pb2.TopicPartition(topic=name[0], partition=name[1])
