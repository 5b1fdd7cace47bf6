"""The engine's output: ended operations as packed columns, one set per owner, and the table of these columns.

The table is read by everything that passes results on: the wire, packed and refused results, snapshots, the archive's
schema, `tail` and the tables of the pipeline. The two classes are written out by hand, because compiled
code fills them.
"""

from typing import Final, NamedTuple

from librt.vecs import extend, vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.kinds.operation_columns import INT32, INT64, ITEM, OPERATION

FETCHED: Final = "fetched"
"""Level: one value per item of a fetch, in a `FetchedPartition`. The other levels are those of operation columns."""
FLOAT64: Final = "float64"


class ResultColumn(NamedTuple):
    """One column.

    `name`: on the wire, in the archive and in tables. `attribute`: of `Completions`, or of `FetchedPartition`.
    `default`: the value that the wire leaves out. `form`: the letter of its 64-bit values in `struct` and `array`.
    `is_optional`: negative values mean that there is none.
    """

    name: str
    attribute: str
    level: str
    type_name: str = INT64
    default: float = 0
    is_optional: bool = False
    form: str = "q"


RESULT_COLUMNS: Final = (
    ResultColumn("operation_id", "operation_ids", OPERATION, form="Q"),
    ResultColumn("kind", "kinds", OPERATION, INT32),
    ResultColumn("outcome", "outcomes", OPERATION, INT32),
    ResultColumn("waited_ms", "waited_ms", OPERATION),
    ResultColumn("lateness_ms", "lateness_ms", OPERATION),
    ResultColumn("item_count", "item_counts", OPERATION, INT32, 1),
)
"""One value for each operation."""

RESULT_ITEM_COLUMNS: Final = (
    ResultColumn("error_code", "error_codes", ITEM, INT32),
    ResultColumn("required_offset", "required_offsets", ITEM),
    ResultColumn("reached_offset", "reached_offsets", ITEM),
    ResultColumn("log_start_offset", "log_start_offsets", ITEM),
    ResultColumn("estimated_remaining_ms", "estimated_remaining_ms", ITEM, INT64, -1, is_optional=True),
    ResultColumn("pace_per_second", "paces_per_second", ITEM, FLOAT64, -1.0, form="d", is_optional=True),
)
"""One value for each partition or key of an operation."""

FETCHED_COLUMNS: Final = (
    ResultColumn("available_bytes", "available_bytes", FETCHED),
    ResultColumn("high_watermark", "high_watermark", FETCHED),
    ResultColumn("last_stable_offset", "last_stable_offset", FETCHED),
    ResultColumn("diverging_epoch", "diverging_epoch", FETCHED, INT32, -1),
    ResultColumn("diverging_end_offset", "diverging_end_offset", FETCHED, INT64, -1),
)
"""One value for each item of a fetch."""

OPTIONAL_COLUMNS: Final = frozenset([column.name for column in RESULT_ITEM_COLUMNS if column.is_optional])

ROOM: Final[i64] = 16
"""Initial length of each column; a full column is doubled."""

ROOM_MAX: Final[i64] = 1_024
"""Upper bound of the initial length, however many operations ended last time."""


NOTHING_STALE: Final[dict[int, tuple[int, str]]] = {}
"""No mark was stale. All completions share it, so it must never change."""

NO_VALUES: Final[dict[int, bytes]] = {}
"""No key had a value. Shared and never changed, like `NOTHING_STALE`."""

NOBODY: Final[AsGiven] = ("", -1)
"""Placeholder for names that have not been written."""


def room_for(expected: i64) -> i64:
    """Initial length of columns for this number of expected values."""
    return ROOM if expected < ROOM else ROOM_MAX if expected > ROOM_MAX else expected


class Completions:
    """Ended operations of one owner, in the order in which they ended.

    Operation-level columns have one value per operation. Item-level columns have one per partition (or key) of an
    operation, in the order of the request. Times are milliseconds; unknown offsets are -1. A column is an array of
    64-bit numbers: it can be indexed, sliced and iterated like a list, and read as a buffer without a copy.

    While they are being written, columns are longer than their contents, because appending values one at a time costs
    more; `finish` trims them. `expected` and `expected_items` are estimates of how many operations and items will be
    added.
    """

    def __init__(self, owner_id: int, expected: i64 = ROOM, expected_items: i64 = ROOM) -> None:
        room = room_for(expected)
        self.owner_id: Final = owner_id
        self._operations: i64 = 0
        self.items: i64 = 0
        """Number of items written."""
        self.operation_ids: vec[i64] = vec[i64]([0] * room)
        self.kinds: vec[i64] = vec[i64]([0] * room)
        self.outcomes: vec[i64] = vec[i64]([0] * room)
        self.waited_ms: vec[i64] = vec[i64]([0] * room)
        self.lateness_ms: vec[i64] = vec[i64]([0] * room)
        self.item_counts: vec[i64] = vec[i64]([0] * room)

        # Items have an estimate of their own: with the one of operations, calls that end operations on five partitions
        # each doubled the columns three times.
        room = room_for(expected_items)
        self.item_partitions: Final[list[AsGiven]] = [NOBODY] * room
        """(topic, partition); for a signal's key: (key, -1)."""
        self.error_codes: vec[i64] = vec[i64]([0] * room)
        self.required_offsets: vec[i64] = vec[i64]([0] * room)
        self.reached_offsets: vec[i64] = vec[i64]([0] * room)
        self.log_start_offsets: vec[i64] = vec[i64]([0] * room)
        self.estimated_remaining_ms: vec[i64] = vec[i64]([0] * room)
        """-1: absent."""
        self.paces_per_second: vec[float] = vec[float]([0.0] * room)
        """-1.0: absent."""

        self.fetched: Final[list[FetchedPartition]] = []
        """One per item of each fetch, in order; other kinds add none."""
        self.stale_marks = NOTHING_STALE
        """By item index: for how many milliseconds its mark was stale when the operation ended, and why. Filled in by
        the caller; the engine does not know which marks are stale.
        """
        self.signal_values = NO_VALUES
        """By item index: the value of its key, if the key has one and was reached or failed."""

    def __len__(self) -> int:
        return self._operations

    def add_operation(
        self, operation_id: i64, kind: i64, outcome: i64, waited_ms: i64, lateness_ms: i64, item_count: i64
    ) -> None:
        """Append an operation."""
        place = self._operations
        if place == i64(len(self.operation_ids)):
            self._double_operations()
        self.operation_ids[place] = operation_id
        self.kinds[place] = kind
        self.outcomes[place] = outcome
        self.waited_ms[place] = waited_ms
        self.lateness_ms[place] = lateness_ms
        self.item_counts[place] = item_count
        self._operations = place + 1

    def add_item(
        self,
        name: AsGiven,
        error_code: i64,
        required_offset: i64,
        reached_offset: i64,
        log_start_offset: i64,
        estimated_remaining_ms: i64,
        pace_per_second: float,
    ) -> None:
        """Append an item of the operation that is being recorded."""
        place = self.items
        if place == i64(len(self.error_codes)):
            self._double_items()
        self.item_partitions[place] = name
        self.error_codes[place] = error_code
        self.required_offsets[place] = required_offset
        self.reached_offsets[place] = reached_offset
        self.log_start_offsets[place] = log_start_offset
        self.estimated_remaining_ms[place] = estimated_remaining_ms
        self.paces_per_second[place] = pace_per_second
        self.items = place + 1

    def add_signal_value(self, value: bytes) -> None:
        """Set the value of the item that was appended last."""
        if self.signal_values is NO_VALUES:
            self.signal_values = {}
        self.signal_values[int(self.items) - 1] = value

    def _double_operations(self) -> None:
        # A column is doubled by appending it to itself: only the length matters, later rows overwrite the values.
        self.operation_ids = extend(self.operation_ids, self.operation_ids)
        self.kinds = extend(self.kinds, self.kinds)
        self.outcomes = extend(self.outcomes, self.outcomes)
        self.waited_ms = extend(self.waited_ms, self.waited_ms)
        self.lateness_ms = extend(self.lateness_ms, self.lateness_ms)
        self.item_counts = extend(self.item_counts, self.item_counts)

    def _double_items(self) -> None:
        self.item_partitions.extend(self.item_partitions)
        self.error_codes = extend(self.error_codes, self.error_codes)
        self.required_offsets = extend(self.required_offsets, self.required_offsets)
        self.reached_offsets = extend(self.reached_offsets, self.reached_offsets)
        self.log_start_offsets = extend(self.log_start_offsets, self.log_start_offsets)
        self.estimated_remaining_ms = extend(self.estimated_remaining_ms, self.estimated_remaining_ms)
        self.paces_per_second = extend(self.paces_per_second, self.paces_per_second)

    def restore(self, names: list[AsGiven], operations: i64) -> None:
        """Set the lengths, after all columns were replaced by complete ones."""
        self._operations = operations
        self.items = i64(len(names))
        # Replaced in place: the list is Final, and the other columns were assigned before.
        self.item_partitions[:] = names

    def finish(self) -> None:
        """Trim the columns to their contents. Nothing may be added afterwards."""
        operations = self._operations
        if operations < i64(len(self.operation_ids)):
            self.operation_ids = self.operation_ids[:operations]
            self.kinds = self.kinds[:operations]
            self.outcomes = self.outcomes[:operations]
            self.waited_ms = self.waited_ms[:operations]
            self.lateness_ms = self.lateness_ms[:operations]
            self.item_counts = self.item_counts[:operations]
        items = self.items
        if items < i64(len(self.error_codes)):
            del self.item_partitions[items:]
            self.error_codes = self.error_codes[:items]
            self.required_offsets = self.required_offsets[:items]
            self.reached_offsets = self.reached_offsets[:items]
            self.log_start_offsets = self.log_start_offsets[:items]
            self.estimated_remaining_ms = self.estimated_remaining_ms[:items]
            self.paces_per_second = self.paces_per_second[:items]


class FetchedPartition(NamedTuple):
    """The result of reading one partition at the end of a fetch. Sizes in bytes; unknown or missing offsets are -1."""

    available_bytes: int
    high_watermark: int
    last_stable_offset: int
    diverging_epoch: int
    diverging_end_offset: int
