"""Decoding of registrations, part by part: columns are copied, rows become runs of one kind. Pure functions.

The fields are listed in the engine's table of operation columns. The engine checks the names, values and ids of each
operation. Only errors that cannot be expressed in columns are refused here: a row without a condition, a term without
one, and ids that do not rise from one run to the next.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, PartitionName, Refusal
from purgatory.engine.columns import check_length
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, ITEM, OperationColumn, columns_of
from purgatory.service.errors import invalid_argument, unreadable_batch
from purgatory.service.translate import batch_limits
from purgatory.service.translate.parts import Dictionary, check_count, given_columns, has_columns, items_of, part_of
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

COMPOSITE: Final = codes.KIND_NAMES[codes.COMPOSITE]
CONDITION_KINDS: Final = {name: kind for kind, name in codes.KIND_NAMES.items()}
KINDS_SAID: Final = ", ".join(f"{kind} ({name})" for kind, name in codes.KIND_NAMES.items())
NO_CONDITION: Final = f"is not set: set one of {', '.join(CONDITION_KINDS)}"

OF_ITEMS: Final = {column.wire_name for column in COLUMNS_BY_NAME.values() if column.level == ITEM} | {"item_index"}
OF_OPERATIONS: Final = {column.wire_name for column in COLUMNS_BY_NAME.values() if column.level != ITEM} | {
    "timeout_ms",
    "item_count",
}
BATCH_NAMES: Final = {column.wire_name: column.batch_name for column in COLUMNS_BY_NAME.values()} | {
    "operation_id": "operation_ids",
    "timeout_ms": "timeouts_ms",
    "item_count": "item_counts",
    "item_index": "item_indexes",
    "keys": "keys",
}
"""Attribute of `OperationBatch` for each wire column that is copied unchanged."""

RUN_COST: Final = 10
"""Fixed cost of a run, in rows. If kinds alternate, each row is a run."""


class OperationRun:
    """Consecutive operations of one kind from a batch, in the engine's form.

    `indexes` holds the index of each in the caller's batch (None: they are consecutive, starting at `first`).
    """

    def __init__(self, kind: int, batch: OperationBatch, indexes: list[int] | None = None, first: int = 0) -> None:
        self.kind: Final = kind
        self.batch: Final = batch
        self._indexes: Final = indexes
        self._first: Final = first

    def index_of(self, place: int) -> int:
        """The index in the caller's batch of the operation at `place` in this run."""
        return place + self._first if self._indexes is None else self._indexes[place]


class RegistrationPart(NamedTuple):
    """A part of a batch of registrations: its runs, and the refusals of rows with their operation ids."""

    runs: list[OperationRun]
    refused: list[tuple[Refusal, int]]
    is_last: bool


def registration_parts(batch: wire.RegisterBatch, timeout_ms_default: int) -> Iterator[RegistrationPart]:
    """Split a batch of registrations into parts, each translated on demand.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    if has_columns(batch, "operation_id", "operations", batch_limits.OPERATIONS_MAX):
        return parts_from_columns(batch.columns)
    return parts_from_rows(batch.rows.operations, timeout_ms_default)


def ids_of(batch: wire.RegisterBatch, start: int, stop: int) -> Sequence[int]:
    """The operation ids in a range of a batch that may be unreadable otherwise."""
    if batch.WhichOneof("shape") == "rows":
        return [row.operation_id for row in batch.rows.operations[start:stop]]
    return batch.columns.operation_id[start:stop]


def parts_from_columns(columns: operation_pb2.OperationColumns) -> Iterator[RegistrationPart]:
    """Split a batch of columns into parts of one run each.

    Raises:
        BatchRejected: The batch is unreadable. Raised at once, not by the iterator.
    """
    kind = int(columns.kind)
    if kind not in codes.KINDS:
        raise unreadable_batch("columns.kind", f"must be one of {KINDS_SAID}, not {kind}")
    given, longest = given_columns(columns)
    items = len(columns.item_index)
    if kind == codes.COMPOSITE:
        # Terms may repeat a name, so one index may stand for all items; listeners get an index for each.
        items = items_of(len(columns.operation_id), columns.item_count)
        check_count("columns.item_count", items, batch_limits.ITEMS_MAX, "items")
    if max(items, longest) <= sizes.VALUES_PER_PART:
        return iter([RegistrationPart([_whole_run(kind, given, items)], [], is_last=True)])
    counts: list[int] = columns.item_count[:]
    try:
        _check_lengths(columns, counts)
    except InvalidBatch as error:
        raise unreadable_batch(f"columns.{error.field}", error.message) from None
    return _parts_of_columns(kind, columns, counts)


def _check_lengths(columns: operation_pb2.OperationColumns, counts: list[int]) -> None:
    """The engine's check of lengths, for the whole batch: if it fails, no part must be registered."""
    rows = len(columns.operation_id)
    if rows == 0:
        raise InvalidBatch("operation_id", "is empty; set one id for each operation")
    for field in OF_OPERATIONS:
        check_length(field, len(getattr(columns, field)), rows)
    items = items_of(rows, counts)
    for field in OF_ITEMS:
        check_length(field, len(getattr(columns, field)), items)


def _parts_of_columns(
    kind: int, columns: operation_pb2.OperationColumns, counts: list[int]
) -> Iterator[RegistrationPart]:
    rows = len(columns.operation_id)
    partitions = Dictionary[PartitionName](columns.partitions, lambda name: (name.topic, name.partition))
    keys = Dictionary[str](columns.keys, str)
    are_items_cut = kind == codes.COMPOSITE or any(len(getattr(columns, field)) > 1 for field in OF_ITEMS)
    row = item = 0
    while row < rows:
        stop, item_stop = _cut(counts, rows, row, item, are_items_cut)
        places = part_of(columns.item_index, item, item_stop)
        names: list[PartitionName] = []
        words: list[str] = []
        if kind == codes.SIGNAL:
            words, places = keys.part(places)
        elif kind == codes.COMPOSITE:
            if len(places) <= 1:
                places = (places or [0]) * (item_stop - item)
            names, words, places = _part_of_both(partitions, keys, len(columns.partitions), places)
        else:
            names, places = partitions.part(places)
        batch = OperationBatch(
            columns.operation_id[row:stop],
            partitions=names,
            keys=words,
            timeouts_ms=part_of(columns.timeout_ms, row, stop),
            item_counts=part_of(columns.item_count, row, stop),
            item_indexes=places,
            **{
                column.batch_name: part_of(getattr(columns, column.wire_name), item, item_stop)
                if column.level == ITEM
                else part_of(getattr(columns, column.wire_name), row, stop)
                for column in COLUMNS_BY_NAME.values()
            },
        )
        yield RegistrationPart([OperationRun(kind, batch, first=row)], [], is_last=stop == rows)
        row, item = stop, item_stop


def _part_of_both(
    partitions: Dictionary[PartitionName], keys: Dictionary[str], first_key: int, places: list[int]
) -> tuple[list[PartitionName], list[str], list[int]]:
    """The dictionaries of a part with partitions and keys, which begin at `first_key`, and the part's indexes."""
    names, of_partitions = partitions.part([place for place in places if place < first_key])
    words, of_keys = keys.part([place - first_key for place in places if place >= first_key])
    marks, signals = iter(of_partitions), iter(of_keys)
    return names, words, [next(marks) if place < first_key else len(names) + next(signals) for place in places]


def _cut(counts: list[int], rows: int, row: int, item: int, are_items_cut: bool) -> tuple[int, int]:
    """End of the part that begins at a row and its first item: (row, item). Operations are never split."""
    if not counts:
        stop = min(row + sizes.VALUES_PER_PART, rows)
        return stop, item + stop - row
    if not are_items_cut:
        # All items are the same, so an operation with several is refused at its second one, whatever its count.
        stop = min(row + sizes.VALUES_PER_PART, rows)
        return stop, item
    room = sizes.VALUES_PER_PART
    stop = row
    while stop < rows and stop - row < sizes.VALUES_PER_PART:
        count = counts[stop] if len(counts) > 1 else counts[0]
        if count > room and stop > row:
            break
        room -= count
        item += count
        stop += 1
    return stop, item


def _whole_run(kind: int, given: dict[str, Any], items: int) -> OperationRun:
    copied: dict[str, list[Any]] = {"operation_ids": []}
    for name, values in given.items():
        if name == "partitions":
            copied[name] = [(partition.topic, partition.partition) for partition in values]
        else:
            copied[BATCH_NAMES[name]] = values[:]
    if kind == codes.COMPOSITE and len(given.get("item_index", ())) <= 1:
        copied["item_indexes"] = (copied.get("item_indexes") or [0]) * items
    return OperationRun(kind, OperationBatch(**copied))


def run_from_row(operation: operation_pb2.Operation, operation_id: int, timeout_ms_default: int) -> OperationRun | None:
    """A run of a single row, whose own id is ignored. None: it has no condition.

    Raises:
        RpcError: A term of a composite has no condition.
    """
    condition = operation.WhichOneof("condition")
    if condition is None:
        return None
    if condition == COMPOSITE:
        fault = _term_fault(operation.composite)
        if fault is not None:
            raise invalid_argument(f"operation.{fault.field}", fault.message)
    filling = _row_batch(CONDITION_KINDS[condition], timeout_ms_default)
    filling.add(0, operation_id, operation)
    return filling.finish()


def parts_from_rows(
    operations: Sequence[operation_pb2.Operation], timeout_ms_default: int
) -> Iterator[RegistrationPart]:
    """Convert rows to runs of one kind, in order. Rows that are refused here are returned with their operation ids."""
    runs: list[OperationRun] = []
    refused: list[tuple[Refusal, int]] = []
    filling: _RowBatch | None = None
    highest = cost = 0
    for index, operation in enumerate(operations):
        if cost >= sizes.ROWS_COST_MAX:
            if filling is not None:
                runs.append(filling.finish())
            yield RegistrationPart(runs, refused, is_last=False)
            runs, refused, filling, cost = [], [], None, 0
        cost += 1
        operation_id = operation.operation_id
        condition = operation.WhichOneof("condition")
        if condition is None:
            refused.append((Refusal(index, codes.INVALID_ARGUMENT, "condition", NO_CONDITION), operation_id))
        elif 0 < operation_id <= highest:
            message = f"ids must rise: {operation_id} follows {highest}"
            refused.append((Refusal(index, codes.INVALID_ARGUMENT, "operation_id", message), operation_id))
        elif condition == COMPOSITE and (fault := _term_fault(operation.composite, index)) is not None:
            refused.append((fault, operation_id))
        else:
            kind = CONDITION_KINDS[condition]
            if filling is None or filling.kind != kind:
                if filling is not None:
                    runs.append(filling.finish())
                filling = _row_batch(kind, timeout_ms_default)
                cost += RUN_COST
            cost += filling.add(index, operation_id, operation)
        highest = max(highest, operation_id)
    if filling is not None:
        runs.append(filling.finish())
    yield RegistrationPart(runs, refused, is_last=True)


def _terms_of(composite: operation_pb2.Composite) -> Iterator[tuple[str, operation_pb2.Term]]:
    """Each term of both arms, with its path."""
    for arm, terms in (("terms", composite.terms), ("unless", composite.unless)):
        for place, term in enumerate(terms):
            yield f"composite.{arm}[{place}]", term


def _term_fault(composite: operation_pb2.Composite, index: int = 0) -> Refusal | None:
    """Why a term cannot be expressed in columns: it is empty, or has the number that means the default there."""
    for path, term in _terms_of(composite):
        shape = term.WhichOneof("condition")
        if shape is None:
            return Refusal(index, codes.INVALID_ARGUMENT, path, "is not set: set mark or signal")
        if shape == "mark" and term.mark.required_offset == codes.UNKNOWN:
            message = f"-1 is not in 0..{codes.OFFSET_MAX - 1}"
            return Refusal(index, codes.INVALID_ARGUMENT, f"{path}.mark.required_offset", message)
        if shape == "signal" and term.signal.required_count == codes.UNKNOWN:
            message = f"-1 is not in 1..{codes.OFFSET_MAX - 1}"
            return Refusal(index, codes.INVALID_ARGUMENT, f"{path}.signal.required_count", message)
    return None


class _RowField:
    def __init__(self, column: OperationColumn, message: Any) -> None:  # noqa: ANN401 - a descriptor, of either implementation
        self.name: Final = column.row_name
        self.batch_name: Final = column.batch_name
        self.default: Final = column.default
        self.may_be_absent: Final = message.fields_by_name[column.row_name].has_presence

    def of(self, message: Any) -> Any:  # noqa: ANN401 - any message that has the field
        if self.may_be_absent and not message.HasField(self.name):
            return self.default
        return getattr(message, self.name)


class _OperationShape:
    """The row fields of a kind, from the table of columns and the message descriptors."""

    def __init__(self, kind: int) -> None:
        self.condition: Final = codes.KIND_NAMES[kind]
        self.are_keys: Final = kind == codes.SIGNAL
        self.items: Final = "keys" if self.are_keys else "partitions"
        condition: Any = operation_pb2.Operation.DESCRIPTOR.fields_by_name[self.condition].message_type
        item: Any = condition.fields_by_name[self.items].message_type
        columns = columns_of(kind)
        self.of_condition: Final = [
            _RowField(column, condition) for column in columns if column.level != ITEM and not column.is_of_all_kinds
        ]
        self.of_item: Final = [_RowField(column, item) for column in columns if column.level == ITEM]


ROW_SHAPES: Final = {kind: _OperationShape(kind) for kind in codes.KINDS if kind != codes.COMPOSITE}


class _RowBatch:
    """The columns of the run that is being filled. Every column of the kind has a value for each row, if need be the
    default; columns that all kinds have may be shorter.
    """

    def __init__(self, kind: int, timeout_ms_default: int) -> None:
        self.kind: Final = kind
        self._timeout_ms_default: Final = timeout_ms_default
        self._indexes: Final[list[int]] = []
        self._names: Final[dict[PartitionName, int]] = {}
        """Dictionary of partitions, or of keys as (key, -1)."""
        self._batch: Final = OperationBatch.to_fill()

    def add(self, index: int, operation_id: int, operation: operation_pb2.Operation) -> int:
        """Append a row; return its number of items."""
        timeout_ms = operation.timeout_ms if operation.HasField("timeout_ms") else self._timeout_ms_default
        self._indexes.append(index)
        self._batch.operation_ids.append(operation_id)
        self._batch.timeouts_ms.append(timeout_ms)
        if operation.HasField("stale_timeout_ms"):
            self._fill_up_stale_timeouts()[-1] = operation.stale_timeout_ms
        count = self._add_condition(operation)
        self._batch.item_counts.append(count)
        return count

    def _add_condition(self, operation: operation_pb2.Operation) -> int:
        """Append the values that the kind has; return the number of items."""
        raise NotImplementedError

    def _add_names(self) -> None:
        raise NotImplementedError

    def _fill_up_stale_timeouts(self) -> list[int]:
        """Fill the column up with defaults. Almost no row has a value, so the first one that has starts the column."""
        values = self._batch.stale_timeouts_ms
        values += [codes.UNKNOWN] * (len(self._batch.operation_ids) - len(values))
        return values

    def finish(self) -> OperationRun:
        if self._batch.stale_timeouts_ms:
            self._fill_up_stale_timeouts()
        self._add_names()
        return OperationRun(self.kind, self._batch, self._indexes)


class _ItemRows(_RowBatch):
    """Rows of a kind whose condition is a list of partitions or of keys."""

    def __init__(self, kind: int, timeout_ms_default: int) -> None:
        super().__init__(kind, timeout_ms_default)
        self._shape: Final = ROW_SHAPES[kind]

    def _add_condition(self, operation: operation_pb2.Operation) -> int:
        shape, batch = self._shape, self._batch
        condition = getattr(operation, shape.condition)
        items = getattr(condition, shape.items)
        for field in shape.of_condition:
            getattr(batch, field.batch_name).append(field.of(condition))
        for item in items:
            if shape.are_keys:
                named = (item.key, codes.UNKNOWN)
            else:
                named = (item.topic_partition.topic, item.topic_partition.partition)
            batch.item_indexes.append(self._names.setdefault(named, len(self._names)))
            for field in shape.of_item:
                getattr(batch, field.batch_name).append(field.of(item))
        return len(items)

    def _add_names(self) -> None:
        if self._shape.are_keys:
            self._batch.keys.extend(key for key, _ in self._names)
        else:
            self._batch.partitions.extend(self._names)


class _CompositeRows(_RowBatch):
    """Rows of composites. Until all names are known, the index of a key is stored as its complement (-1 - index)."""

    def __init__(self, timeout_ms_default: int) -> None:
        super().__init__(codes.COMPOSITE, timeout_ms_default)
        self._keys: Final[dict[str, int]] = {}

    def _add_condition(self, operation: operation_pb2.Operation) -> int:
        composite, batch = operation.composite, self._batch
        batch.required_terms.append(composite.required_terms)
        batch.unless_counts.append(len(composite.unless))
        for term in (*composite.terms, *composite.unless):
            if term.WhichOneof("condition") == "mark":
                name = (term.mark.topic_partition.topic, term.mark.topic_partition.partition)
                batch.item_indexes.append(self._names.setdefault(name, len(self._names)))
                batch.offsets.append(term.mark.required_offset)
            else:
                batch.item_indexes.append(~self._keys.setdefault(term.signal.key, len(self._keys)))
                count = term.signal.required_count if term.signal.HasField("required_count") else 1
                batch.offsets.append(count)
        return len(composite.terms) + len(composite.unless)

    def _add_names(self) -> None:
        batch, first_key = self._batch, len(self._names)
        batch.partitions.extend(self._names)
        batch.keys.extend(self._keys)
        batch.item_indexes[:] = [place if place >= 0 else first_key + ~place for place in batch.item_indexes]


def _row_batch(kind: int, timeout_ms_default: int) -> _RowBatch:
    return _CompositeRows(timeout_ms_default) if kind == codes.COMPOSITE else _ItemRows(kind, timeout_ms_default)
