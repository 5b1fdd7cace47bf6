"""Gathering columns of several calls before Arrow arrays are made of them: that costs microseconds a column and batch.

What a call brought is kept as it came, by reference: lists of a value for each operation (or item), of one value for
all, or of none. Only `take` walks over values, once for each column, and makes no object for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.archive.schema import NO_PARTITION, SCHEMAS

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "NAMELESS",
    "NO_SESSION",
    "CallStamp",
    "Calls",
    "Column",
    "Names",
    "Registrant",
    "Words",
    "finish",
    "numbers",
]

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
NAMELESS: Final = -(2**62)
"""Place of a row that has no name: it pointed outside its dictionary, and was refused."""


class CallStamp:
    """Which engine call rows belong to. `time_ms` is the engine's clock, `at_ms` wall-clock time since 1970 in UTC."""

    __slots__ = ("at_ms", "call_number", "run_id", "time_ms")

    def __init__(self, run_id: str, call_number: int, time_ms: int, at_ms: int) -> None:
        self.run_id: Final = run_id
        self.call_number: Final = call_number
        self.time_ms: Final = time_ms
        self.at_ms: Final = at_ms


class Registrant:
    """Whose operations rows are about."""

    __slots__ = ("principal", "session_id", "session_number")

    def __init__(self, session_number: int, session_id: str, principal: str = "") -> None:
        self.session_number: Final = session_number
        self.session_id: Final = session_id
        self.principal: Final = principal


NO_SESSION: Final = Registrant(0, "")
"""The registrant of unary waits."""


class Words(dict[str, int]):
    """A growing dictionary of words: looking one up enters it."""

    def __missing__(self, word: str) -> int:
        place = self[word] = len(self)
        return place

    def column(self, places: np.ndarray) -> pa.Array:
        """The dictionary-encoded column of these places; those below 0 are null."""
        mask = places < 0
        indices = pa.array(places, pa.int32(), mask=mask if mask.any() else None)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(self), pa.string()))


class Column:
    """One column as it came: a list for each piece, with a value for each row of the piece, one for all, or none."""

    __slots__ = ("_pieces", "_type")

    def __init__(self, arrow_type: pa.DataType) -> None:
        self._type: Final = arrow_type
        self._pieces: Final[list[Sequence[Any]]] = []

    def add(self, values: Sequence[Any]) -> None:
        """The values of one more piece."""
        self._pieces.append(values)

    def take(self, counts: list[int], rows: int) -> pa.Array:
        """The gathered column, emptied; `counts` are the rows of each piece. What was not given is null."""
        if not any(self._pieces):
            self._pieces.clear()
            return pa.nulls(rows, self._type)
        flat, gaps = self._flat(counts)
        self._pieces.clear()
        if not gaps and flat.count(flat[0]) == rows:
            return pa.repeat(pa.scalar(flat[0], self._type), rows)
        mask = None
        if gaps:
            mask = np.zeros(rows, dtype=bool)
            for start, stop in gaps:
                mask[start:stop] = True
        return pa.array(numbers(flat, self._type), self._type, mask=mask)

    def _flat(self, counts: list[int]) -> tuple[list[Any], list[tuple[int, int]]]:
        """One value for each row, and where none was given."""
        flat: list[Any] = []
        gaps: list[tuple[int, int]] = []
        for values, count in zip(self._pieces, counts, strict=True):
            if len(values) == count:
                flat += values
            elif values:
                flat += list(values) * count
            else:
                gaps.append((len(flat), len(flat) + count))
                flat += [0] * count
        return flat, gaps


def numbers(values: list[Any], arrow_type: pa.DataType) -> np.ndarray:
    """Python numbers as an array of the type that Arrow takes over as it is."""
    return np.fromiter(values, dtype=arrow_type.to_pandas_dtype(), count=len(values))


class Names:
    """Topics and partitions (or keys) of rows: the dictionaries of all pieces one after the other, and places in them.

    The dictionaries are made into one of distinct topics at the end, so a piece costs its own dictionary and no more.
    """

    __slots__ = ("_offset", "_offsets", "_partitions", "_places", "_topics", "_words")

    def __init__(self) -> None:
        self._words = Words()
        self._topics: Final[list[int]] = []
        self._partitions: Final[list[int]] = []
        self._places: Final = Column(pa.int64())
        self._offsets: Final[list[int]] = []
        self._offset = 0

    def add(self, names: Sequence[tuple[str, int]], places: Sequence[int]) -> None:
        """One more piece: its dictionary, and for each row (or for all) the place there, by default the first.

        NAMELESS is the place of a row that names nothing.
        """
        self._topics.extend([self._words[topic] for topic, _ in names])
        self._partitions.extend([partition for _, partition in names])
        self._add_places(places or (0,), len(names))

    def add_keys(self, keys: Sequence[str], places: Sequence[int]) -> None:
        """The same for the keys of signals."""
        self._topics.extend([self._words[key] for key in keys])
        self._partitions.extend([NO_PARTITION] * len(keys))
        self._add_places(places or (0,), len(keys))

    def _add_places(self, places: Sequence[int], names: int) -> None:
        self._places.add(places)
        self._offsets.append(self._offset)
        self._offset += names

    def take(self, counts: list[int], rows: int) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`, emptied."""
        offsets = np.repeat(np.array(self._offsets, dtype=np.int64), counts)
        places = self._places.take(counts, rows).to_numpy(zero_copy_only=False) + offsets
        nameless = places < 0
        places[nameless] = -1  # the last one
        topic = self._words.column(np.array([*self._topics, -1], dtype=np.int32)[places])
        partitions = np.array([*self._partitions, 0], dtype=np.int64)[places]
        partition = pa.array(
            partitions.clip(-INT32_MAX, INT32_MAX), pa.int32(), mask=nameless if nameless.any() else None
        )
        self._words = Words()
        self._topics.clear()
        self._partitions.clear()
        self._offsets.clear()
        self._offset = 0
        return topic, partition


class Calls:
    """The columns that all rows of a call share: those of every table and, with `registrants`, whose rows they are."""

    __slots__ = ("_numbers", "_registrants", "_stamps")

    def __init__(self) -> None:
        self._stamps: Final[list[CallStamp]] = []
        self._registrants: Final[list[Registrant]] = []

    def add(self, stamp: CallStamp, registrant: Registrant | None = None) -> None:
        """One more piece of rows."""
        self._stamps.append(stamp)
        if registrant is not None:
            self._registrants.append(registrant)

    def take(self, counts: list[int]) -> dict[str, pa.Array]:
        """The columns by name, emptied; `counts` are the rows of each piece."""
        stamps, registrants = self._stamps, self._registrants
        columns = {
            "run_id": words_of([stamp.run_id for stamp in stamps], counts),
            "call_number": repeated([stamp.call_number for stamp in stamps], counts),
            "time_ms": repeated([stamp.time_ms for stamp in stamps], counts),
            "at": repeated([stamp.at_ms for stamp in stamps], counts).cast(pa.timestamp("ms", tz="UTC")),
        }
        if registrants:
            columns["session_number"] = repeated([whose.session_number for whose in registrants], counts)
            columns["session_id"] = words_of([whose.session_id for whose in registrants], counts)
            columns["principal"] = words_of([whose.principal for whose in registrants], counts)
        stamps.clear()
        registrants.clear()
        return columns


def repeated(values: list[int], counts: list[int]) -> pa.Array:
    """Each value as often as its count says."""
    return pa.array(np.repeat(np.array(values, dtype=np.int64), counts))


def words_of(values: list[str], counts: list[int]) -> pa.Array:
    """Each word as often as its count says, dictionary-encoded."""
    words = Words()
    places = np.array([words[value] for value in values], dtype=np.int32)
    return words.column(np.repeat(places, counts))


def finish(table: str, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """A table's record batch from its columns by name."""
    schema = SCHEMAS[table]
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
