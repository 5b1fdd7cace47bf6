"""Serialization of ended operations."""

from librt.vecs import append, vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.completions import Completions, FetchedPartition
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter
from purgatory.engine.snapshot.saved_operations import add_names, read_names

__all__ = ["completions_from", "completions_to"]


def completions_to(completions: Completions) -> bytes:
    """Serialize ended operations."""
    writer = ColumnWriter()
    names: dict[AsGiven, int] = {}
    places: vec[i64] = vec[i64]()
    for name in completions.item_partitions:
        places = append(places, i64(names.setdefault(name, len(names))))
    add_names(writer, list(names))
    writer.add(completions.operation_ids)
    writer.add(completions.kinds)
    writer.add(completions.outcomes)
    writer.add(completions.waited_ms)
    writer.add(completions.lateness_ms)
    writer.add(completions.item_counts)
    writer.add(places)
    writer.add(completions.error_codes)
    writer.add(completions.required_offsets)
    writer.add(completions.reached_offsets)
    writer.add(completions.log_start_offsets)
    writer.add(completions.estimated_remaining_ms)
    writer.add_floats(completions.paces_per_second)
    writer.add_list([int(one.available_bytes) for one in completions.fetched])
    writer.add_list([int(one.high_watermark) for one in completions.fetched])
    writer.add_list([int(one.last_stable_offset) for one in completions.fetched])
    writer.add_list([int(one.diverging_epoch) for one in completions.fetched])
    writer.add_list([int(one.diverging_end_offset) for one in completions.fetched])
    # At the end and optional: a reader finds out by `is_done` whether this group follows.
    if completions.stale_marks:
        add_stale_marks(writer, completions)
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


def completions_from(octets: bytes, owner_id: int) -> Completions:
    """Deserialize the output of `completions_to`, as operations of this owner."""
    reader = ColumnReader(octets)
    names = read_names(reader)
    operation_ids = reader.column()
    kinds = reader.column()
    outcomes = reader.column()
    waited_ms = reader.column()
    lateness_ms = reader.column()
    item_counts = reader.column()
    places = reader.column()
    columns = [reader.column() for _ in range(5)]
    paces = reader.floats()
    completions = Completions(owner_id)
    for place in range(len(places)):
        completions.add_item(
            names[places[place]], columns[0][place], columns[1][place], columns[2][place], columns[3][place],
            columns[4][place], paces[place],
        )  # fmt: skip
    for row in range(len(operation_ids)):
        completions.add_operation(
            operation_ids[row], kinds[row], outcomes[row], waited_ms[row], lateness_ms[row], item_counts[row]
        )
    fetched = [reader.column() for _ in range(5)]
    for row in range(len(fetched[0])):
        completions.fetched.append(
            FetchedPartition(fetched[0][row], fetched[1][row], fetched[2][row], fetched[3][row], fetched[4][row])
        )
    if not reader.is_done:
        completions.stale_marks = read_stale_marks(reader)
    # The columns have room to spare until they are trimmed, like those of completions that the engine fills.
    completions.finish()
    return completions
