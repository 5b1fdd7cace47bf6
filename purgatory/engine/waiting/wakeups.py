"""Re-evaluates the waits that are affected by a change of a partition or key.

There are two ways. `wake` follows the marks: each watch list returns only the entries whose threshold its mark has
reached, so the cost follows the completions. `reevaluate` evaluates all operations that wait on a partition. It is for
the rare events that can end a wait without raising a mark: leadership, epochs, storage, removal, truncation, and the
in-sync set.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.codes import COMPOSITE, DELETE_RECORDS, FETCH, KINDS, PRODUCE
from purgatory.engine.kinds.composite import CompositeKind
from purgatory.engine.kinds.delete_records import DeleteRecordsKind
from purgatory.engine.kinds.fetch import FetchKind
from purgatory.engine.kinds.kind import Kind
from purgatory.engine.kinds.produce import ProduceKind
from purgatory.engine.kinds.signal import SignalKind
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import SignalKey
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.watches import WatchList, ref_is_live, ref_item

NO_THRESHOLD: Final[i64] = 2**62
"""Above all thresholds."""

UNLIMITED: Final = 2**60
"""More units of work than any call does."""


class Wakeups:
    """All kinds of an engine. Created once for its pending operations, which then end operations through them."""

    def __init__(self, pending: PendingOperations) -> None:
        self.pending: Final = pending
        self.fetches: Final = FetchKind(pending)
        self.signals: Final = SignalKind(pending)
        self._produces: Final = ProduceKind(pending)
        self._deletes: Final = DeleteRecordsKind(pending)
        self._composites: Final = CompositeKind(pending)
        self._on_partitions: Final[list[Kind]] = [self._produces, self.fetches, self._deletes, self._composites]
        # Indexed by code, which is not the order in which kinds are woken.
        # A placeholder at 0 instead of None: otherwise every look-up by code would have to exclude None.
        by_code = [Kind(0, pending.partitions, pending.items)] * (len(KINDS) + 1)
        for kind in [*self._on_partitions, self.signals]:
            by_code[int(kind.code)] = kind
        pending.kinds = by_code

    def wake(self, partition: Partition, now_ms: i64, fetches_first: bool) -> None:
        """Marks of the partition may have risen; `fetches_first` after a follower's fetch.

        The order of kinds is Kafka's, with composites last; it is the order of completions, so callers and replays
        depend on it. Kinds are called one by one because this runs for every mark that moves: calls on a known class
        cost a third of those through a list.
        """
        # Checked here because most engines have one kind, and each call costs 50 instructions.
        watched = self.pending.watched_by_kind
        if fetches_first and watched[FETCH] > 0:
            self.fetches.wake(partition, now_ms)
        if watched[PRODUCE] > 0:
            self._produces.wake(partition, now_ms)
        if not fetches_first and watched[FETCH] > 0:
            self.fetches.wake(partition, now_ms)
        if watched[DELETE_RECORDS] > 0:
            self._deletes.wake(partition, now_ms)
        if watched[COMPOSITE] > 0:
            self._composites.wake(partition, now_ms)

    def wake_key(self, key: SignalKey, now_ms: i64) -> None:
        """The key was signalled."""
        self.signals.wake_key(key, now_ms)
        self._composites.wake_key(key, now_ms)

    def fail_key(self, key: SignalKey, now_ms: i64) -> None:
        """The key was signalled as failed."""
        self.signals.fail_key(key, now_ms)
        self._composites.fail_key(key, now_ms)

    def reevaluate(self, partition: Partition, now_ms: i64) -> None:
        """Anything about the partition may have changed."""
        for kind in self._on_partitions:
            kind.reevaluate(partition, now_ms)

    def on_mark_lowered(self, partition: Partition, now_ms: i64) -> None:
        """The high watermark or the log end was lowered."""
        for kind in self._on_partitions:
            kind.on_mark_lowered(partition, now_ms)

    def cancel_waiting(self, partition: Partition, outcome: i64, now_ms: i64, work_max: i64) -> None:
        """End the operations that wait on the partition, until `work_max` units of work are done."""
        # Collected first: the last operation that ends may free the partition, but the lists stay valid.
        lists: list[WatchList] = []
        for kind in self._on_partitions:
            lists.extend(kind.watch_lists(partition))
        stop = self.pending.work_total + work_max
        for entries in lists:
            self.cancel_entries(entries, outcome, now_ms, stop - self.pending.work_total)

    def cancel_waiting_key(self, key: SignalKey, outcome: i64, now_ms: i64, work_max: i64) -> None:
        """End the operations that wait on the key, until `work_max` units of work are done."""
        stop = self.pending.work_total + work_max
        self.cancel_entries(key.waits, outcome, now_ms, work_max)
        if key.composite_waits is not None:
            self.cancel_entries(key.composite_waits, outcome, now_ms, stop - self.pending.work_total)

    def cancel_entries(self, entries: WatchList, outcome: i64, now_ms: i64, work_max: i64) -> None:
        """End operations that have a live entry in a list, until `work_max` units of work are done."""
        items = self.pending.items
        stop = self.pending.work_total + work_max
        while self.pending.work_total < stop:
            # Thresholds equal to the mark are popped, so this also reaches fetches that wait for `NEVER`, which is the
            # same number.
            ref = entries.pop_reached(NO_THRESHOLD)
            if ref < 0:
                return
            # Not `popped`: ending the operation unwatches its items, and that counts this entry as dead.
            if ref_is_live(ref, items.generation):
                self.pending.end(i64(items.slot[ref_item(ref)]), outcome, now_ms)
