"""Rankings over all pending operations, collected slice by slice, for display."""

from typing import Final, NamedTuple

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, PartitionName

NAMES_MAX: Final = 200_000
"""Maximum number of distinct names, about 30 MB."""


class RankedOperation(NamedTuple):
    """A pending operation at the time of the visit; it may have ended since."""

    slot: int
    operation_id: int


class PendingRanking:
    """The `size` operations that have waited longest, the `size` that expire soonest, and the waits on each name.

    Filled by `EngineInspection.rank`.
    """

    def __init__(
        self,
        size: int,
        owner_ids: set[int] | None = None,
        kind: int = 0,
        partition: PartitionName | None = None,
        key: str = "",
        search: str = "",
        descending: bool = False,
        search_owner_ids: set[int] | None = None,
    ) -> None:
        """All filters are optional and are combined.

        Args:
            size: How many operations to keep.
            owner_ids: Only operations of these owners.
            kind: Only this kind; 0: all.
            partition: Only operations that wait on this partition.
            key: Only operations that wait on this key.
            search: Only operations that wait on a name which contains this text, ignoring case.
            descending: Keep the operations that were registered last and those that expire last instead.
            search_owner_ids: Owners whose operations match `search` whatever they wait on.
        """
        self.owner_ids: Final = owner_ids
        self.kind: Final[i64] = kind
        self.partition: Final = partition
        self.key: Final = key
        self.search: Final = search.lower()
        self.search_owner_ids: Final[set[int]] = search_owner_ids or set()
        self._sign: Final[i64] = -1 if descending else 1
        self.operations = 0
        """Operations visited."""
        self.waits: Final[dict[PartitionName, int]] = {}
        """Number of waits by name; a signal's key is (key, -1)."""
        self.is_cut = False
        """There are more names than `NAMES_MAX`: waits on the others were not counted."""
        self._size: Final = size
        self._oldest: Final[list[tuple[int, int, int]]] = []
        self._soonest: Final[list[tuple[int, int, int]]] = []
        self._oldest_max: i64 = 2**62
        self._soonest_max: i64 = 2**62

    def add(self, slot: i64, operation_id: i64, registered_ms: i64, deadline_ms: i64) -> None:
        """Add an operation."""
        self.operations += 1
        registered, deadline = self._sign * registered_ms, self._sign * deadline_ms
        # The bounds are those of the last trim, so a value that does not pass them cannot be among the first `size`.
        if registered < self._oldest_max:
            self._oldest_max = self._keep(self._oldest, registered, slot, operation_id, self._oldest_max)
        if deadline < self._soonest_max:
            self._soonest_max = self._keep(self._soonest, deadline, slot, operation_id, self._soonest_max)

    def add_wait(self, name: AsGiven) -> None:
        """Add a wait on a name."""
        waits = self.waits.get(name, 0)
        if waits == 0 and len(self.waits) >= NAMES_MAX:
            self.is_cut = True
        else:
            self.waits[name] = waits + 1

    def longest_waiting(self) -> list[RankedOperation]:
        """In the order of registration; with `descending`, the last registered first."""
        return [RankedOperation(slot, operation_id) for _, slot, operation_id in sorted(self._oldest)[: self._size]]

    def soonest_expiring(self) -> list[RankedOperation]:
        """In the order of deadlines; with `descending`, the last deadline first."""
        return [RankedOperation(slot, operation_id) for _, slot, operation_id in sorted(self._soonest)[: self._size]]

    def _keep(self, rows: list[tuple[int, int, int]], value: i64, slot: i64, operation_id: i64, largest: i64) -> i64:
        # Trimmed only once the list is twice the size, so that a falling series costs one sort per `size` values.
        rows.append((value, slot, operation_id))
        if len(rows) < 2 * self._size:
            return largest
        rows.sort()
        del rows[self._size :]
        return rows[-1][0]


class WheelRing(NamedTuple):
    """One level of the timing wheel: its buckets in order of index.

    `clock_ms` is a multiple of `tick_ms`. `counts` has the number of operations in each bucket, counted up to
    `counted_max`.
    """

    level: int
    tick_ms: int
    clock_ms: int
    counts: list[int]
    counted_max: int
