"""Columns packed into one block of numbers, for whoever keeps them: the archive.

The engine itself needs none of it. It is here because it looks at each value, and what is here is compiled.

A piece is what one engine call adds to one table: a head of `HEAD` numbers, then for each column of the table's layout
how many values it has, and then the values, one column after the other. A column has a value for each row; or one,
which is that of all; or none. Or it consists of a few runs, as ids do, and mostly names, times and offsets: then minus
their number stands in place of how many values there are, and each is how many rows it has, its first value, and what
is added from each to the next.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, EventBatch, EventsReceipt, OperationBatch
from purgatory.engine.codes import DELETE_RECORDS, FETCH, KEY_SIGNALLED, PRODUCE, SIGNAL
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.number_block import NumberBlock

__all__ = [
    "COMPLETION_COLUMNS",
    "EVENT_COLUMNS",
    "HEAD",
    "NAMELESS",
    "NOBODYS",
    "NO_EXTRA",
    "REGISTRATION_COLUMNS",
    "ColumnWriter",
    "Layout",
    "packed_paces",
]


class Layout:
    """Names of a table's columns in the order in which they are written, after the first: of each row, its name."""

    def __init__(self, table: int, of_operations: tuple[str, ...], of_rows: tuple[str, ...]) -> None:
        self.table: Final[i64] = table
        """Its number."""
        self.of_operations: Final = of_operations
        self.of_rows: Final = of_rows
        self.columns: Final[i64] = 1 + len(of_operations) + len(of_rows)


REGISTRATION_COLUMNS: Final = Layout(
    0,
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
    1,
    ("operation_id", "kind", "outcome", "waited_ms", "lateness_ms", "item_count"),
    ("error_code", "required_offset", "reached_offset", "log_start_offset", "estimated_remaining_ms"),
)
EVENT_COLUMNS: Final = Layout(
    2,
    (),
    (
        "type", "refusal_code", "ended", "offset", "leader_epoch", "replica_id", "byte_position",
        "segment_base_offset", "log_start_offset", "flags",
    ),
)  # fmt: skip

HEAD: Final[i64] = 9
"""Numbers before a piece's columns: how many it is long, the table's, the call's, the engine's clock, wall-clock time,
rows, operations that the rows are of (0: of none), the registrant's place, and that of what is no number."""

NAMELESS: Final[i64] = -1
"""Place of a row that has no name: it pointed outside its dictionary, and was refused."""
NOBODYS: Final[i64] = -1
"""Place of the registrant of what is nobody's."""
NO_EXTRA: Final[i64] = -1

NO_PARTITION: Final = -1
"""Of a key's name."""

ZERO: Final = [0]
ONE: Final = [1]
NOTHING: Final[list[int]] = []
NO_FLAGS: Final[list[bool]] = []


class ColumnWriter(NumberBlock):
    """Writes pieces one after the other. A method that raises has written nothing: `length` counts whole pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[AsGiven, int] = {}
        """Topics and partitions (of a key: it and -1) of all pieces, and the places by which these point at them."""
        self._call_number: i64 = 0
        self._time_ms: i64 = 0
        self._at_ms: i64 = 0

    def begin_call(self, call_number: i64, time_ms: i64, at_ms: i64) -> None:
        """What is written from now on belongs to this call: the engine's clock, and wall-clock time since 1970."""
        self._call_number = call_number
        self._time_ms = time_ms
        self._at_ms = at_ms

    def clear(self) -> None:
        """Begins anew."""
        super().clear()
        self.names.clear()

    def add_operations(
        self,
        registrant: i64,
        kind: i64,
        batch: OperationBatch,
        codes: list[int],
        timeout_ms_default: i64,
        *,
        bare: bool,
    ) -> int:
        """A batch of operations as REGISTRATION_COLUMNS; what the kind does not have is left out. Returns the rows.

        `codes` are those of refusals; `bare`: without the items. Raises OverflowError (or ValueError) for what is no
        64-bit number.
        """
        operations: i64 = len(batch.operation_ids)
        rows = operations if bare else max(operations, i64(len(batch.item_indexes)))  # several items have indexes
        counts = batch.item_counts or ONE
        self._begin(REGISTRATION_COLUMNS, rows, operations, registrant, NO_EXTRA)
        if bare:
            self._one(NAMELESS)
        else:
            self._places(batch, kind == SIGNAL, rows)
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
        return self._commit(rows)

    def add_events(
        self, types: list[int], codes: list[int], batch: EventBatch, start: i64, receipt: EventsReceipt, extra: i64
    ) -> int:
        """A slice of a batch of events as EVENT_COLUMNS; `codes` are those of refusals. Returns the rows.

        `types` are those of the slice, 0 where there is no such type.
        """
        stop: i64 = receipt.next_index
        self._begin(EVENT_COLUMNS, stop - start, 0, NOBODYS, extra)
        self._event_places(batch, types, start)
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
        return self._commit(stop - start)

    def add_completions(self, registrant: i64, completions: Completions, extra: i64) -> int:
        """Completions as COMPLETION_COLUMNS. Returns the rows."""
        rows: i64 = len(completions.item_partitions)
        self._begin(COMPLETION_COLUMNS, rows, len(completions), registrant, extra)
        self._names(completions.item_partitions)
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
        return self._commit(rows)

    def add_row(self, table: i64, extra: i64) -> None:
        """A row that is no numbers, of a table without a layout."""
        self._head(table, HEAD, 1, 0, NOBODYS, extra)
        self._commit(1)

    # A piece.

    def _begin(self, layout: Layout, rows: i64, operations: i64, registrant: i64, extra: i64) -> None:
        self._head(layout.table, HEAD + layout.columns, rows, operations, registrant, extra)
        self._column = self.length + HEAD

    def _head(self, table: i64, count: i64, rows: i64, operations: i64, registrant: i64, extra: i64) -> None:
        """Begins a piece whose first so many numbers are not values."""
        place = self._end = self.length
        self._make_room(count)
        numbers = self._numbers
        numbers[place + 1] = table
        numbers[place + 2] = self._call_number
        numbers[place + 3] = self._time_ms
        numbers[place + 4] = self._at_ms
        numbers[place + 5] = rows
        numbers[place + 6] = operations
        numbers[place + 7] = registrant
        numbers[place + 8] = extra
        self._end = place + count

    def _commit(self, rows: i64) -> int:
        self._numbers[self.length] = self._end - self.length
        self.length = self._end
        return rows

    # Names.

    def _place(self, name: AsGiven) -> i64:
        """The place of a name among all."""
        return i64(self.names.setdefault(name, len(self.names)))

    def _places_of(self, names: list[AsGiven]) -> vec[i64]:
        """The places of all names of a dictionary."""
        places = vec[i64]([0] * len(names))
        for index in range(i64(len(names))):
            places[index] = self._place(names[index])
        return places

    def _places(self, batch: OperationBatch, are_keys: bool, rows: i64) -> None:
        """A column of the names of a batch whose items all point into its dictionary."""
        names: list[AsGiven] = [(key, NO_PARTITION) for key in batch.keys] if are_keys else batch.partitions
        indexes = batch.item_indexes
        if not names:
            self._one(NAMELESS)
        elif len(indexes) <= 1 or len(names) == 1:
            self._one(self._place(names[indexes[0] if indexes else 0]))
        else:
            known = self._places_of(names)
            self._make_room(2 * rows)
            numbers, place = self._numbers, self._end
            for given in indexes:
                index: i64 = given
                numbers[place] = known[index]
                place += 1
            self._compact(rows)

    def _event_places(self, batch: EventBatch, types: list[int], start: i64) -> None:
        """A column of the names of some events; one that points outside its dictionary has none."""
        rows: i64 = len(types)
        indexes, partitions, keys = batch.item_indexes, batch.partitions, batch.keys
        own: i64 = len(indexes)
        self._make_room(2 * rows)
        end = self._end
        for row in range(rows):
            index: i64 = indexes[start + row] if own > 1 else indexes[0] if own else 0
            place = NAMELESS
            if types[row] == KEY_SIGNALLED:
                if 0 <= index < i64(len(keys)):
                    place = self._place((keys[index], NO_PARTITION))
            elif 0 <= index < i64(len(partitions)):
                place = self._place(partitions[index])
            self._numbers[end + row] = place
        self._compact(rows)

    def _names(self, names: list[AsGiven]) -> None:
        """A column of the names that rows have: neighbours are mostly the same."""
        count: i64 = len(names)
        same: i64 = 0
        if count:
            first = names[0]
            for name in names:
                if name is not first:
                    break
                same += 1
            if same == count:
                self._one(self._place(first))
                return
        self._make_room(2 * count)
        numbers, place = self._numbers, self._end
        number: i64 = 0
        last: AsGiven = None
        for name in names:
            if name is not last:
                number = self._place(name)
                last = name
            numbers[place] = number
            place += 1
        self._compact(count)


def packed_paces(completions: Completions) -> bytes:
    """Paces are no whole numbers: as they are, packed, -1.0 where absent; empty where all are."""
    paces = completions.paces_per_second
    for index in range(len(paces)):
        if paces[index] >= 0.0:
            return bytes(paces)
    return b""
