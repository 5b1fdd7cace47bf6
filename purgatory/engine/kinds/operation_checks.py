"""The columns of a batch of operations, and what speaks against one operation of it. All checks pass before it is
admitted.
"""

from __future__ import annotations

from typing import Final

from purgatory.engine.batches import AsGiven, OperationBatch
from purgatory.engine.codes import (
    DELETE_RECORDS,
    FETCH,
    INVALID_ARGUMENT,
    KIND_NAMES,
    OFFSET_MAX,
    PRODUCE,
    READ_COMMITTED,
    RESOURCE_EXHAUSTED,
    SIGNAL,
)
from purgatory.engine.columns import check_length, value_at
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_checks import INT32_MAX, Fault
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.names import key_fault, partition_fault

__all__ = ["OPERATION_ID_MAX", "OperationChecks", "OperationColumns"]

OPERATION_ID_MAX: Final = 2**61 - 1
PARTITION_MAX_BYTES_DEFAULT: Final = 1_048_576
OFFSET_FIELDS: Final = {
    PRODUCE: "required_offset",
    FETCH: "fetch_offset",
    DELETE_RECORDS: "offset",
    SIGNAL: "required_count",
}


class OperationColumns:
    """The columns of an `OperationBatch` of one kind, checked for length, and its dictionary.

    Raises InvalidBatch when the columns cannot be read together.
    """

    def __init__(self, kind: int, batch: OperationBatch, timeout_ms_default: int) -> None:
        rows = len(batch.operation_ids)
        if rows == 0:
            raise InvalidBatch("operation_id", "is empty; it takes one id for each operation")
        self.kind: Final = kind
        self.rows: Final = rows
        self.operation_ids: Final = batch.operation_ids
        self.timeout_ms_default: Final = timeout_ms_default
        self.offset_default: Final = 1 if kind == SIGNAL else 0
        self.batch: Final = batch
        self.item_counts: Final = batch.item_counts
        self.item_indexes: Final = batch.item_indexes
        self.offsets: Final = batch.offsets
        self._check_lengths(batch)
        self.partitions: Final = batch.partitions
        self.keys: Final = batch.keys
        self.names: Final = len(batch.keys) if kind == SIGNAL else len(batch.partitions)
        self.name_faults: Final[list[str]] = []
        self.first_place: Final[list[int]] = []
        """For each place of the dictionary: the first place with the same name, so that a repeat is found."""
        self.named_by: Final[list[int]] = []
        """For each place: the last row that named it; -1: none yet."""

    def _check_lengths(self, batch: OperationBatch) -> None:
        rows = self.rows
        check_length("timeout_ms", len(batch.timeouts_ms), rows)
        check_length("item_count", len(batch.item_counts), rows)
        check_length("min_bytes", len(batch.min_bytes), rows)
        check_length("replica_id", len(batch.replica_ids), rows)
        check_length("isolation_level", len(batch.isolation_levels), rows)
        check_length("follower_reads", len(batch.follower_reads), rows)
        check_length("any", len(batch.any_key), rows)
        check_length("from_now", len(batch.from_now), rows)
        counts = batch.item_counts
        items = rows if not counts else counts[0] * rows if len(counts) == 1 else sum(counts)
        check_length("item_index", len(batch.item_indexes), items)
        check_length("offset", len(batch.offsets), items)
        check_length("local_error_code", len(batch.local_error_codes), items)
        check_length("leader_epoch", len(batch.leader_epochs), items)
        check_length("partition_max_bytes", len(batch.partition_max_bytes), items)
        check_length("last_fetched_epoch", len(batch.last_fetched_epochs), items)
        check_length("throttled", len(batch.throttled), items)

    def item_count(self, row: int) -> int:
        """How many items an operation has."""
        return value_at(self.item_counts, row, 1)

    def timeout_ms(self, row: int) -> int:
        """How long an operation waits."""
        return value_at(self.batch.timeouts_ms, row, self.timeout_ms_default)

    def place(self, item: int) -> int:
        """Where in the dictionary an item's partition or key is; items count through the batch."""
        return value_at(self.item_indexes, item, 0)

    def offset(self, item: int) -> int:
        """What an item waits for."""
        return value_at(self.offsets, item, self.offset_default)

    def leader_epoch(self, item: int) -> int:
        """The leader epoch an item was given; -1: none."""
        return value_at(self.batch.leader_epochs, item, -1)

    def local_error_code(self, item: int) -> int:
        """The error an item came with; 0: none."""
        return value_at(self.batch.local_error_codes, item, 0)

    def partition_max_bytes(self, item: int) -> int:
        """How many bytes of an item count at most."""
        return value_at(self.batch.partition_max_bytes, item, PARTITION_MAX_BYTES_DEFAULT)

    def last_fetched_epoch(self, item: int) -> int:
        """Epoch of the last record the reader of an item has; -1: not given."""
        return value_at(self.batch.last_fetched_epochs, item, -1)

    def enter_names(self, length_max: int) -> None:
        """Looks the dictionary through, once."""
        if self.named_by:
            return
        self.named_by.extend([-1] * self.names)
        seen: dict[AsGiven, int] = {}
        if self.kind == SIGNAL:
            for place, key in enumerate(self.keys):
                self.name_faults.append(key_fault(key, length_max))
                self.first_place.append(seen.setdefault(key, place))
        else:
            for place, name in enumerate(self.partitions):
                self.name_faults.append(partition_fault(name, length_max))
                self.first_place.append(seen.setdefault(name, place))

    def item_path(self, item: int, field: str) -> str:
        """Path of an item's field in the row form; `item` counts within its operation."""
        holder = "keys" if self.kind == SIGNAL else "partitions"
        return f"{KIND_NAMES[self.kind]}.{holder}[{item}]{field}"


class OperationChecks:
    """The checks of one operation of a batch, in the order in which its faults are told."""

    def __init__(self, limits: EngineLimits, partitions: Partitions, keys: SignalKeys, makes_partitions: bool) -> None:
        self.limits: Final = limits
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.makes_partitions: Final = makes_partitions

    def fault(self, columns: OperationColumns, row: int, first_item: int, pending: int) -> Fault | None:
        """Why the operation in a row is refused, or None."""
        limits = self.limits
        if pending >= limits.pending_operations_max:
            return Fault(
                RESOURCE_EXHAUSTED,
                "operation_id",
                f"{limits.pending_operations_max} operations are pending, the most allowed; try again later",
            )
        timeout_ms = columns.timeout_ms(row)
        if not 1 <= timeout_ms <= limits.timeout_ms_max:
            return Fault(INVALID_ARGUMENT, "timeout_ms", f"{timeout_ms} is not in 1..{limits.timeout_ms_max}")
        count = columns.item_count(row)
        if count < 1:
            return Fault(INVALID_ARGUMENT, columns.item_path(0, "").partition("[")[0], "is empty; give at least one")
        if count > limits.items_per_operation_max:
            return Fault(
                INVALID_ARGUMENT,
                columns.item_path(0, "").partition("[")[0],
                f"{count} are over the limit of {limits.items_per_operation_max}",
            )
        if columns.kind == FETCH:
            fault = self._fetch_fault(columns, row)
            if fault is not None:
                return fault
        columns.enter_names(limits.topic_length_max)
        for item in range(count):
            fault = self._item_fault(columns, row, first_item, item)
            if fault is not None:
                return fault
        return self._room_fault(columns, first_item, count)

    def _fetch_fault(self, columns: OperationColumns, row: int) -> Fault | None:
        min_bytes = value_at(columns.batch.min_bytes, row, 1)
        if not 1 <= min_bytes < OFFSET_MAX:
            return Fault(INVALID_ARGUMENT, "fetch.min_bytes", f"{min_bytes} is not in 1..{OFFSET_MAX - 1}")
        replica_id = value_at(columns.batch.replica_ids, row, -1)
        if not -1 <= replica_id <= INT32_MAX:
            return Fault(INVALID_ARGUMENT, "fetch.replica_id", f"{replica_id} is not in 0..{INT32_MAX}")
        isolation_level = value_at(columns.batch.isolation_levels, row, 0)
        if not 0 <= isolation_level <= READ_COMMITTED:
            return Fault(INVALID_ARGUMENT, "fetch.isolation_level", f"{isolation_level} is not known")
        return None

    def _item_fault(self, columns: OperationColumns, row: int, first_item: int, item: int) -> Fault | None:
        place = columns.place(first_item + item)
        if not 0 <= place < columns.names:
            return Fault(INVALID_ARGUMENT, "item_index", f"{place} is outside the dictionary of {columns.names}")
        holder = ".key" if columns.kind == SIGNAL else ".topic_partition"
        if columns.name_faults[place]:
            return Fault(INVALID_ARGUMENT, columns.item_path(item, holder), columns.name_faults[place])
        first = columns.first_place[place]
        if columns.named_by[first] == row:
            return Fault(
                INVALID_ARGUMENT, columns.item_path(item, holder), f"{self._named(columns, place)} is named twice"
            )
        columns.named_by[first] = row
        return self._value_fault(columns, first_item + item, item)

    def _named(self, columns: OperationColumns, place: int) -> str:
        if columns.kind == SIGNAL:
            return columns.keys[place]
        topic, partition = columns.partitions[place]
        return f"{topic}-{partition}"

    def _value_fault(self, columns: OperationColumns, place: int, item: int) -> Fault | None:
        kind = columns.kind
        lowest = 1 if kind == SIGNAL else -1 if kind == DELETE_RECORDS else 0
        offset = columns.offset(place)
        if not lowest <= offset < OFFSET_MAX:
            return Fault(
                INVALID_ARGUMENT,
                columns.item_path(item, "." + OFFSET_FIELDS[kind]),
                f"{offset} is not in {lowest}..{OFFSET_MAX - 1}",
            )
        epoch = columns.leader_epoch(place)
        if not -1 <= epoch <= INT32_MAX:
            field = ".current_leader_epoch" if kind == FETCH else ".leader_epoch"
            return Fault(INVALID_ARGUMENT, columns.item_path(item, field), f"{epoch} is not in 0..{INT32_MAX}")
        error_code = columns.local_error_code(place)
        if not -1 <= error_code < 2**15:
            return Fault(
                INVALID_ARGUMENT,
                columns.item_path(item, ".local_error_code"),
                f"{error_code} is not a Kafka error code",
            )
        if kind != FETCH:
            return None
        max_bytes = columns.partition_max_bytes(place)
        if not 1 <= max_bytes < OFFSET_MAX:
            return Fault(
                INVALID_ARGUMENT,
                columns.item_path(item, ".partition_max_bytes"),
                f"{max_bytes} is not in 1..{OFFSET_MAX - 1}",
            )
        last_epoch = columns.last_fetched_epoch(place)
        if not -1 <= last_epoch <= INT32_MAX:
            return Fault(
                INVALID_ARGUMENT,
                columns.item_path(item, ".last_fetched_epoch"),
                f"{last_epoch} is not in 0..{INT32_MAX}",
            )
        return None

    def _room_fault(self, columns: OperationColumns, first_item: int, count: int) -> Fault | None:
        """Whether the partitions or keys that the operation would make have room."""
        known = len(self.partitions.by_name)
        room = self.keys.room() if columns.kind == SIGNAL else self.limits.partitions_max - known
        if count <= room:
            return None
        made = 0
        idle = 0
        for item in range(first_item, first_item + count):
            place = columns.place(item)
            if columns.kind == SIGNAL:
                key = self.keys.get(columns.keys[place])
                if key is None:
                    made += 1
                elif key.references == 0:
                    idle += 1
            elif self.makes_partitions and columns.partitions[place] not in self.partitions.by_name:
                made += 1
        if made == 0:
            return None
        if columns.kind == SIGNAL:
            if made <= room - idle:
                return None
            return Fault(
                RESOURCE_EXHAUSTED, "signal.keys", f"{self.keys.keys_max} keys are waited for, the most allowed"
            )
        if made <= room:
            return None
        return Fault(
            RESOURCE_EXHAUSTED,
            columns.item_path(0, "").partition("[")[0],
            f"{self.limits.partitions_max} partitions are known, the most allowed",
        )
