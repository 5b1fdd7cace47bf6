"""Completions as pieces of the archive."""

from __future__ import annotations

from typing import Final

from purgatory.archive.pieces import Registrant
from purgatory.engine.completions import Completions
from purgatory.engine.packed_columns import ColumnWriter, Piece

__all__ = ["FETCH_COLUMNS", "outcome_pieces"]

FETCH_COLUMNS: Final = (
    "available_bytes", "high_watermark", "last_stable_offset", "diverging_epoch", "diverging_end_offset",
)  # fmt: skip
"""Fields of `FetchedPartition`."""


def outcome_pieces(writer: ColumnWriter, registrant: Registrant, completions: Completions) -> list[Piece]:
    """What a call ended of one registrant's, a row for each item."""
    names, paces = writer.add_completions(completions)
    rows = len(completions.item_partitions)
    fetched = [tuple(getattr(part, name) for name in FETCH_COLUMNS) for part in completions.fetched]
    return [Piece(rows, len(completions), registrant, names, writer.take(), paces, fetched)]
