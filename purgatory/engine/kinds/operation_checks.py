"""The validation of one operation of a batch. All checks pass before anything is changed."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.codes import COMPOSITE, INVALID_ARGUMENT, KIND_NAMES, OFFSET_MAX, RESOURCE_EXHAUSTED
from purgatory.engine.columns import OUT_OF_RANGE
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.kinds.operation_columns import ITEM
from purgatory.engine.limits import EngineLimits
from purgatory.engine.marks.event_checks import Fault
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.names import cut


class OperationChecks:
    """Checks one operation of a batch, in the order in which faults are reported."""

    def __init__(self, limits: EngineLimits, partitions: Partitions, keys: SignalKeys) -> None:
        self.limits: Final = limits
        self.partitions: Final = partitions
        self.keys: Final = keys

    def fault(
        self, columns: BatchColumns, row: int, first_item: int, usage: AccountUsage, pending: int, pending_items: int
    ) -> Fault | None:
        """Why the operation in a row is refused, or None.

        `pending` operations with `pending_items` items are pending in the engine; `usage` counts those of the
        account.
        """
        limits = self.limits
        if pending >= limits.pending_operations_max:
            message = f"the limit of {limits.pending_operations_max} pending operations is reached; try again later"
            return Fault(RESOURCE_EXHAUSTED, "operation_id", message)
        if usage.operations >= usage.operations_max:
            message = f"you have {usage.operations} pending operations, which is your current share; try again later"
            return Fault(RESOURCE_EXHAUSTED, "operation_id", message)
        if columns.timeouts_ms.at(row) == OUT_OF_RANGE:
            timeout_ms = columns.timeouts_ms.given(row)
            return Fault(INVALID_ARGUMENT, "timeout_ms", f"{timeout_ms} is not in 0..{limits.timeout_ms_max}")
        count = columns.item_counts.given(row)
        if count < 1:
            return Fault(INVALID_ARGUMENT, columns.items_path(), "is empty; give at least one")
        if count > limits.items_per_operation_max:
            message = f"{count} are over the limit of {limits.items_per_operation_max}"
            return Fault(INVALID_ARGUMENT, columns.items_path(), message)
        fault = self._items_fault(columns, usage, pending_items, count)
        if fault is not None:
            return fault
        if columns.faulty:
            fault = self._operation_fault(columns, row)
            if fault is not None:
                return fault
        if columns.kind == COMPOSITE:
            fault = self._terms_fault(columns, row, count)
            if fault is not None:
                return fault
        # Done for the first row that needs the full path; a batch of plain rows never validates its dictionary.
        columns.enter_names(limits.topic_length_max)
        for item in range(count):
            fault = self._item_fault(columns, row, first_item, item)
            if fault is not None:
                return fault
        return self._room_fault(columns, first_item, count, usage)

    def _items_fault(self, columns: BatchColumns, usage: AccountUsage, pending_items: int, count: int) -> Fault | None:
        most = self.limits.pending_items_max
        if pending_items + count > most:
            message = f"{pending_items} are pending in total; at most {most} are allowed; try again later"
            return Fault(RESOURCE_EXHAUSTED, columns.items_path(), message)
        if usage.items + count > usage.items_max:
            message = f"{usage.items} are pending in your operations, which is your current share; try again later"
            return Fault(RESOURCE_EXHAUSTED, columns.items_path(), message)
        return None

    def _operation_fault(self, columns: BatchColumns, row: int) -> Fault | None:
        for described in columns.faulty:
            if described.level != ITEM and columns.column(described.name).at(row) == OUT_OF_RANGE:
                field = described.row_name
                if not described.is_of_all_kinds:
                    field = f"{KIND_NAMES[columns.kind]}.{field}"
                return Fault(INVALID_ARGUMENT, field, described.fault(columns.column(described.name).given(row)))
        return None

    def _terms_fault(self, columns: BatchColumns, row: int, count: int) -> Fault | None:
        terms = count - int(columns.column("unless_count").at(row))
        if terms < 1:
            return Fault(INVALID_ARGUMENT, columns.items_path(), "is empty; give at least one")
        required_terms = columns.column("required_terms").at(row)
        if required_terms > terms:
            return Fault(INVALID_ARGUMENT, "composite.required_terms", f"{required_terms} is not in 0..{terms}")
        return None

    def _item_fault(self, columns: BatchColumns, row: int, first_item: int, item: int) -> Fault | None:
        place = columns.places.at(first_item + item)
        if place == OUT_OF_RANGE:
            message = f"{columns.places.given(first_item + item)} is outside the dictionary of {columns.names}"
            return Fault(INVALID_ARGUMENT, "item_index", message)
        first = columns.first_place[place]
        said = columns.name_faults[place]
        # `named_by` stores the row itself, so it needs no reset between rows. Composites may repeat names.
        if not said and columns.named_by[first] == row and columns.kind != COMPOSITE:
            said = f"{self._named(columns, place)} is named twice"
        if said:
            holder = "key" if place >= columns.first_key else "topic_partition"
            return Fault(INVALID_ARGUMENT, f"{columns.item_path(row, item, place)}.{holder}", said)
        columns.named_by[first] = row
        if (
            columns.kind == COMPOSITE
            and place >= columns.first_key
            and columns.offsets.at(first_item + item) in (0, OUT_OF_RANGE)
        ):
            # The column also has the offsets of partitions, which may be 0.
            field = f"{columns.item_path(row, item, place)}.required_count"
            given = columns.offsets.given(first_item + item)
            return Fault(INVALID_ARGUMENT, field, f"{given} is not in 1..{OFFSET_MAX - 1}")
        for described in columns.faulty:
            column = columns.column(described.name)
            if described.level == ITEM and column.at(first_item + item) == OUT_OF_RANGE:
                field = f"{columns.item_path(row, item, place)}.{described.row_name}"
                return Fault(INVALID_ARGUMENT, field, described.fault(column.given(first_item + item)))
        return None

    def _named(self, columns: BatchColumns, place: i64) -> str:
        if place >= columns.first_key:
            return cut(columns.keys[place - columns.first_key])
        topic, partition = columns.partitions[place]
        return f"{cut(topic)}-{partition}"

    def _room_fault(self, columns: BatchColumns, first_item: int, count: int, usage: AccountUsage) -> Fault | None:
        """Check that there is room for the partitions or keys that the operation would create."""
        has_keys = columns.names > columns.first_key
        if columns.first_key > 0 and not self._have_room(
            count,
            self.limits.partitions_max - len(self.partitions.by_name),
            int(usage.partitions_max - usage.partitions),
        ):
            fault = self._partition_room_fault(columns, first_item, count, usage)
            if fault is not None:
                return fault
        if has_keys and not self._have_room(count, self.keys.room(), int(usage.keys_max - usage.keys)):
            return self._key_room_fault(columns, first_item, count, usage)
        return None

    def _have_room(self, count: int, room: int, share: int) -> bool:
        # Usually there is room even if all names are new, and no name has to be looked up.
        return count <= room and count <= share

    def _partition_room_fault(
        self, columns: BatchColumns, first_item: int, count: int, usage: AccountUsage
    ) -> Fault | None:
        # With strict partitions a wait creates nothing: an unknown name gets a stand-in.
        if self.partitions.strict:
            return None
        made = 0
        for place in self._distinct(columns, first_item, count):
            if place < columns.first_key and columns.partitions[place] not in self.partitions.by_name:
                made += 1
        if made == 0:
            return None
        share = int(usage.partitions_max - usage.partitions)
        if made > share:
            return self._share_fault(columns, "partitions", share, made)
        if made <= self.limits.partitions_max - len(self.partitions.by_name):
            return None
        message = f"the limit of {self.limits.partitions_max} known partitions is reached"
        return Fault(RESOURCE_EXHAUSTED, columns.items_path(), message)

    def _key_room_fault(self, columns: BatchColumns, first_item: int, count: int, usage: AccountUsage) -> Fault | None:
        made = 0
        idle = 0
        for place in self._distinct(columns, first_item, count):
            if place >= columns.first_key:
                key = self.keys.get(columns.keys[place - columns.first_key])
                if key is None:
                    made += 1
                # `room` counts idle keys as free. One that this operation names will be held and cannot be replaced.
                elif key.references == 0:
                    idle += 1
        if made + idle == 0:
            return None
        # Idle keys count too: they are charged to this account as soon as its operation holds them.
        share = int(usage.keys_max - usage.keys)
        if made + idle > share:
            return self._share_fault(columns, "keys", share, made + idle)
        if made == 0 or made <= self.keys.room() - idle:
            return None
        message = f"the limit of {self.keys.keys_max} keys with waits is reached"
        return Fault(RESOURCE_EXHAUSTED, columns.items_path(), message)

    def _distinct(self, columns: BatchColumns, first_item: int, count: int) -> list[int]:
        """The indexes of the names of an operation, each name once."""
        places: dict[int, None] = {}
        for item in range(first_item, first_item + count):
            places[columns.first_place[columns.places.at(item)]] = None
        return list(places)

    def _share_fault(self, columns: BatchColumns, noun: str, share: int, more: int) -> Fault:
        message = f"this operation names {more} new {noun}; your current share allows {max(share, 0)} more"
        return Fault(RESOURCE_EXHAUSTED, columns.items_path(), message)
