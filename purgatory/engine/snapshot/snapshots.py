"""Saves the state of an engine (pending operations, partitions, counts of keys) and restores it into another engine.

An operation is saved not as its request but as its current state: the offsets it waits for, the marks from which its
pace is measured, and the items that have ended. So in another engine, at the same time, it continues to wait without
any difference. Partitions and keys must be restored before the operations that wait on them: an operation on an unknown
partition would create a new one, without marks.

Of a partition, all state reported by events is saved; its waits are saved with the operations.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import EXPIRED, NONE, SATISFIED
from purgatory.engine.marks.partition import Partition, Replica
from purgatory.engine.marks.registry import NO_VALUE, Partitions, SignalKeys
from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter
from purgatory.engine.snapshot.saved_operations import SavedOperations, SavedPlace
from purgatory.engine.waiting.pending import PendingOperations
from purgatory.engine.waiting.tables import FREE, Owner

REPLICA_COLUMNS: Final = 7
DEAD: Final = 1
FENCED: Final = 2


def partition_to(partition: Partition) -> bytes:
    """Serialize the state of a partition."""
    writer = ColumnWriter()
    # Read by position, and stored in journals on disk: new values go to the end, and none may be removed.
    scalars: vec[i64] = vec[i64]([
        1 if partition.storage_failed else 0,
        1 if partition.is_leader else 0,
        partition.leader_epoch,
        partition.leader_id,
        partition.log_start_offset,
        partition.log_end_offset,
        partition.high_watermark,
        partition.first_unstable_offset,
        partition.min_in_sync_replicas,
        partition.unchanged_events,
        partition.stale_events,
        partition.first_mark,
        partition.first_ms,
    ])  # fmt: skip
    writer.add(scalars)
    writer.add_list(partition.in_sync)
    writer.add_list(partition.proposed)
    replicas: list[int] = []
    for replica in partition.replicas.values():
        replicas += replica_to(replica)
    writer.add_list(replicas)
    writer.add(partition.positions.offsets)
    writer.add(partition.positions.segments)
    writer.add(partition.positions.positions)
    writer.add(partition.positions.reaches)
    writer.add_list(partition.epochs.epochs)
    writer.add_list(partition.epochs.start_offsets)
    return writer.to_bytes()


def replica_to(replica: Replica) -> list[int]:
    """The state of a replica as integers; its membership is stored in the sets themselves."""
    return [
        replica.replica_id,
        int(replica.log_end_offset),
        int(replica.log_start_offset),
        int(replica.last_caught_up_ms),
        int(replica.last_fetch_ms),
        int(replica.leader_end_at_last_fetch),
        (DEAD if replica.dead else 0) + (FENCED if replica.fenced else 0),
    ]


def partition_from(partition: Partition, octets: bytes) -> None:
    """Restore the output of `partition_to` into a new partition."""
    reader = ColumnReader(octets)
    scalars = reader.column()
    partition.storage_failed = scalars[0] != 0
    partition.is_leader = scalars[1] != 0
    partition.leader_epoch = scalars[2]
    partition.leader_id = scalars[3]
    partition.log_start_offset = scalars[4]
    partition.log_end_offset = scalars[5]
    partition.high_watermark = scalars[6]
    partition.first_unstable_offset = scalars[7]
    partition.min_in_sync_replicas = scalars[8]
    partition.unchanged_events = scalars[9]
    partition.stale_events = scalars[10]
    partition.first_mark = scalars[11]
    partition.first_ms = scalars[12]
    partition.in_sync = [int(member) for member in reader.column()]
    partition.proposed = [int(member) for member in reader.column()]
    replicas = [int(value) for value in reader.column()]
    # With `know`, because `replica` would search both sets for each id; the flags are set once, by `mark_members`
    # below.
    for first in range(0, len(replicas), REPLICA_COLUMNS):
        replica_from(partition.know(replicas[first]), replicas[first : first + REPLICA_COLUMNS])
    # The sets were restored above, so this sets the flags that are not saved; it also counts the in-sync set.
    partition.mark_members()
    positions = partition.positions
    positions.offsets = reader.column()
    positions.segments = reader.column()
    positions.positions = reader.column()
    positions.reaches = reader.column()
    partition.epochs.epochs.extend([int(epoch) for epoch in reader.column()])
    partition.epochs.start_offsets.extend([int(offset) for offset in reader.column()])


def replica_from(replica: Replica, values: list[int]) -> None:
    """Restore the output of `replica_to` into a new replica."""
    replica.log_end_offset = values[1]
    replica.log_start_offset = values[2]
    replica.last_caught_up_ms = values[3]
    replica.last_fetch_ms = values[4]
    replica.leader_end_at_last_fetch = values[5]
    replica.dead = values[6] & DEAD != 0
    replica.fenced = values[6] & FENCED != 0


SavedKey = tuple[str, int, bytes, int, str]
"""A key, how often it was signalled, its value (empty: none), its failure, and the name of its account. The failure is
0 if it has not failed, otherwise 1 more than its count when it failed; negative if it had no value then.
"""


class Snapshots:
    """Saves from one engine and restores into one."""

    def __init__(self, partitions: Partitions, keys: SignalKeys, pending: PendingOperations) -> None:
        self.partitions: Final = partitions
        self.keys: Final = keys
        self.pending: Final = pending

    # Changes that are not visible in the calls themselves.

    def note_changes(self) -> None:
        """From now on, record which operations progressed without ending and which keys were forgotten. No call and no
        completion reports these.
        """
        self.pending.notes_progress = True
        self.keys.notes_forgotten = True

    def take_progressed(self) -> list[tuple[int, int]]:
        """(owner id, operation id) of pending operations that progressed since the last call."""
        operations = self.pending.operations
        slots = self.pending.progressed
        self.pending.progressed = []
        return [
            (int(i64(operations.owner_id[slot])), int(operations.operation_id[slot]))
            # A slot occurs once for each item that was resolved.
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
        """Save all pending operations of an owner with ids above this one, in order."""
        saved = SavedOperations()
        for slot in owner.pending_slots_above(operation_id, self.pending.operations):
            self._save(saved, slot)
        return saved

    def save_some(self, owner: Owner, operation_ids: list[int]) -> SavedOperations:
        """Save the operations among these ids that are pending. The ids must be ascending."""
        saved = SavedOperations()
        for operation_id in operation_ids:
            slot = owner.find(operation_id, self.pending.operations)
            if slot >= 0:
                self._save(saved, slot)
        return saved

    def _save(self, saved: SavedOperations, slot: i64) -> None:
        operations = self.pending.operations
        items = self.pending.items
        kind = self.pending.kinds[i64(operations.kind[slot])]
        count: i64 = 0
        item = i64(operations.first_item[slot])
        while item >= 0:
            removed: i64 = NONE
            log_start: i64 = -1
            partition = kind.partition_of(item)
            if partition is not None:
                # The name of a removed partition may be unknown in the other engine, or belong to a new one, so the
                # item carries the error code itself.
                removed = partition.removed_error_code
                if removed != NONE:
                    log_start = partition.log_start_offset
            place = saved.place_of(kind.name_of(item))
            saved.add_item(
                place, items.required[item], items.mark[item], i64(items.epoch[item]), i64(items.error_code[item]),
                removed, log_start,
            )  # fmt: skip
            count += 1
            item = i64(items.next[item])
        saved.add_operation(
            operations.operation_id[slot], kind.code, operations.registered_ms[slot],
            self.pending.deadline_ms(slot), i64(operations.items_left[slot]), count,
        )  # fmt: skip
        kind.save_extra(saved, slot)
        if self.pending.stale_timeouts and int(slot) in self.pending.stale_timeouts:
            saved.stale_timeouts_ms[len(saved) - 1] = int(self.pending.stale_timeouts[int(slot)].timeout_ms)
        if self.pending.heartbeats and int(slot) in self.pending.heartbeats:
            saved.heartbeat_timeouts_ms[len(saved) - 1] = int(self.pending.heartbeats[int(slot)].timeout_ms)

    def save_partition(self, name: PartitionName) -> bytes:
        """Save a partition. Empty if no event has named it: a partition that only has waits has no state."""
        partition = self.partitions.get(name)
        return partition_to(partition) if partition is not None and partition.announced else b""

    def save_key(self, key: str) -> SavedKey:
        """Save a key. Its count is 0 if it is not known."""
        known = self.keys.get(key)
        if known is None or known.count == 0:
            return key, 0, NO_VALUE, 0, ""
        failed = int(known.failed_at) + 1 if known.failed else 0
        if known.value_at >= known.failed_at:
            failed = -failed
        return key, int(known.count), known.value, failed, known.account.name

    def save_keys(self) -> list[SavedKey]:
        """Save all keys that were signalled, in the order in which `restore_key` needs them."""
        return [self.save_key(signal_key.key) for signal_key in self.keys.oldest_first() if signal_key.count]

    # Restoring.

    def restore_partition(self, name: PartitionName, octets: bytes) -> None:
        """Create a partition that is not known yet, with its saved state."""
        partition = self.partitions.make(name, self.partitions.unowned)
        self.partitions.announce(partition)
        partition_from(partition, octets)
        # After its state: replicas, epochs and positions are what is weighed.
        self.partitions.weigh(partition)

    def restore_key(
        self, key: str, count: int, value: bytes = NO_VALUE, failed: int = 0, account: AccountUsage | None = None
    ) -> None:
        """Create a key of an account. Call in the order of the last signals: an account's first key is the first to be
        forgotten.
        """
        made = self.keys.make(key, self.keys.unowned if account is None else account)
        made.count = count
        made.failed = failed != 0
        made.failed_at = max(abs(failed) - 1, 0)
        made.value_at = made.failed_at if failed < 0 else 0
        # The limit may be lower than when the value was saved; like an idle key over the limit, it is then forgotten.
        if value and self.keys.has_room_for_value(made.account, len(value)):
            self.keys.set_value(made, value)

    def restore(self, owner: Owner, saved: SavedOperations, gone: bytes, now_ms: i64) -> int:
        """Restore saved operations, which wait for the time that they have left; those that are overdue end now.

        `gone` has one bit for each operation, set if it must be skipped; missing bytes are zero. If ids do not ascend
        from one call to the next, call `Owner.put_in_order` before searching for them.

        Returns:
            The number of restored operations.
        """
        # `place` steps over skipped operations too, because the items and fetches of all rows share their columns.
        count: i64 = i64(len(saved.operation_ids))
        done = 0
        place = SavedPlace()
        while place.row < count:
            if place.row >> 3 >= i64(len(gone)) or i64(gone[place.row >> 3]) >> (place.row & 7) & 1 == 0:
                self._restore_one(owner, saved, place, now_ms)
                done += 1
            place.step(saved)
        return done

    def _restore_one(self, owner: Owner, saved: SavedOperations, place: SavedPlace, now_ms: i64) -> None:
        pending = self.pending
        row = place.row
        kind = saved.kinds[row]
        slot = pending.enter(
            owner, kind, saved.item_counts[row], saved.items_left[row], saved.operation_ids[row],
            saved.registered_ms[row],
        )  # fmt: skip
        if saved.stale_timeouts_ms and int(row) in saved.stale_timeouts_ms:
            # From now on, as for a heartbeat below.
            pending.limit_staleness(slot, saved.stale_timeouts_ms[int(row)], now_ms)
        # Items are added even if the time is up: ending the operation releases them.
        # The deadline itself and not the time that was left: engine time continues from the last daemon, including the
        # time in between.
        waits = pending.wheel.add(slot, saved.deadlines_ms[row])
        can_end = pending.kinds[kind].restore(saved, place, slot)
        if waits and saved.heartbeat_timeouts_ms and int(row) in saved.heartbeat_timeouts_ms:
            # No signal could be received while this engine did not exist, so silence counts from now on.
            pending.require_heartbeat(slot, saved.heartbeat_timeouts_ms[int(row)], now_ms)
        if not waits:
            pending.end(slot, EXPIRED, now_ms)
        elif can_end:
            pending.end(slot, SATISFIED, now_ms)
