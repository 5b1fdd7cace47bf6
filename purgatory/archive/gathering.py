"""Pieces of many calls as one, because to make an Arrow array costs microseconds whatever its length.

What is the same for all of a call, and what is absent, is only counted; whole columns are made of all pieces in the
end. No object is made for a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive.arrow_columns import arrow, constant, plain, repeated, worded, words_of
from purgatory.archive.calls import INT32_MAX, Registrant
from purgatory.archive.packing import Chunk, Packer
from purgatory.archive.pieces import INT64, Numbers, Part, Pieces, pieces_in
from purgatory.engine.batches import PartitionName
from purgatory.engine.snapshot.packed_columns import NAMELESS, NO_EXTRA, NOBODYS, Layout

__all__ = ["Gathered"]


class Columns:
    """Columns of the pieces of several chunks."""

    def __init__(self, names: Sequence[str]) -> None:
        self._counts: Final[list[Numbers]] = []
        """Of each chunk: rows of each piece."""
        self._parts: Final[dict[str, list[Part]]] = {name: [] for name in names}

    def add(self, counts: Numbers, columns: Iterable[Part]) -> None:
        """One more chunk of pieces of so many rows: its columns in the order of the names."""
        self._counts.append(counts)
        for parts, part in zip(self._parts.values(), columns, strict=True):
            parts.append(part)

    def column(self, name: str, arrow_type: pa.DataType) -> pa.Array:
        """A column of all pieces. What was not given is null."""
        parts = self._parts[name]
        if all(part.values is None for part in parts):
            return constant(None, arrow_type, sum(int(counts.sum()) for counts in self._counts))
        if all(part.values is not None and not part.whole and part.given is None for part in parts):
            return repeated(np.concatenate([part.values for part in parts]), joined(self._counts), arrow_type)
        whole = [whole_of(part, counts) for part, counts in zip(parts, self._counts, strict=True)]
        mask = None
        if any(part.given is not None or part.values is None for part in parts):
            mask = np.concatenate([absent_in(part, counts) for part, counts in zip(parts, self._counts, strict=True)])
        return arrow(np.concatenate(whole), mask, pa.int64()).cast(arrow_type)

    def clear(self) -> None:
        """Begins anew."""
        self._counts.clear()
        for parts in self._parts.values():
            parts.clear()


def whole_of(part: Part, counts: Numbers) -> Numbers:
    """A value for each row; anything where it is absent."""
    if part.values is None:
        return np.zeros(int(counts.sum()), INT64)
    return part.values if part.whole else np.repeat(part.values, counts)


def absent_in(part: Part, counts: Numbers) -> npt.NDArray[np.bool_]:
    """The rows that have no value."""
    given = np.full(len(counts), part.values is not None) if part.given is None else part.given
    return np.repeat(~given, counts)


def joined(arrays: list[Numbers]) -> Numbers:
    """Several as one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class Names:
    """Topics and partitions (or keys) of rows that point at the names of their chunks."""

    def __init__(self) -> None:
        self._known: Final[dict[PartitionName, int]] = {}
        """All names so far, and their places."""
        self._places: Final = Columns(("place",))

    def add(self, names: list[PartitionName], part: Part, counts: Numbers) -> None:
        """One more chunk: for each row (or piece) its place among the names, or NAMELESS."""
        assert part.values is not None, "a piece without a column of names"
        own = np.full(len(names) + 1, NAMELESS, INT64)  # the last is found at place -1
        known = self._known
        for place in np.flatnonzero(np.bincount(part.values + 1, minlength=1)[1:]).tolist():
            own[place] = known.setdefault(names[place], len(known))
        self._places.add(counts, [part._replace(values=own[part.values])])

    def take(self) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`, emptied; null where rows have no name."""
        places = plain(self._places.column("place", pa.int64()), INT64)
        nameless = places == NAMELESS
        mask = nameless if nameless.any() else None
        words: dict[str, int] = {}
        # Rows without a name find the last of either.
        topics = np.array([*(words.setdefault(topic, len(words)) for topic, _ in self._known), 0], np.int32)
        partitions = np.array([*(partition for _, partition in self._known), 0], INT64).clip(-INT32_MAX, INT32_MAX)
        topic = worded(arrow(topics.take(places), mask, pa.int32()), list(words))
        partition = arrow(partitions.astype(np.int32).take(places), mask, pa.int32())
        self._known.clear()
        self._places.clear()
        return topic, partition


class Calls:
    """The columns that all rows of a call share: those of every table, and whose rows they are, if anybody's."""

    def __init__(self) -> None:
        self._run_ids: Final[list[str]] = []
        """Of each chunk, as the next ones of each piece."""
        self._counts: Final[list[Numbers]] = []
        self._stamps: Final[list[tuple[Numbers, Numbers, Numbers]]] = []
        self._known: Final[dict[Registrant, int]] = {}
        """All registrants so far, and their places."""
        self._places: Final[list[Numbers]] = []

    @property
    def counts(self) -> Numbers:
        """Rows of each piece."""
        return joined(self._counts)

    def add(self, chunk: Chunk, pieces: Pieces) -> None:
        """One more chunk."""
        self._run_ids.append(chunk.run_id)
        self._counts.append(pieces.rows)
        self._stamps.append((pieces.call_numbers, pieces.times_ms, pieces.instants_ms))
        if pieces.registrants[0] != NOBODYS:
            known = self._known
            own = np.array([known.setdefault(Registrant._make(whose), len(known)) for whose in chunk.registrants])
            self._places.append(own[pieces.registrants])

    def take(self) -> dict[str, pa.Array]:
        """The columns by name, emptied."""
        counts = self.counts
        run_rows = np.array([int(rows.sum()) for rows in self._counts], INT64)
        call_numbers, times_ms, instants_ms = (joined(list(each)) for each in zip(*self._stamps, strict=True))
        columns = {
            "run_id": words_of(self._run_ids, run_rows),
            "call_number": repeated(call_numbers, counts, pa.int64()),
            "time_ms": repeated(times_ms, counts, pa.int64()),
            "at": repeated(instants_ms, counts, pa.timestamp("ms", tz="UTC")),
        }
        if self._places:
            numbers, session_ids, principals = zip(*self._known, strict=True)
            places = joined(self._places)
            columns["session_number"] = repeated(np.array(numbers, INT64)[places], counts, pa.int64())
            columns["session_id"] = words_of(session_ids, counts, places)
            columns["principal"] = words_of(principals, counts, places)
        for each in (self._run_ids, self._counts, self._stamps, self._known, self._places):
            each.clear()
        return columns


class Gathered:
    """The pieces of one table, whose columns are laid out so. Its subclasses `take` rows of them."""

    def __init__(self, layout: Layout) -> None:
        self._layout: Final = layout
        self._gathered = 0
        """Rows of the chunks that came."""
        self._calls: Final = Calls()
        self._operations: Final = Columns(layout.of_operations)
        self._rows: Final = Columns(layout.of_rows)
        self._names: Final = Names()
        self._packer: Final = Packer()
        """Of calls that were not packed by somebody else before."""

    @property
    def rows(self) -> int:
        """Gathered so far."""
        return self._gathered + sum(self._packer.rows.values())

    def add(self, chunk: Chunk, numbers: Numbers, starts: Sequence[int]) -> None:
        """The pieces of a chunk, whose numbers these are, that begin there."""
        pieces = Pieces(numbers, starts, self._layout)
        split = 1 + len(self._layout.of_operations)
        self._calls.add(chunk, pieces)
        self._names.add(chunk.names, pieces.part(0, pieces.rows), pieces.rows)
        operations = (pieces.part(column, pieces.operations) for column in range(1, split))
        self._operations.add(pieces.operations, operations)
        rows = (pieces.part(column, pieces.rows) for column in range(split, self._layout.columns))
        self._rows.add(pieces.rows, rows)
        places = pieces.extras.tolist()
        if any(place != NO_EXTRA for place in places):
            first = self._gathered
            for place, count in zip(places, pieces.rows.tolist(), strict=True):
                if place != NO_EXTRA:
                    self._add_extra(chunk.extras[place], first, count)
                first += count
        self._gathered += int(pieces.rows.sum())

    def _add_extra(self, extra: Any, first_row: int, rows: int) -> None:  # noqa: ANN401
        """What a piece has that is no number."""
        raise NotImplementedError

    def _unpack(self) -> None:
        """What was packed here is gathered, too."""
        chunk = self._packer.take()
        numbers = np.frombuffer(chunk.numbers, INT64)
        for starts in pieces_in(numbers).values():
            self.add(chunk, numbers, starts)
        self._packer.clear()

    def clear(self) -> None:
        """Begins anew: all that was gathered has been taken."""
        self._operations.clear()
        self._rows.clear()
        self._gathered = 0
