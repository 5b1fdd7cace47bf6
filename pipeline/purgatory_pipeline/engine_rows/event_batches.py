"""Chunks of events as batches of the engine."""

from collections.abc import Sequence
from typing import Any, Final

from purgatory.engine.batches import EventBatch, ReplicaSets
from purgatory.extensions.archive.schema import EVENTS
from purgatory_pipeline.engine_rows.registered_operations import listed
from purgatory_pipeline.engine_rows.row_chunk import DEFAULTS, RowChunk

COLUMNS: Final = {
    name: name if name == "flags" else f"{name}s" for name in DEFAULTS[EVENTS] if name not in ("row", "copy")
}
"""Columns of a chunk, and their names in an `EventBatch`."""


def event_batch(chunk: RowChunk) -> EventBatch:
    """Events as the engine takes them."""
    columns = chunk.columns
    sets: list[ReplicaSets | None] = []
    if chunk.details:
        sets = [None] * len(chunk)
        for row, detail in zip(chunk.detail_rows.tolist(), chunk.details, strict=True):
            sets[row] = replica_sets(detail)
    given = {field: listed(columns[name], None) for name, field in COLUMNS.items() if name in columns}
    return EventBatch(
        columns["type"].tolist(),
        partitions=chunk.names,
        keys=[topic for topic, _ in chunk.names],
        item_indexes=listed(columns["name"], None),
        replica_sets=sets,
        **given,
    )


def replica_sets(detail: Sequence[Any]) -> ReplicaSets | None:
    """The replica sets of an event, in the order of `arrow_chunks.SETS`; None if it has none.

    Archives have all lists of such an event, rows of a stream those that were given.
    """
    replicas, in_sync, proposed, leader_id, minimum = detail
    if all(value is None for value in detail):
        return None
    return ReplicaSets(
        replicas=replicas or [],
        in_sync=in_sync or [],
        proposed=proposed or [],
        leader_id=-1 if leader_id is None else leader_id,
        min_in_sync_replicas=-1 if minimum is None else minimum,
    )
