"""A batch of operations of one kind, with all values range-checked in one pass and defaults applied."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, OperationBatch
from purgatory.engine.codes import COMPOSITE, KIND_NAMES, NONE, PRODUCE, SIGNAL, UNKNOWN
from purgatory.engine.columns import Column, check_length
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, ITEM, OperationColumn, columns_of
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import NamedPartitions
from purgatory.engine.names import key_fault, partition_fault

OPERATION_ID_MAX: Final = 2**61 - 1
ITEM_COUNT_MAX: Final = 2**32 - 1

NO_EPOCHS: Final = Column([], UNKNOWN, UNKNOWN, UNKNOWN)
NO_ERRORS: Final = Column([], NONE, NONE, NONE)


class BatchColumns:
    """The columns of an `OperationBatch`. Raises InvalidBatch if their lengths do not fit together.

    A row is one operation. An item is one partition (or key) of an operation; items are numbered over the whole batch.
    """

    def __init__(self, kind: int, batch: OperationBatch, limits: EngineLimits, named: NamedPartitions) -> None:
        rows = len(batch.operation_ids)
        if rows == 0:
            raise InvalidBatch("operation_id", "is empty; it takes one id for each operation")
        self.kind: Final = kind
        self.rows: Final = rows
        self.partitions: Final = batch.partitions
        self.keys: Final = batch.keys
        self.first_key: Final = 0 if kind == SIGNAL else len(batch.partitions)
        """The index of the first key in the dictionary. Indexes below it are those of partitions."""
        self.names: Final = self.first_key + (len(batch.keys) if kind in (SIGNAL, COMPOSITE) else 0)
        self.item_counts: Final = Column(batch.item_counts, 1, 0, ITEM_COUNT_MAX)
        # The whole batch is invalid, not a single row: the counts state which items belong to which row.
        if not self.item_counts.is_within:
            raise InvalidBatch("item_count", f"has a value that is not in 0..{ITEM_COUNT_MAX}")
        self._check_lengths(batch)
        self.operation_ids: Final = Column(batch.operation_ids, 0, 1, OPERATION_ID_MAX)
        self.timeouts_ms: Final = Column(batch.timeouts_ms, limits.timeout_ms_default, 0, limits.timeout_ms_max)
        # With an empty dictionary no index is in range, so each row is refused by its own check.
        self.places: Final = Column(batch.item_indexes, 0, 0, self.names - 1)
        """For each item: the index of its partition or key in the dictionary."""
        self._columns: Final[dict[str, Column]] = {}
        self.faulty: Final[list[OperationColumn]] = []
        """Columns with at least one value out of range; nearly always empty."""
        for described in columns_of(kind):
            column = described.read(getattr(batch, described.batch_name))
            self._columns[described.name] = column
            if not column.is_within:
                self.faulty.append(described)
        self.offsets: Final = self._columns["offset"]
        self.leader_epochs: Final = self._columns.get("leader_epoch", NO_EPOCHS)
        self.local_error_codes: Final = self._columns.get("local_error_code", NO_ERRORS)
        self.stale_timeouts_ms: Final = self._columns["stale_timeout_ms"]
        self.has_stale_timeouts: Final = len(batch.stale_timeouts_ms) > 0
        self.is_plain: Final = (
            kind in (PRODUCE, COMPOSITE)
            and not batch.local_error_codes
            and not self.has_stale_timeouts
            and not self.faulty
            and self.operation_ids.is_within
            and self.timeouts_ms.is_within
            and self.places.is_within
        )
        """A batch of produces or composites in which all values are in range and none resolves an item before its
        partition is looked at. Not checked: the names, and what is only invalid together.
        """
        self._named: Final = named
        # Not for other batches: they look names up row by row, and `named` would lose those of the last plain batch.
        if self.is_plain:
            named.use(batch.partitions)
        self.name_faults: Final[list[str]] = []
        self.first_place: Final[list[int]] = []
        """For each dictionary index: the first index with the same name, to detect repeats within an operation."""
        self.named_by: Final[list[int]] = []
        """For each dictionary index: the last row that named it; -1: none yet."""

    def _check_lengths(self, batch: OperationBatch) -> None:
        rows = self.rows
        check_length("timeout_ms", len(batch.timeouts_ms), rows)
        check_length("item_count", len(batch.item_counts), rows)
        counts = batch.item_counts
        items = rows if not counts else counts[0] * rows if len(counts) == 1 else sum(counts)
        check_length("item_index", len(batch.item_indexes), items)
        # Also those that the kind does not have: their values are not read, but a wrong length is a fault of the
        # caller.
        for column in COLUMNS_BY_NAME.values():
            values: list[int] = getattr(batch, column.batch_name)
            check_length(column.wire_name, len(values), items if column.level == ITEM else rows)

    def column(self, name: str) -> Column:
        """A column by name; the kind must have it."""
        return self._columns[name]

    def known_partition(self, item: i64) -> Partition | None:
        """The partition named by an item of a plain batch, or None if it is not known yet."""
        return self._named.at(self.places.at(item))

    def enter_names(self, length_max: int) -> None:
        """Validate the dictionary of names. Repeated calls do nothing."""
        if self.named_by:
            return
        self.named_by.extend([-1] * self.names)
        seen: dict[AsGiven, int] = {}
        for place in range(self.names):
            name: AsGiven
            if place < self.first_key:
                name = self.partitions[place]
                self.name_faults.append(partition_fault(name, length_max))
            else:
                name = self.keys[place - self.first_key]
                self.name_faults.append(key_fault(name, length_max))
            self.first_place.append(seen.setdefault(name, place))

    def items_path(self) -> str:
        """Path of the items in the row form of the wire."""
        if self.kind == COMPOSITE:
            return "composite.terms"
        return f"{KIND_NAMES[self.kind]}.{'keys' if self.kind == SIGNAL else 'partitions'}"

    def item_path(self, row: i64, item: i64, place: i64) -> str:
        """Path of one item of a row, whose name is at `place` of the dictionary."""
        if self.kind != COMPOSITE:
            return f"{self.items_path()}[{item}]"
        holder = "signal" if place >= self.first_key else "mark"
        terms = self.item_counts.at(row) - self.column("unless_count").at(row)
        return f"composite.terms[{item}].{holder}" if item < terms else f"composite.unless[{item - terms}].{holder}"
