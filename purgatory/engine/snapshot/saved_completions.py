"""Serialization of ended operations."""

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import (
    FETCHED_COLUMNS,
    FLOAT64,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
    FetchedPartition,
)
from purgatory.engine.names import places_of
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter
from purgatory.engine.snapshot.saved_operations import add_names, read_names


def completions_to(completions: Completions) -> bytes:
    """Serialize ended operations."""
    writer = ColumnWriter()
    names: dict[AsGiven, int] = {}
    places = places_of(completions.item_partitions, names)
    add_names(writer, list(names))
    for column in RESULT_COLUMNS:
        writer.add(getattr(completions, column.attribute))
    writer.add(places)
    for column in RESULT_ITEM_COLUMNS:
        if column.type_name == FLOAT64:
            writer.add_floats(getattr(completions, column.attribute))
        else:
            writer.add(getattr(completions, column.attribute))
    for column in FETCHED_COLUMNS:
        writer.add_list([int(getattr(one, column.attribute)) for one in completions.fetched])
    # At the end and optional: a reader finds out by `is_done` whether a group follows. The first is written, if empty,
    # before the second.
    if completions.stale_marks or completions.signal_values:
        add_stale_marks(writer, completions)
    if completions.signal_values:
        add_signal_values(writer, completions)
    return writer.to_bytes()


def add_stale_marks(writer: ColumnWriter, completions: Completions) -> None:
    """Write which marks were stale: their items, for how long and why, with a dictionary of reasons."""
    reasons: dict[str, int] = {}
    stale_ms: list[int] = []
    indexes: list[int] = []
    for one_ms, reason in completions.stale_marks.values():
        stale_ms.append(one_ms)
        indexes.append(reasons.setdefault(reason, len(reasons)))
    writer.add_list(list(completions.stale_marks))
    writer.add_list(stale_ms)
    writer.add_list(indexes)
    writer.add_list([len(reasons)])
    for reason in reasons:
        writer.add_text(reason)


def read_stale_marks(reader: ColumnReader) -> dict[int, tuple[int, str]]:
    """Read the output of `add_stale_marks`."""
    items = reader.column()
    stale_ms = reader.column()
    indexes = reader.column()
    reasons = [reader.text() for _ in range(int(reader.column()[0]))]
    return {int(items[place]): (int(stale_ms[place]), reasons[int(indexes[place])]) for place in range(len(items))}


def add_signal_values(writer: ColumnWriter, completions: Completions) -> None:
    """Write the values of keys: their items, and a dictionary of values."""
    values: dict[bytes, int] = {}
    indexes = [values.setdefault(value, len(values)) for value in completions.signal_values.values()]
    writer.add_list(list(completions.signal_values))
    writer.add_list(indexes)
    writer.add_list([len(values)])
    for value in values:
        writer.add_octets(value)


def read_signal_values(reader: ColumnReader) -> dict[int, bytes]:
    """Read the output of `add_signal_values`."""
    items = reader.column()
    indexes = reader.column()
    values = [reader.octets() for _ in range(int(reader.column()[0]))]
    return {int(items[place]): values[int(indexes[place])] for place in range(len(items))}


def completions_from(octets: bytes, owner_id: int) -> Completions:
    """Deserialize the output of `completions_to`, as operations of this owner."""
    reader = ColumnReader(octets)
    # In the order of `completions_to`: columns have no names in the bytes and are recognised by their position.
    names = read_names(reader)
    completions = Completions(owner_id)
    for column in RESULT_COLUMNS:
        setattr(completions, column.attribute, reader.column())
    places = reader.column()
    for column in RESULT_ITEM_COLUMNS:
        if column.type_name == FLOAT64:
            setattr(completions, column.attribute, reader.floats())
        else:
            setattr(completions, column.attribute, reader.column())
    completions.restore([names[place] for place in places], i64(len(completions.operation_ids)))
    fetched = [reader.column() for _ in FETCHED_COLUMNS]
    for row in range(len(fetched[0])):
        completions.fetched.append(FetchedPartition(*[column[row] for column in fetched]))
    if not reader.is_done:
        completions.stale_marks = read_stale_marks(reader)
    if not reader.is_done:
        completions.signal_values = read_signal_values(reader)
    return completions
