"""The results of one batch as they come in: in which messages they are, and the columns made of them when asked for.

Most columns of most answers are never looked at, so nothing is copied before somebody looks. A batch whose results come
a few at a time would keep a message for each of them; after `PARTS_MAX` of them they are copied after all.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from purgatory_client.results import OPERATION_COLUMNS, item_columns
from purgatory_client.wire.decode_results import ArrivedMessage

PARTS_MAX: Final = 32

_MISSING: Final = {"waited_ms": 0, "lateness_ms": 0, "error_codes": 0, "available_bytes": 0, "paces_per_second": -1.0}
"""What stands where an operation has no result, being refused; -1 in all other columns."""


class ResultSegment(NamedTuple):
    """Results at `places` of a message, with its `items`; they belong to operations from `position`, items from `item`
    on.
    """

    message: ArrivedMessage
    places: tuple[int, int]
    items: tuple[int, int]
    position: int
    item: int


class GatheredResults:
    """What has come of the results of `count` operations with `item_total` items."""

    def __init__(self, kind: int, count: int, item_total: int) -> None:
        self._lengths: Final = {
            **dict.fromkeys(OPERATION_COLUMNS, count),
            **dict.fromkeys(item_columns(kind), item_total),
        }
        self._parts: Final[list[ResultSegment]] = []
        self._copied: Final[dict[str, list[Any]]] = {}

    def add(self, part: ResultSegment) -> None:
        """Some of them have come."""
        self._parts.append(part)
        if len(self._parts) == PARTS_MAX:
            for name in self._lengths:
                self._copied[name] = self.column(name)
            self._parts.clear()

    def column(self, name: str) -> list[Any]:
        """One column of what has come; empty for one that this kind of operation does not have."""
        length = self._lengths.get(name, 0)
        if not length:
            return []
        column = self._copied.get(name) or [_MISSING.get(name, -1)] * length
        each = name in OPERATION_COLUMNS
        for message, places, items, position, item in self._parts:
            values = message.values(name, *(places if each else items))
            start = position if each else item
            column[start : start + len(values)] = values
        return column
