"""The results of one batch as they arrive, and the columns made of them on demand.

Most columns of most answers are never read, so values stay in their messages until somebody asks for a column. A batch
whose results come a few at a time would hold on to many messages: after `SEGMENTS_MAX` of them values are copied.
"""

from typing import Any, Final, NamedTuple

from purgatory_client.results import OPERATION_COLUMNS, item_columns
from purgatory_client.wire.decode_results import ArrivedMessage

SEGMENTS_MAX: Final = 32

_MISSING: Final = {"waited_ms": 0, "lateness_ms": 0, "error_codes": 0, "available_bytes": 0, "paces_per_second": -1.0}
"""What stands where an operation has no result, being refused; -1 in all other columns."""


class ResultSegment(NamedTuple):
    """Results at `places` of a message, with its `items` (both from, to). They belong to the operations of the batch
    from `position` on, and to its items from `item` on.
    """

    message: ArrivedMessage
    places: tuple[int, int]
    items: tuple[int, int]
    position: int
    item: int


class GatheredResults:
    """The results so far of a batch of `count` operations with `item_total` items."""

    def __init__(self, kind: int, count: int, item_total: int) -> None:
        self._lengths: Final = {
            **dict.fromkeys(OPERATION_COLUMNS, count),
            **dict.fromkeys(item_columns(kind), item_total),
        }
        self._segments: Final[list[ResultSegment]] = []
        self._copied: Final[dict[str, list[Any]]] = {}

    def add(self, segment: ResultSegment) -> None:
        self._segments.append(segment)
        if len(self._segments) == SEGMENTS_MAX:
            for name in self._lengths:
                self._copied[name] = self.column(name)
            self._segments.clear()

    def column(self, name: str) -> list[Any]:
        """One column, as far as results have arrived; empty for one that this kind of operation does not have."""
        length = self._lengths.get(name, 0)
        if not length:
            return []
        column = self._copied.get(name) or [_MISSING.get(name, -1)] * length
        each = name in OPERATION_COLUMNS
        for message, places, items, position, item in self._segments:
            values = message.values(name, *(places if each else items))
            start = position if each else item
            column[start : start + len(values)] = values
        return column
