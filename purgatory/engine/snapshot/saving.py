"""What an engine holds, as bytes and back: pending operations, partitions, counts of keys.

What is saved is what was resolved when an operation came (offsets to wait for, marks to measure its pace from, what
some of its items have come to already), not what was asked: so it waits on, in another engine that is told the same
time, as though nothing had happened. Partitions and keys must be restored before the operations that wait on them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, PartitionName
from purgatory.engine.codes import (
    EXPIRED,
    FETCH,
    PRODUCE,
    READ_COMMITTED,
    SATISFIED,
    SIGNAL,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from purgatory.engine.kinds.fetch import Fetch, FetchItem, examine
from purgatory.engine.marks.partition import Partition
from purgatory.engine.marks.registry import Partitions, SignalKeys
from purgatory.engine.snapshot.partition_saving import partition_from, partition_to
from purgatory.engine.snapshot.saved import SavedOperations
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.registration import deletes_of, produces_of
from purgatory.engine.waiting.tables import FREE, UNRESOLVED, Owner
from purgatory.engine.waiting.wakeups import Wakeups

__all__ = ["Saving"]


class Saving:
    """Saves from one engine and restores into one."""

    def __init__(self, partitions: Partitions, keys: SignalKeys, pending: PendingOperations, wakeups: Wakeups) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.pending: Final = pending
        self.wakeups: Final = wakeups

    # What has changed besides what the calls themselves tell.

    def note_changes(self) -> None:
        """From now on it is noted which operations came a step further without ending, and which keys were
        forgotten.
        """
        self.pending.notes_progress = True
        self.keys.notes_forgotten = True

    def take_progressed(self) -> list[tuple[int, int]]:
        """(owner id, operation id) of those pending that came a step further since the last call."""
        operations = self.pending.operations
        slots = self.pending.progressed
        self.pending.progressed = []
        return [
            (int(i64(operations.owner_id[slot])), int(operations.operation_id[slot]))
            for slot in dict.fromkeys(slots)
            if i64(operations.kind[slot]) != FREE
        ]

    def take_forgotten_keys(self) -> list[str]:
        """The keys that were forgotten since the last call."""
        forgotten = self.keys.forgotten
        self.keys.forgotten = []
        return forgotten

    # Saving.

    def save_above(self, owner: Owner, operation_id: int) -> SavedOperations:
        """All pending operations of an owner with ids above this one, in order."""
        saved = SavedOperations()
        for slot in owner.pending_slots_above(operation_id, self.pending.operations):
            self._save(saved, slot)
        return saved

    def save_some(self, owner: Owner, operation_ids: list[int]) -> SavedOperations:
        """Those of these operations that are pending. The ids must rise."""
        saved = SavedOperations()
        for operation_id in operation_ids:
            slot = owner.find(operation_id, self.pending.operations)
            if slot >= 0:
                self._save(saved, slot)
        return saved

    def _save(self, saved: SavedOperations, slot: i64) -> None:
        operations = self.pending.operations
        items = self.pending.items
        kind = i64(operations.kind[slot])
        count: i64 = 0
        item = i64(operations.first_item[slot])
        while item >= 0:
            target = i64(items.target[item])
            removed: i64 = 0
            log_start: i64 = -1
            if kind == SIGNAL:
                place = saved.place_of(self.keys.at(target).name)
            else:
                partition = self.partitions.at(target)
                place = saved.place_of(partition.name)
                removed = partition.removed_error_code
                if removed != 0:
                    log_start = partition.log_start_offset
            saved.add_item(
                place, items.required[item], items.mark[item], i64(items.epoch[item]), i64(items.error_code[item]),
                removed, log_start,
            )  # fmt: skip
            count += 1
            item = i64(items.next[item])
        saved.add_operation(
            operations.operation_id[slot], kind, operations.registered_ms[slot], self.pending.wheel.deadline_ms(slot),
            i64(operations.items_left[slot]), count,
        )  # fmt: skip
        if kind == FETCH:
            saved.add_fetch(self.pending.fetches[int(slot)])

    def save_partition(self, name: PartitionName) -> bytes:
        """A partition that events have spoken of; empty: there is no such."""
        partition = self.partitions.get(name)
        return partition_to(partition) if partition is not None and partition.announced else b""

    def save_key(self, key: str) -> int:
        """How often a key was signalled."""
        known = self.keys.get(key)
        return 0 if known is None else known.count

    # Restoring.

    def restore_partition(self, name: PartitionName, octets: bytes) -> None:
        """A partition that is not known yet."""
        partition_from(self.partitions.make(name), octets)

    def restore_key(self, key: str, count: int) -> None:
        """A key that is not known yet; the one signalled last comes last."""
        self.keys.make(key).count = count

    def restore(self, owner: Owner, saved: SavedOperations, gone: bytes, now_ms: i64) -> int:
        """Operations wait again, with the time they have left; what fell due meanwhile ends at once. How many there
        were.

        `gone` has a bit for each operation that is to be left out; it may be too short. Where ids do not rise from one
        call to the next, `Owner.put_in_order` must be called before they are looked for.
        """
        item: i64 = 0
        fetch_item: i64 = 0
        fetch: i64 = 0
        count: i64 = i64(len(saved.operation_ids))
        done = 0
        place: i64 = 0
        while place < count:
            kind = saved.kinds[place]
            items = saved.item_counts[place]
            if place >> 3 >= i64(len(gone)) or i64(gone[place >> 3]) >> (place & 7) & 1 == 0:
                self._restore_one(owner, saved, place, item, fetch, fetch_item, now_ms)
                done += 1
            item += items
            if kind == FETCH:
                fetch += 1
                fetch_item += items
            place += 1
        return done

    def _restore_one(
        self, owner: Owner, saved: SavedOperations, place: i64, item: i64, fetch: i64, fetch_item: i64, now_ms: i64
    ) -> None:
        pending = self.pending
        kind = saved.kinds[place]
        deadline_ms = saved.deadlines_ms[place]
        slot = pending.enter(
            owner, kind, saved.items_left[place], saved.operation_ids[place], saved.registered_ms[place]
        )
        waits = pending.wheel.add(slot, deadline_ms)
        if kind == FETCH:
            ready = self._restore_fetch(saved, slot, saved.item_counts[place], item, fetch, fetch_item)
        else:
            ready = False
            self._restore_items(saved, slot, kind, saved.item_counts[place], item)
        if not waits:
            pending.end(slot, EXPIRED, now_ms)
        elif ready:
            pending.end(slot, SATISFIED, now_ms)

    def _restore_items(self, saved: SavedOperations, slot: i64, kind: i64, count: i64, first: i64) -> None:
        """Items of a countdown; those unresolved are watched."""
        pending = self.pending
        last: i64 = -1
        for item in range(first, first + count):
            error = saved.error_codes[item]
            required = saved.required[item]
            name = saved.names[saved.places[item]]
            if kind == SIGNAL:
                key = self.keys.get(name[0])
                if key is None:
                    key = self.keys.make(name[0])
                self.keys.hold(key)
                last = pending.add_item(slot, last, key.index, required, saved.marks[item], -1, error)
                entries = key.waits
            else:
                removed = saved.removed[item]
                log_start = saved.log_starts[item]
                if error != UNRESOLVED and removed == 0 and self.partitions.get(name) is None:
                    removed = UNKNOWN_TOPIC_OR_PARTITION  # it has gone since, and is only to be named
                    log_start = 0
                partition = self._partition(name, removed, log_start)
                last = pending.add_item(
                    slot, last, partition.index, required, saved.marks[item], saved.epochs[item], error
                )
                entries = produces_of(partition) if kind == PRODUCE else deletes_of(partition)
            if error == UNRESOLVED:
                pending.watch(entries, kind, last, required)

    def _restore_fetch(
        self, saved: SavedOperations, slot: i64, count: i64, first: i64, row: i64, first_fetched: i64
    ) -> bool:
        """A fetch; whether it may answer at once after all."""
        fetch = Fetch(
            saved.min_bytes[row],
            saved.replica_ids[row],
            READ_COMMITTED if saved.read_committed[row] != 0 else 0,
            saved.leader_only[row] == 0,
        )
        last: i64 = -1
        for within in range(count):
            item = first + within
            place = first_fetched + within
            partition = self._partition(saved.names[saved.places[item]], saved.removed[item], saved.log_starts[item])
            part = FetchItem(
                partition,
                saved.required[item],
                saved.max_bytes[place],
                saved.leader_epochs[place],
                saved.last_fetched_epochs[place],
                saved.throttled[place] != 0,
            )
            part.start_segment = saved.start_segments[place]
            part.start_reach = saved.start_reaches[place]
            fetch.items.append(part)
            last = self.pending.add_item(slot, last, partition.index, part.fetch_offset, -1, -1, UNRESOLVED)
            part.item = last
            if part.throttled:
                partition.throttled_fetches += 1
        self.pending.fetches[int(slot)] = fetch
        if examine(fetch):
            return True
        self.wakeups.watch_fetch(fetch)
        return False

    def _partition(self, name: AsGiven, removed: i64, log_start: i64) -> Partition:
        """The partition that an item names, held; one that was gone already is gone here too."""
        partition: Partition | None
        if removed != 0:
            partition = self.partitions.make_missing(name, removed)
            partition.log_start_offset = log_start
        else:
            partition = self.partitions.get(name)
            if partition is None:
                partition = self.partitions.make(name)
        self.partitions.hold(partition)
        return partition
