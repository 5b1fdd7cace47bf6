"""Sizes of batches, and splitting into parts, so that the event loop runs between them.

A part is translated on demand, from ranges of the message's columns. Everything that makes a whole batch unreadable is
checked before the first part, from the lengths of the columns alone.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from purgatory import sizes
from purgatory.engine import codes
from purgatory.service.errors import unreadable_batch
from purgatory.service.translate import batch_limits
from purgatory.v1 import purgatory_service_pb2 as wire

ITEM_ROW_BYTES_MIN: Final = 8
"""Minimum encoded size of a partition or key in a batch of rows."""

Name = TypeVar("Name")
Batch = wire.RegisterBatch | wire.AdvanceRequest | wire.AdvanceStreamRequest


def size_of(batch: wire.RegisterBatch) -> tuple[int, int]:
    """Return the maximum number of operations in a batch, and of their items, before anything is copied."""
    if batch.WhichOneof("shape") == "rows":
        operations = len(batch.rows.operations)
        return operations, max(operations, batch.rows.ByteSize() // ITEM_ROW_BYTES_MIN)
    operations = len(batch.columns.operation_id)
    if batch.columns.kind == codes.COMPOSITE:
        return operations, max(operations, items_of(operations, batch.columns.item_count))
    # An operation cannot name a partition twice, so each item after the first needs an index of its own.
    return operations, max(operations, len(batch.columns.item_index))


def items_of(operations: int, counts: Sequence[int]) -> int:
    """The number of items of all operations, by their column of counts."""
    return operations if not counts else counts[0] * operations if len(counts) == 1 else sum(counts)


def has_columns(batch: Batch, column: str, rows: str, most: int) -> bool:
    """Whether a batch is sent as columns instead of rows. Its field `column` or `rows` may have at most `most` values.

    Raises:
        BatchRejected: It has more, or neither shape.
    """
    shape: str | None = batch.WhichOneof("shape")
    if shape is None:
        raise unreadable_batch("shape", "is not set: set rows or columns")
    field = column if shape == "columns" else rows
    count = len(getattr(getattr(batch, shape), field))
    check_count(f"{shape}.{field}", count, most)
    return shape == "columns"


def check_count(field: str, count: int, most: int, what: str = "values") -> None:
    """Raise `BatchRejected` if a field has more values than `most`."""
    if count > most:
        raise unreadable_batch(field, f"has {count} {what}; at most {most} are allowed in one batch")


def given_columns(columns: Any) -> tuple[dict[str, Any], int]:  # noqa: ANN401 - columns of any message
    """The columns that have values, by name, and the number of values of the longest.

    A batch has four or five of the twenty columns; `ListFields` is faster than checking each of them.

    Raises:
        BatchRejected: A column has more than `ITEMS_MAX` values.
    """
    given = {field.name: values for field, values in columns.ListFields()}
    given.pop("kind", None)
    longest = max(map(len, given.values()), default=0)
    if longest > batch_limits.ITEMS_MAX:
        for name, values in given.items():
            check_count(f"columns.{name}", len(values), batch_limits.ITEMS_MAX)
    return given, longest


def part_of(values: Any, start: int, stop: int) -> list[Any]:  # noqa: ANN401 - a repeated field
    """A copy of a range of a column. If the column has a single value for all rows, that value."""
    part: list[Any] = values[start:stop] if len(values) > 1 else values[:]
    return part


class Dictionary(Generic[Name]):
    """The dictionary of names of a batch that is split into parts.

    A short dictionary is read once and shared by all parts. With a long one, each part gets the names that it uses, and
    their indexes change.
    """

    def __init__(self, names: Sequence[Any], read: Callable[[Any], Name]) -> None:
        self._names: Final = names
        self._read: Final = read
        self._whole: Final = [read(name) for name in names] if len(names) <= sizes.VALUES_PER_PART else None

    def part(self, places: list[int]) -> tuple[list[Name], list[int]]:
        """The dictionary of a part and the indexes into it. Indexes out of range stay out of range."""
        if self._whole is not None:
            return self._whole, places
        used: dict[int, int] = {}
        count = len(self._names)
        moved = [used.setdefault(place, len(used)) if place < count else place for place in places or [0]]
        return [self._read(self._names[place]) for place in used], moved
