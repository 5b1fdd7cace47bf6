"""Ends operations whose marks have been stale for too long. The caller knows which marks are stale.

A *stale timeout* is how long a mark may be stale while its operation waits. Operations that have one are identified by
slot. A slot may be reused between two calls; it then identifies the operation that has it at that time.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, PartitionName
from purgatory.engine.codes import MARK_STALE
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import UNRESOLVED


class StaleWaits:
    """Finds and ends operations that wait for stale marks."""

    def __init__(self, pending: PendingOperations) -> None:
        self.pending: Final = pending

    def slots(self) -> list[int]:
        """Slots of all pending operations that have a stale timeout."""
        return list(self.pending.stale_timeouts)

    def names(self, slots: list[int]) -> list[PartitionName]:
        """The partitions that these operations wait for, each once. Keys cannot become stale."""
        found: dict[AsGiven, bool] = {}
        for slot in slots:
            # The operation may have ended since `slots` was called, and the slot may be free or belong to another one
            # by now.
            if slot in self.pending.stale_timeouts:
                self._add_names(slot, found)
        return list(found)

    def due(self, slots: list[int], stale_ms: dict[PartitionName, int], now_ms: i64) -> list[int]:
        """Those operations that have waited for a mark which was stale for the whole of their stale timeout.

        `stale_ms` has the marks that are stale, and for how long. Pauses do not count as waiting.
        """
        listening_ms = self.pending.listening_ms(now_ms)
        found: list[int] = []
        for slot in slots:
            stale_timeout = self.pending.stale_timeouts.get(slot)
            # Two conditions, because a mark may have been stale long before the operation was registered: both the wait
            # and the staleness must have lasted for the timeout.
            if stale_timeout is None or listening_ms - stale_timeout.since_ms < stale_timeout.timeout_ms:
                continue
            if self._is_out_of_time(slot, stale_ms, stale_timeout.timeout_ms):
                found.append(slot)
        return found

    def owner_id(self, slot: int) -> int:
        """The owner of the operation in a slot."""
        return int(i64(self.pending.operations.owner_id[slot]))

    def operation_id(self, slot: int) -> int:
        """The id of the operation in a slot."""
        return int(self.pending.operations.operation_id[slot])

    def fail(self, slot: i64, stale: set[PartitionName], now_ms: i64) -> None:
        """End an operation as FAILED. Of the items that it still waits for, the stale ones get the code MARK_STALE."""
        kind = self.pending.kinds[i64(self.pending.operations.kind[slot])]
        causes: list[bool] = []
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            name: AsGiven = kind.name_of(item)
            causes.append(i64(self.pending.items.error_code[item]) == UNRESOLVED and name in stale)
            item = i64(self.pending.items.next[item])
        self.pending.fail(slot, MARK_STALE, causes, now_ms)

    def _add_names(self, slot: i64, found: dict[AsGiven, bool]) -> None:
        kind = self.pending.kinds[i64(self.pending.operations.kind[slot])]
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            partition = kind.partition_of(item)
            if partition is not None and kind.must_come(item):
                found[partition.name] = True
            item = i64(self.pending.items.next[item])

    def _is_out_of_time(self, slot: i64, stale_ms: dict[PartitionName, int], stale_timeout_ms: i64) -> bool:
        """Whether the operation has to fail because of marks that have been stale for this long.

        One is enough, except for a composite that can do without some of its terms.
        """
        kind = self.pending.kinds[i64(self.pending.operations.kind[slot])]
        lost: i64 = 0
        item = i64(self.pending.operations.first_item[slot])
        while item >= 0:
            partition = kind.partition_of(item)
            if partition is not None and kind.must_come(item):
                name: AsGiven = partition.name
                if stale_ms.get(name, -1) >= stale_timeout_ms:
                    lost += 1
            item = i64(self.pending.items.next[item])
        return lost > kind.spare(slot)
