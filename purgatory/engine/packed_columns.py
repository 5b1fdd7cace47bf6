"""Columns packed into one array of numbers, for whoever keeps them: the archive.

The engine itself needs none of it. It is here because it looks at each value, and what is here is compiled.
"""

from __future__ import annotations

from typing import Any, Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, EventBatch, EventsReceipt, OperationBatch
from purgatory.engine.codes import DELETE_RECORDS, FETCH, PRODUCE, SIGNAL
from purgatory.engine.completions import Completions

__all__ = ["COMPLETION_COLUMNS", "EVENT_COLUMNS", "NAMELESS", "REGISTRATION_COLUMNS", "ColumnWriter", "Layout", "Piece"]


class Layout:
    """Names of columns in the order in which they are written, after the first: of each row, its place among names."""

    def __init__(self, of_operations: tuple[str, ...], of_rows: tuple[str, ...]) -> None:
        self.of_operations: Final = of_operations
        self.of_rows: Final = of_rows
        self.columns: Final[i64] = 1 + len(of_operations) + len(of_rows)


REGISTRATION_COLUMNS: Final = Layout(
    (
        "operation_id", "timeout_ms", "refusal_code", "item_count", "rows_each", "min_bytes", "replica_id",
        "isolation_level", "follower_reads", "any_key", "from_now",
    ),
    (
        "kind", "offset", "local_error_code", "leader_epoch", "partition_max_bytes", "last_fetched_epoch", "throttled",
    ),
)  # fmt: skip
"""`rows_each`: rows that an operation has, which are its items; but one where they cannot be read."""

COMPLETION_COLUMNS: Final = Layout(
    ("operation_id", "kind", "outcome", "waited_ms", "lateness_ms", "item_count"),
    ("error_code", "required_offset", "reached_offset", "log_start_offset", "estimated_remaining_ms"),
)
EVENT_COLUMNS: Final = Layout(
    (),
    (
        "type", "refusal_code", "ended", "offset", "leader_epoch", "replica_id", "byte_position",
        "segment_base_offset", "log_start_offset", "flags",
    ),
)  # fmt: skip


class Piece:
    """Rows of one table that one call makes, as plain data."""

    def __init__(
        self,
        rows: int,
        operations: int,
        registrant: Any,  # noqa: ANN401 - plain data, as the next ones
        names: list[AsGiven],
        columns: Any,  # noqa: ANN401
        paces: bytes = b"",
        fetched: Any = (),  # noqa: ANN401
        sets: Any = (),  # noqa: ANN401
    ) -> None:
        self.rows: Final = rows
        self.operations: Final = operations
        """That the rows are of; 0: of none."""
        self.registrant: Final = registrant
        """Whose operations they are; None: nobody's."""
        self.names: Final = names
        """A dictionary of topics and partitions, or of keys."""
        self.columns: Final = columns
        """The buffer that a `ColumnWriter` gave."""
        self.paces: Final = paces
        """Of outcomes: packed floating-point numbers, -1.0 where absent; empty: all are."""
        self.fetched: Final = fetched
        """Of outcomes: what each row of a fetch would read, as tuples."""
        self.sets: Final = sets
        """Of events: the replica sets of each row, as tuples or None; empty: none has any."""


RING: Final[i64] = 131_072
"""Numbers that may be written and not be given back."""

NAMELESS: Final = -1
"""Place of a row that has no name: it pointed outside its dictionary, and was refused."""
ZERO: Final = [0]
ONE: Final = [1]
NOTHING: Final[list[int]] = []
NO_FLAGS: Final[list[bool]] = []


class ColumnWriter:
    """Writes the columns of a piece: how many values each has, and then the values, one column after the other.

    A column has a value for each row; or one, which is that of all; or none. What is written goes round in a ring of
    memory, because fresh memory would cost several times as much as to write into it. So whoever is done with what it
    took gives it back (`give_back`), in the order in which it was taken. That may be another thread.
    """

    def __init__(self, ring: i64 = RING) -> None:
        self._ring: Final = vec[i64]([0] * ring)
        self._numbers: vec[i64] = self._ring
        """The ring, or a block beside it when there was no room left."""
        self._start: i64 = 0
        """Where in it begins what was written and not taken, and where it ends."""
        self._end: i64 = 0
        self._column_number: i64 = 0
        """Of the column that is written next."""
        self._taken: i64 = 0
        """Numbers of the ring that were ever taken, with those passed over at its end; and of these, given back."""
        self._given_back: i64 = 0

    @property
    def taken(self) -> int:
        """How much was ever taken: to be given back when all of it is done with."""
        return self._taken

    def give_back(self, taken: int) -> None:
        """All that was taken when `taken` said this will not be looked at any more."""
        self._given_back = max(self._given_back, taken)

    def add_operations(
        self, kind: i64, batch: OperationBatch, codes: list[int], timeout_ms_default: i64, *, bare: bool
    ) -> None:
        """A batch of operations as REGISTRATION_COLUMNS; what the kind does not have is left out.

        `codes` are those of refusals; `bare`: without the items. Raises OverflowError (or ValueError) for what is no
        64-bit number.
        """
        counts = batch.item_counts or ONE
        self._begin(REGISTRATION_COLUMNS)
        if bare:
            self._one(NAMELESS)
        else:
            self._list(batch.item_indexes)
        self._list(batch.operation_ids)
        if batch.timeouts_ms:
            self._list(batch.timeouts_ms)
        else:
            self._one(timeout_ms_default)
        self._list(codes or ZERO)
        self._list(counts)
        self._list(ONE if bare else counts)
        is_fetch, is_signal = kind == FETCH, kind == SIGNAL
        self._list(batch.min_bytes if is_fetch else NOTHING)
        self._list(batch.replica_ids if is_fetch else NOTHING)
        self._list(batch.isolation_levels if is_fetch else NOTHING)
        self._flags(batch.follower_reads if is_fetch else NO_FLAGS)
        self._flags(batch.any_key if is_signal else NO_FLAGS)
        self._flags(batch.from_now if is_signal else NO_FLAGS)
        self._one(kind)
        has_code = kind in (PRODUCE, DELETE_RECORDS)
        has_epoch = kind == PRODUCE or is_fetch
        self._list(NOTHING if bare else batch.offsets)
        self._list(batch.local_error_codes if has_code and not bare else NOTHING)
        self._list(batch.leader_epochs if has_epoch and not bare else NOTHING)
        self._list(batch.partition_max_bytes if is_fetch and not bare else NOTHING)
        self._list(batch.last_fetched_epochs if is_fetch and not bare else NOTHING)
        self._flags(batch.throttled if is_fetch and not bare else NO_FLAGS)

    def add_events(
        self,
        places: list[int],
        types: list[int],
        codes: list[int],
        batch: EventBatch,
        start: i64,
        receipt: EventsReceipt,
    ) -> None:
        """A slice of a batch of events as EVENT_COLUMNS; `codes` are those of refusals."""
        stop: i64 = receipt.next_index
        self._begin(EVENT_COLUMNS)
        self._list(places)
        self._list(types)
        self._list(codes)
        self._list(receipt.ended)
        self._slice(batch.offsets, start, stop)
        self._slice(batch.leader_epochs, start, stop)
        self._slice(batch.replica_ids, start, stop)
        self._slice(batch.byte_positions, start, stop)
        self._slice(batch.segment_base_offsets, start, stop)
        self._slice(batch.log_start_offsets, start, stop)
        self._slice(batch.flags, start, stop)

    def add_completions(self, completions: Completions) -> tuple[list[AsGiven], bytes]:
        """Completions as COMPLETION_COLUMNS, and the dictionary that the places point into.

        Paces are no whole numbers: they are returned, packed as they are; empty where all are absent.
        """
        self._begin(COMPLETION_COLUMNS)
        names = self._names(completions.item_partitions)
        self._vector(completions.operation_ids)
        self._vector(completions.kinds)
        self._vector(completions.outcomes)
        self._vector(completions.waited_ms)
        self._vector(completions.lateness_ms)
        self._vector(completions.item_counts)
        self._vector(completions.error_codes)
        self._vector(completions.required_offsets)
        self._vector(completions.reached_offsets)
        self._vector(completions.log_start_offsets)
        self._vector(completions.estimated_remaining_ms)
        paces = completions.paces_per_second
        for index in range(len(paces)):
            if paces[index] >= 0.0:
                return names, bytes(paces)
        return names, b""

    def _one(self, value: i64) -> None:
        """A column of one value for all."""
        place = self._column(1)
        self._numbers[place] = value
        self._end = place + 1

    def _list(self, values: list[int]) -> None:
        """A column as it was given."""
        count: i64 = len(values)
        place = self._column(count)
        numbers = self._numbers
        for value in values:
            numbers[place] = value
            place += 1
        self._end = place

    def _flags(self, values: list[bool]) -> None:
        """A column of flags."""
        count: i64 = len(values)
        place = self._column(count)
        numbers = self._numbers
        for value in values:
            numbers[place] = 1 if value else 0
            place += 1
        self._end = place

    def _slice(self, values: list[int], start: i64, stop: i64) -> None:
        """A part of a column that has a value for each row; of others all."""
        if len(values) <= 1 or (start == 0 and stop == i64(len(values))):
            self._list(values)
        else:
            self._list(values[start:stop])

    def _names(self, names: list[AsGiven]) -> list[AsGiven]:
        """A column of each row's place in a dictionary of names, which is returned: neighbours are mostly the same."""
        known: dict[AsGiven, int] = {}
        count: i64 = len(names)
        start = self._column(count)
        place = start
        numbers = self._numbers
        number: i64 = 0
        last: AsGiven = None
        for name in names:
            if name is not last:
                number = known.setdefault(name, len(known))
                last = name
            numbers[place] = number
            place += 1
        if len(known) == 1:
            self._numbers[self._start + self._column_number - 1] = 1
            place = start + 1
        self._end = place
        return list(known)

    def _vector(self, values: vec[i64]) -> None:
        """A column of a value for each row."""
        count: i64 = len(values)
        same = condensed_length(values)
        place = self._column(same)
        if same == 1:
            self._numbers[place] = values[0]
            self._end = place + 1
            return
        numbers = self._numbers
        for index in range(count):
            numbers[place] = values[index]
            place += 1
        self._end = place

    def take(self) -> memoryview:
        """What was written last, without a copy."""
        start, end = self._start, self._end
        if len(self._numbers) == len(self._ring):
            self._taken += end - start
        return memoryview(self._numbers)[start:end]

    def _begin(self, layout: Layout) -> None:
        """Begins a piece with so many columns. Forgets what was written and not taken."""
        length: i64 = len(self._ring)
        self._numbers = self._ring
        self._start = self._taken % length
        self._end = self._start
        if self._end + layout.columns >= self._limit():
            self._move(layout.columns)
        self._end += layout.columns
        self._column_number = 0

    def _column(self, count: i64) -> i64:
        """Room for the next column, of so many values, and where its first one goes."""
        place = self._end
        if place + count >= self._limit():
            place = self._move(count)
        self._numbers[self._start + self._column_number] = count
        self._column_number += 1
        return place

    def _limit(self) -> i64:
        """Where the room ends for what is being written."""
        room: i64 = len(self._numbers)
        length: i64 = len(self._ring)
        if room != length:
            return room
        free = self._given_back + length - self._taken
        return room if self._start + free > room else self._start + free

    def _move(self, count: i64) -> i64:
        """Goes on where there is more room: at the ring's beginning, or beside it. Returns where."""
        start, used = self._start, self._end - self._start
        numbers, length = self._numbers, i64(len(self._ring))
        rest = length - start
        if i64(len(numbers)) == length and self._given_back + length - self._taken - rest > used + count:
            self._taken += rest  # passed over
        else:
            room = 2 * (used + count + 1)
            self._numbers = vec[i64]([0] * (room + 1 if room == length else room))
        for index in range(used):
            self._numbers[index] = numbers[start + index]
        self._start = 0
        self._end = used
        return used


def condensed_length(values: vec[i64]) -> i64:
    """1 where all values are the same, otherwise how many they are."""
    count: i64 = len(values)
    if count:
        first = values[0]
        for index in range(1, count):
            if values[index] != first:
                return count
        return 1
    return 0
