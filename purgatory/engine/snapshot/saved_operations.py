"""Pending operations as columns, for moving them from one engine to another, and their serialization."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven
from purgatory.engine.codes import FETCH
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter

COLUMNS: Final = (
    "operation_ids", "kinds", "registered_ms", "deadlines_ms", "items_left", "item_counts",
    "places", "required", "marks", "epochs", "error_codes", "removed", "log_starts",
)  # fmt: skip
"""In the order of their bytes, which are stored in journals: columns are recognised by their position."""

FETCH_COLUMNS: Final = (
    "min_bytes", "replica_ids", "read_committed", "leader_only",
    "max_bytes", "leader_epochs", "last_fetched_epochs", "throttled", "start_segments", "start_reaches",
)  # fmt: skip
"""Likewise."""


class SavedOperations:
    """Operations, their items, and the additional state of fetches and their items. Times are the engine's own."""

    def __init__(self) -> None:
        self.names: Final[list[AsGiven]] = []
        """Dictionary of partitions, or of keys as (key, -1)."""
        self._places: Final[dict[AsGiven, int]] = {}
        self._last_name: AsGiven = None
        self._last_place: i64 = 0

        self.operation_ids: vec[i64] = vec[i64]()
        self.kinds: vec[i64] = vec[i64]()
        self.registered_ms: vec[i64] = vec[i64]()
        self.deadlines_ms: vec[i64] = vec[i64]()
        self.items_left: vec[i64] = vec[i64]()
        self.item_counts: vec[i64] = vec[i64]()

        self.places: vec[i64] = vec[i64]()
        """For each item: its index in the dictionary."""
        self.required: vec[i64] = vec[i64]()
        self.marks: vec[i64] = vec[i64]()
        self.epochs: vec[i64] = vec[i64]()
        self.error_codes: vec[i64] = vec[i64]()
        self.removed: vec[i64] = vec[i64]()
        """For each item: the error code of its partition if that was removed, else 0."""
        self.log_starts: vec[i64] = vec[i64]()
        """Log start offsets of removed partitions."""

        self.min_bytes: vec[i64] = vec[i64]()
        self.replica_ids: vec[i64] = vec[i64]()
        self.read_committed: vec[i64] = vec[i64]()
        self.leader_only: vec[i64] = vec[i64]()

        self.max_bytes: vec[i64] = vec[i64]()
        self.leader_epochs: vec[i64] = vec[i64]()
        self.last_fetched_epochs: vec[i64] = vec[i64]()
        self.throttled: vec[i64] = vec[i64]()
        self.start_segments: vec[i64] = vec[i64]()
        self.start_reaches: vec[i64] = vec[i64]()

        self.stale_timeouts_ms: Final[dict[int, int]] = {}
        """By row, only for operations that have one."""
        self.heartbeat_timeouts_ms: Final[dict[int, int]] = {}
        """By row, only for operations that have one."""

    def __len__(self) -> int:
        return len(self.operation_ids)

    def place_of(self, name: AsGiven) -> i64:
        """The index of a name in the dictionary; a new name is added."""
        if name is not self._last_name:  # mostly it is the same one again
            place = self._places.get(name)
            if place is None:
                place = len(self.names)
                self._places[name] = place
                self.names.append(name)
            self._last_name = name
            self._last_place = place
        return self._last_place

    def add_operation(
        self, operation_id: i64, kind: i64, registered_ms: i64, deadline_ms: i64, items_left: i64, item_count: i64
    ) -> None:
        """Append an operation, after its items."""
        self.operation_ids = append(self.operation_ids, operation_id)
        self.kinds = append(self.kinds, kind)
        self.registered_ms = append(self.registered_ms, registered_ms)
        self.deadlines_ms = append(self.deadlines_ms, deadline_ms)
        self.items_left = append(self.items_left, items_left)
        self.item_counts = append(self.item_counts, item_count)

    def add_item(
        self, place: i64, required: i64, mark: i64, epoch: i64, error_code: i64, removed: i64, log_start: i64
    ) -> None:
        """Append an item of the next operation."""
        self.places = append(self.places, place)
        self.required = append(self.required, required)
        self.marks = append(self.marks, mark)
        self.epochs = append(self.epochs, epoch)
        self.error_codes = append(self.error_codes, error_code)
        self.removed = append(self.removed, removed)
        self.log_starts = append(self.log_starts, log_start)

    def add_fetch(self, min_bytes: i64, replica_id: i64, read_committed: bool, leader_only: bool) -> None:
        """Append the additional state of a fetch, after its operation."""
        self.min_bytes = append(self.min_bytes, min_bytes)
        self.replica_ids = append(self.replica_ids, replica_id)
        self.read_committed = append(self.read_committed, 1 if read_committed else 0)
        self.leader_only = append(self.leader_only, 1 if leader_only else 0)

    def add_fetch_item(
        self,
        max_bytes: i64,
        leader_epoch: i64,
        last_fetched_epoch: i64,
        throttled: bool,
        start_segment: i64,
        start_reach: i64,
    ) -> None:
        """Append the additional state of an item of a fetch, in the order of its items."""
        self.max_bytes = append(self.max_bytes, max_bytes)
        self.leader_epochs = append(self.leader_epochs, leader_epoch)
        self.last_fetched_epochs = append(self.last_fetched_epochs, last_fetched_epoch)
        self.throttled = append(self.throttled, 1 if throttled else 0)
        self.start_segments = append(self.start_segments, start_segment)
        self.start_reaches = append(self.start_reaches, start_reach)

    def to_bytes(self) -> bytes:
        """Serialize everything."""
        writer = ColumnWriter()
        add_names(writer, self.names)
        add_columns(writer, self, COLUMNS)
        # Groups are recognised by their position: the group of fetches is written, if empty, whenever another one
        # follows. Absent groups at the end cost nothing, which is the common case.
        if len(self.min_bytes) or self.stale_timeouts_ms or self.heartbeat_timeouts_ms:
            add_columns(writer, self, FETCH_COLUMNS)
        if self.stale_timeouts_ms or self.heartbeat_timeouts_ms:
            add_by_row(writer, self.stale_timeouts_ms)
        if self.heartbeat_timeouts_ms:
            add_by_row(writer, self.heartbeat_timeouts_ms)
        return writer.to_bytes()

    @staticmethod
    def from_bytes(octets: bytes) -> "SavedOperations":
        """Deserialize the output of `to_bytes`."""
        reader = ColumnReader(octets)
        saved = SavedOperations()
        # `_places` stays empty, so nothing may be added to this object: names would get a second index.
        saved.names.extend(read_names(reader))
        read_columns(reader, saved, COLUMNS)
        if not reader.is_done:
            read_columns(reader, saved, FETCH_COLUMNS)
        if not reader.is_done:
            read_by_row(reader, saved.stale_timeouts_ms)
        if not reader.is_done:
            read_by_row(reader, saved.heartbeat_timeouts_ms)
        return saved


class SavedPlace:
    """Position of the next operation in each group of columns."""

    def __init__(self) -> None:
        self.row: i64 = 0
        self.item: i64 = 0
        self.fetch: i64 = 0
        self.fetch_item: i64 = 0

    def step(self, saved: SavedOperations) -> None:
        """Advance to the next operation."""
        items = saved.item_counts[self.row]
        if saved.kinds[self.row] == FETCH:
            self.fetch += 1
            self.fetch_item += items
        self.item += items
        self.row += 1


def add_columns(writer: ColumnWriter, saved: SavedOperations, names: tuple[str, ...]) -> None:
    for name in names:
        writer.add(getattr(saved, name))


def read_columns(reader: ColumnReader, saved: SavedOperations, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(saved, name, reader.column())


def add_by_row(writer: ColumnWriter, values: dict[int, int]) -> None:
    """Write values that only some operations have, with their rows."""
    writer.add_list(list(values))
    writer.add_list(list(values.values()))


def read_by_row(reader: ColumnReader, values: dict[int, int]) -> None:
    """Read the output of `add_by_row` into a dictionary."""
    rows = reader.column()
    given = reader.column()
    for place in range(len(rows)):
        values[int(rows[place])] = int(given[place])


def add_names(writer: ColumnWriter, names: list[AsGiven]) -> None:
    """Write a dictionary of (topic, partition) or (key, -1)."""
    writer.add_list([name[1] for name in names])
    for name in names:
        writer.add_text(name[0])


def read_names(reader: ColumnReader) -> list[AsGiven]:
    """Read the output of `add_names`."""
    return [(reader.text(), int(number)) for number in reader.column()]
