"""Engine calls as plain data, on their way from the daemon to the process that keeps its archive. Needs no Arrow.

A piece is what one call adds to one table: columns as they came, packed but not spread out. To make one costs the
daemon's event loop a nanosecond or two for each value; what rows and files cost is paid elsewhere.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from purgatory.archive.words import NO_PARTITION
from purgatory.engine.batches import PartitionName
from purgatory.engine.packed_columns import Piece

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "NO_SESSION",
    "Call",
    "CallStamp",
    "Part",
    "Piece",
    "Registrant",
    "Row",
    "call_values",
    "keys_as_names",
    "marker_values",
    "rows_of",
]

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1

Row = dict[str, Any]


class CallStamp(NamedTuple):
    """Which engine call rows belong to. `time_ms` is the engine's clock, `at_ms` wall-clock time since 1970 in UTC."""

    run_id: str
    call_number: int
    time_ms: int
    at_ms: int


class Registrant(NamedTuple):
    """Whose operations rows are about."""

    session_number: int
    session_id: str
    principal: str = ""


NO_SESSION: Final = Registrant(0, "")
"""The registrant of unary waits."""


Part = tuple[str, Piece | Row]
"""What a call adds to a table: its name and a piece, or (to calls and markers) a row without its stamp."""


class Call(NamedTuple):
    """One engine call, with all that it changed."""

    stamp: CallStamp
    parts: list[Part]
    taken: int = 0
    """To be given back to the `ColumnWriter` of its pieces."""

    def rows(self) -> dict[str, int]:
        """How many rows it makes, by table."""
        rows: dict[str, int] = {}
        for table, content in self.parts:
            rows[table] = rows.get(table, 0) + rows_of(content)
        return rows

    def flat(self) -> tuple[Any, ...]:
        """As tuples of plain data, which are sent at a fraction of the cost."""
        return tuple(self.stamp), [(table, flat_content(content)) for table, content in self.parts]

    @classmethod
    def of(cls, flat: tuple[Any, ...]) -> Call:
        """The way back."""
        stamp, parts = flat
        return cls(CallStamp._make(stamp), [(table, whole_content(content)) for table, content in parts])


def rows_of(content: Piece | Row) -> int:
    """How many rows it makes."""
    return 1 if isinstance(content, dict) else content.rows


def flat_content(content: Piece | Row) -> tuple[Any, ...] | Row:
    """A piece as plain data; a row is."""
    if isinstance(content, dict):
        return content
    columns = pickle.PickleBuffer(content.columns)
    whose = content.registrant and tuple(content.registrant)
    others = (content.paces, content.fetched, content.sets)
    return content.rows, content.operations, whose, content.names, columns, *others


def whole_content(content: tuple[Any, ...] | Row) -> Piece | Row:
    """The way back."""
    if isinstance(content, dict):
        return content
    rows, operations, whose, *others = content
    return Piece(rows, operations, whose and Registrant._make(whose), *others)


def keys_as_names(keys: Sequence[str]) -> list[PartitionName]:
    """Keys of signals as the archive names them."""
    return [(key, NO_PARTITION) for key in keys]


def call_values(
    call: str,
    *,
    session_number: int | None = None,
    operation_ids: Sequence[int] | None = None,
    topic: str | None = None,
    partition: int | None = None,
    ended: int,
) -> Row:
    """The columns of one of `words.CALL_NAMES` that are its own.

    For CANCEL_KEY the topic is the key and the partition NO_PARTITION.
    """
    return {
        "call": call,
        "session_number": session_number,
        "operation_ids": None if operation_ids is None else [min(value, INT64_MAX) for value in operation_ids],
        "topic": topic,
        "partition": partition,
        "ended": ended,
    }


def marker_values(
    marker: str,
    *,
    table: str | None = None,
    rows: int | None = None,
    last_call_number: int | None = None,
    detail: str | None = None,
) -> Row:
    """The columns of one of `words.MARKER_NAMES` that are its own."""
    return {"marker": marker, "table": table, "rows": rows, "last_call_number": last_call_number, "detail": detail}
