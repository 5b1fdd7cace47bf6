"""Batches of events, and what they did, as pieces of the archive."""

from __future__ import annotations

from typing import Final

from purgatory.archive.pieces import keys_as_names
from purgatory.archive.words import ACCEPTED
from purgatory.engine.batches import EventBatch, EventsReceipt, PartitionName
from purgatory.engine.codes import EVENT_NAMES, KEY_SIGNALLED
from purgatory.engine.columns import value_at
from purgatory.engine.packed_columns import NAMELESS, ColumnWriter, Piece

__all__ = ["SETS", "event_pieces"]

SETS: Final = ("replicas", "in_sync", "proposed", "leader_id", "min_in_sync_replicas")
"""Fields of `ReplicaSets`."""


def event_pieces(writer: ColumnWriter, batch: EventBatch, start: int, receipt: EventsReceipt) -> list[Piece]:
    """The events from `start` to `receipt.next_index`, a row each, and what they did."""
    stop = receipt.next_index
    types, codes = batch.types[start:stop], [ACCEPTED]
    if receipt.refusals:
        code_of = {refusal.index: refusal.code for refusal in receipt.refusals}
        codes = [code_of.get(row, ACCEPTED) for row in range(start, stop)]
        types = [event_type if event_type in EVENT_NAMES else 0 for event_type in types]
    names, places = _names(batch, types, start, receipt)
    writer.add_events(places, types, codes, batch, start, receipt)
    sets = [
        None if given is None else tuple(getattr(given, name) for name in SETS)
        for given in batch.replica_sets[start:stop]
    ]
    return [Piece(stop - start, 0, None, names, writer.take(), sets=sets)]


def _names(
    batch: EventBatch, types: list[int], start: int, receipt: EventsReceipt
) -> tuple[list[PartitionName], list[int]]:
    """The dictionary of partitions and that of keys as one; where an event points outside its own, no name."""
    stop = receipt.next_index
    if not receipt.refusals and not batch.keys:
        return batch.partitions, _sliced(batch.item_indexes, start, stop)
    partitions = len(batch.partitions)
    places: list[int] = []
    for row, event_type in enumerate(types, start):
        place = value_at(batch.item_indexes, row, 0)
        first, length = (partitions, len(batch.keys)) if event_type == KEY_SIGNALLED else (0, partitions)
        places.append(first + place if 0 <= place < length else NAMELESS)
    return [*batch.partitions, *keys_as_names(batch.keys)], places


def _sliced(values: list[int], start: int, stop: int) -> list[int]:
    """The values of some rows of a column, which may also have one for all, or none."""
    return values[start:stop] if len(values) > 1 else values
