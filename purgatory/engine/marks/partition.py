"""One partition as its leader (or a follower) sees it: marks, replicas, in-sync set and epochs, and how they move.

The rules are Kafka's (3.7 and later; docs/semantics.md lists where ours close a gap). Marks are guarded where they are
stored: every method that may move a mark returns whether it did. This module does not know operations; a partition only
holds the watch lists of its waits. -1 means unknown, everywhere.

`EpochCache` is Kafka's leader epoch cache (docs/semantics.md): sorted (epoch, start offset) pairs, of which the newest
`ENTRIES_MAX` are kept. Kafka drops an epoch only when the log has dropped its records. Here epochs may be missing whose
records still exist.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.batches import AsGiven, ReplicaSets
from purgatory.engine.codes import KINDS
from purgatory.engine.marks.positions import PositionIndex
from purgatory.engine.waiting.watches import WatchList

ENTRIES_MAX: Final = 1_000

DROPPED_BELOW: Final = -1
"""Stands for the start of the oldest kept epoch; below all offsets, so the column stays ascending."""


class EpochCache:
    """Sorted leader epochs and the first offset of each."""

    def __init__(self) -> None:
        self.epochs: Final[list[int]] = []
        self.start_offsets: Final[list[int]] = []
        """The first one is `DROPPED_BELOW` if older epochs were dropped to keep `ENTRIES_MAX`."""

    def assign(self, epoch: i64, start_offset: i64) -> None:
        """Record that `epoch` began at `start_offset`, unless it is already known.

        Contradicted entries are dropped: those with a newer epoch, and those that began no earlier and so have no
        records.
        """
        if self.epochs and self.epochs[-1] == epoch and self.start_offsets[-1] <= start_offset:
            return
        # As in Kafka's LeaderEpochFileCache: both columns stay strictly ascending, which the binary search needs.
        while self.epochs and (self.epochs[-1] >= epoch or self.start_offsets[-1] >= start_offset):
            self.epochs.pop()
            self.start_offsets.pop()
        self.epochs.append(epoch)
        self.start_offsets.append(start_offset)
        if len(self.epochs) > ENTRIES_MAX:
            del self.epochs[0]
            del self.start_offsets[0]
            # Stored in the column, so it is saved with it. The start is needed only to answer for older epochs.
            self.start_offsets[0] = DROPPED_BELOW

    def truncate(self, log_end_offset: i64) -> None:
        """Drop the epochs that begin at or above the new end of the log."""
        while self.start_offsets and self.start_offsets[-1] >= log_end_offset:
            self.epochs.pop()
            self.start_offsets.pop()

    def end_offset(self, epoch: i64, log_end_offset: i64) -> tuple[int, int]:
        """The (epoch, end offset) that answers for `epoch`.

        (-1, -1): undefined, because the epoch is unknown, is newer than all known ones, was dropped, or none is known.
        """
        epochs = self.epochs
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return -1, -1
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        # A later end than the true one would hide that the reader's log has diverged.
        if epoch < epochs[0] and self.start_offsets[0] == DROPPED_BELOW:
            return -1, -1
        # As in Kafka: everything below the first entry was written in epochs that are not known any more, so the
        # reader's epoch is repeated and ends where the first entry begins.
        if epoch < epochs[0]:
            return epoch, self.start_offsets[0]
        low = 0
        high = len(epochs) - 1
        # Invariant: `epochs[low] <= epoch < epochs[high]`.
        while high - low > 1:
            middle = (low + high) // 2
            if epochs[middle] <= epoch:
                low = middle
            else:
                high = middle
        return epochs[low], self.start_offsets[high]


NO_FETCH_OFFSET: Final[i64] = 2**62
"""Above all fetch offsets."""


class Replica:
    """A remote replica: the offsets of its last fetch, and whether it counts."""

    def __init__(self, replica_id: int) -> None:
        self.replica_id: Final = replica_id
        self.log_end_offset: i64 = -1
        self.log_start_offset: i64 = -1
        self.in_sync = False
        self.proposed = False
        self.dead = False
        self.fenced = False
        self.last_caught_up_ms: i64 = -1
        self.last_fetch_ms: i64 = -1
        self.leader_end_at_last_fetch: i64 = -1

    def forget_progress(self) -> None:
        # A new leader knows nothing about the replica's log until the replica fetches.
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_caught_up_ms = -1
        self.last_fetch_ms = -1
        self.leader_end_at_last_fetch = -1

    def is_caught_up(self, leader_end_offset: i64, now_ms: i64, lag_max_ms: i64) -> bool:
        """Kafka's rule: at the leader's end, or last there at most `lag_max_ms` ago."""
        if self.log_end_offset == leader_end_offset:
            return True
        return self.last_caught_up_ms >= 0 and now_ms - self.last_caught_up_ms <= lag_max_ms


class FetchWatch:
    """Fetches that wait for one mark of a partition, by the reach they need. All were examined within `segment`."""

    def __init__(self, segment: i64) -> None:
        self.entries: Final = WatchList()
        self.segment: i64 = segment


class Partition:
    """State of one partition."""

    def __init__(self, name: AsGiven, index: i64, account: AccountUsage) -> None:
        self.name: Final[AsGiven] = name
        self.index: Final[i64] = index
        self.is_named = False
        """Whether the name is mapped to this partition."""
        self.announced = False
        """Whether an event has named this partition; until then only waits have."""
        self.removed_error_code: i64 = 0
        """If not 0, the partition was removed, and its waits end with this code."""
        self.storage_failed = False
        self.leader_epoch: i64 = -1
        self.is_leader = True
        self.leader_id: i64 = -1
        self.log_start_offset: i64 = 0
        self.log_end_offset: i64 = -1
        self.high_watermark: i64 = -1
        self.first_mark: i64 = -1
        """The high watermark when it was first known to this engine, and the time; the pace of earlier waits."""
        self.first_ms: i64 = -1
        self.first_unstable_offset: i64 = -1
        self.min_in_sync_replicas: i64 = 1
        self.in_sync: list[int] = []
        self.proposed: list[int] = []
        self.replicas: Final[dict[int, Replica]] = {}
        self._maximal_in_sync: i64 = 0
        self.positions: Final = PositionIndex()
        self.epochs: Final = EpochCache()
        self.account: Final = account
        """Usage of the account that was first to name it."""
        self.weighed_bytes: i64 = 0
        """Bytes at which it was last counted."""
        self.unchanged_events: i64 = 0
        self.stale_events: i64 = 0

        self.references: i64 = 0
        """Items of pending operations that name it."""
        self.named_by_row: i64 = -1
        """The last plain row that named it, by the sequence number of `ProduceKind`."""
        self.waits: Final[list[WatchList | None]] = [None] * (len(KINDS) + 1)
        """By kind: waits for one mark, by the value that it must reach. Fetches have their own lists."""
        self.fetches_to_log_end: FetchWatch | None = None
        self.fetches_to_high_watermark: FetchWatch | None = None
        self.fetches_to_last_stable: FetchWatch | None = None
        self.lowest_fetch_offset: i64 = NO_FETCH_OFFSET
        """A lower bound of the fetch offsets that wait here."""
        self.throttled_fetches: i64 = 0

    # Derived marks.

    def last_stable_offset(self) -> i64:
        """The first unstable offset if it is below the high watermark, else the high watermark."""
        unstable = self.first_unstable_offset
        if unstable < 0 or unstable >= self.high_watermark:
            return self.high_watermark
        # The beginning of an open transaction may have been deleted.
        return unstable if unstable > self.log_start_offset else self.log_start_offset

    def low_watermark(self) -> i64:
        """Lowest log start offset of the leader and all replicas that are not dead.

        -1: a replica has not fetched yet, or this is not the leader.
        """
        if not self.is_leader:
            return -1
        lowest = self.log_start_offset
        for replica in self.replicas.values():
            if not replica.dead and replica.log_start_offset < lowest:
                lowest = replica.log_start_offset
        return lowest

    def effective_min_in_sync_replicas(self) -> i64:
        """The minimum, but never more than there are replicas (Kafka 3.7+)."""
        replicas: i64 = len(self.replicas) + 1
        return self.min_in_sync_replicas if self.min_in_sync_replicas < replicas else replicas

    def is_under_min_in_sync(self) -> bool:
        """Whether too few replicas are in sync to acknowledge a write. False if the set is unknown."""
        # Kafka's maximal in-sync set, with the proposal: its members hold the high watermark back already.
        # `recompute_high_watermark` counts the committed set alone.
        return bool(self.in_sync) and self._maximal_in_sync < self.effective_min_in_sync_replicas()

    # Every method here keeps log start <= high watermark <= log end where they are known, and the last stable offset
    # between the first two. Waits rely on it: an offset that was reached is readable.
    # Marks.

    def note_first_mark(self, now_ms: i64) -> None:
        """Call after each event."""
        if self.first_mark < 0 and self.high_watermark >= 0:
            self.first_mark, self.first_ms = self.high_watermark, now_ms

    def raise_high_watermark(self, offset: i64) -> bool:
        """Apply a reported high watermark.

        On a leader it only rises. On a follower it is set to the leader's value, limited to its own log end, and may be
        lowered.
        """
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        if self.is_leader:
            if offset <= self.high_watermark:
                return False
            # Committed records are in the log, even if no append has reported them yet.
            if self.log_end_offset < offset:
                self.log_end_offset = offset
        elif self.log_end_offset < 0:
            self.log_end_offset = offset
        elif offset > self.log_end_offset:
            offset = self.log_end_offset
        changed = offset != self.high_watermark
        self.high_watermark = offset
        return changed

    def append(self, log_end_offset: i64, segment: i64, position: i64) -> bool:
        """The log has grown to `log_end_offset`, or rolled to a new segment there. Positions were checked before."""
        # A roll at the same end is a change: fetches from the older segment can be answered.
        rolled = log_end_offset == self.log_end_offset and segment > self.positions.last_segment()
        if log_end_offset <= self.log_end_offset and not rolled:
            return False
        self.positions.add(log_end_offset, segment, position)
        self.log_end_offset = log_end_offset
        # A log that becomes known with this append is committed up to its start; a high watermark of -1 would mean
        # unknown.
        if self.high_watermark < 0:
            self.high_watermark = self.log_start_offset
        return True

    def raise_log_start(self, offset: i64) -> bool:
        """The first readable offset has risen; it is at most the high watermark, which was checked before."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        if self.log_end_offset < offset:
            self.log_end_offset = offset
        return True

    def set_first_unstable(self, offset: i64) -> bool:
        """The oldest open transaction starts at `offset`; -1: none is open. The last stable offset is never lowered."""
        if offset == self.first_unstable_offset or (0 <= offset < self.last_stable_offset()):
            return False
        self.first_unstable_offset = offset
        return True

    def truncate(self, log_end_offset: i64) -> bool:
        """The log was truncated; every mark above the new end is lowered to it."""
        if log_end_offset >= self.log_end_offset:
            return False
        self.log_end_offset = log_end_offset
        if self.log_start_offset > log_end_offset:
            self.log_start_offset = log_end_offset
        if self.high_watermark > log_end_offset:
            self.high_watermark = log_end_offset
        # The records of that transaction are gone.
        if self.first_unstable_offset >= log_end_offset:
            self.first_unstable_offset = -1
        self.positions.truncate(log_end_offset)
        self.epochs.truncate(log_end_offset)
        return True

    # Replicas.

    def replica(self, replica_id: int) -> Replica:
        """The remote replica with this id, created if it is unknown."""
        known = self.replicas.get(replica_id)
        if known is None:
            known = self.know(replica_id)
            known.in_sync = replica_id in self.in_sync
            known.proposed = replica_id in self.proposed
        return known

    def know(self, replica_id: int) -> Replica:
        """Create unknown replicas without updating memberships; the caller must call `mark_members` afterwards."""
        known = self.replicas.get(replica_id)
        if known is None:
            known = Replica(replica_id)
            self.replicas[replica_id] = known
        return known

    def follower_progress(self, replica_id: int, log_end_offset: i64, log_start_offset: i64, now_ms: i64) -> bool:
        """A follower has fetched up to `log_end_offset`. `log_start_offset` -1: unchanged."""
        # The rule of Kafka's Replica.updateFetchState.
        replica = self.replica(replica_id)
        leader_end = self.log_end_offset
        if leader_end >= 0:
            # It is caught up if it has reached the current end, or the end at the time of its previous fetch (then it
            # was caught up at that time). Without the second case a follower of a busy leader would never count as
            # caught up.
            if log_end_offset >= leader_end:
                replica.last_caught_up_ms = now_ms
            elif 0 <= replica.leader_end_at_last_fetch <= log_end_offset:
                if replica.last_fetch_ms > replica.last_caught_up_ms:
                    replica.last_caught_up_ms = replica.last_fetch_ms
            replica.leader_end_at_last_fetch = leader_end
            replica.last_fetch_ms = now_ms
        changed = replica.log_end_offset != log_end_offset
        # Not guarded against going back: a follower that was truncated fetches from a lower offset again, as in Kafka.
        replica.log_end_offset = log_end_offset
        if log_start_offset >= 0 and log_start_offset != replica.log_start_offset:
            replica.log_start_offset = log_start_offset
            changed = True
        return changed

    def set_in_sync(self, sets: ReplicaSets) -> bool:
        """The committed set, a proposal or the minimum has changed; the leader's id was checked before."""
        before = (self.in_sync, self.proposed, self.min_in_sync_replicas, self.leader_id)
        if sets.leader_id >= 0:
            self.leader_id = sets.leader_id
        if sets.min_in_sync_replicas >= 1:
            self.min_in_sync_replicas = sets.min_in_sync_replicas
        if sets.in_sync:
            self.in_sync = sorted(set(sets.in_sync))
        self.proposed = sorted(set(sets.proposed))
        self.mark_members()
        return before != (self.in_sync, self.proposed, self.min_in_sync_replicas, self.leader_id)

    def mark_members(self) -> None:
        """Update the membership flags of the replicas from the sets; unknown members are created."""
        # Sets, because a partition may have a thousand replicas: searching lists would take a million steps.
        in_sync = set(self.in_sync)
        proposed = set(self.proposed)
        self._maximal_in_sync = len(in_sync | proposed)
        for member in self.in_sync + self.proposed:
            if member != self.leader_id:
                self.know(member)
        # The leader's own end is `log_end_offset`. As a replica it would never report progress and hold every mark
        # back.
        if self.leader_id in self.replicas:
            del self.replicas[int(self.leader_id)]
        for replica in self.replicas.values():
            replica.in_sync = replica.replica_id in in_sync
            replica.proposed = replica.replica_id in proposed

    def assign(self, replica_ids: list[int], leader_id: int) -> None:
        """Set the assigned replicas (empty: unchanged) and the leader (-1: unchanged)."""
        if leader_id >= 0:
            self.leader_id = leader_id
        if replica_ids:
            assigned = set(replica_ids)
            for gone in [known for known in self.replicas if known not in assigned]:
                del self.replicas[gone]
            # Before `mark_members`, which creates a replica for each member: removed replicas would come back as
            # members of the old sets.
            self.in_sync = [member for member in self.in_sync if member in assigned]
            self.proposed = [member for member in self.proposed if member in assigned]
            for replica_id in replica_ids:
                if replica_id != self.leader_id:
                    self.know(replica_id)
        self.mark_members()

    def assignment(self) -> tuple[int, list[int], list[int], list[int]]:
        """Leader, remote replicas and sets, to see whether an event has changed them."""
        return int(self.leader_id), sorted(self.replicas), self.in_sync, self.proposed

    def recompute_high_watermark(self, now_ms: i64, lag_max_ms: i64) -> bool:
        """Raise the high watermark to the lowest log end of all replicas that count. Returns whether it moved."""
        # The rule of Kafka's Partition.maybeIncrementLeaderHW.
        if not self.is_leader or not self.in_sync or self.log_end_offset < 0:
            return False
        # Not raised while under the minimum (KAFKA-15583): records on too few replicas must not be shown to consumers.
        # Only the committed set counts here, because a proposal may still be refused.
        committed: i64 = len(self.in_sync)
        if committed < self.effective_min_in_sync_replicas():
            return False
        # Replicas that count: the committed set, a proposed set (if it is accepted, the mark must already hold for it),
        # and every replica that has caught up and may join at any time.
        candidate = self.log_end_offset
        for replica in self.replicas.values():
            if replica.log_end_offset < candidate and (
                replica.in_sync
                or replica.proposed
                or (
                    not replica.fenced
                    and not replica.dead
                    and replica.is_caught_up(self.log_end_offset, now_ms, lag_max_ms)
                )
            ):
                candidate = replica.log_end_offset
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    # Leadership.

    def take_epoch(self, leader_epoch: i64) -> None:
        """Take over a newer epoch. The role and the state of the replicas are kept."""
        assert leader_epoch > self.leader_epoch, f"epoch went back: {leader_epoch} after {self.leader_epoch}"
        self.leader_epoch = leader_epoch
        if self.is_leader:
            self.note_epoch_start(-1)

    def note_epoch_start(self, epoch_start_offset: i64) -> None:
        """Add the current epoch to the cache; without an offset, it starts at the log end."""
        start = epoch_start_offset
        if start < 0:
            start = self.log_end_offset if self.log_end_offset >= 0 else 0
        self.epochs.assign(self.leader_epoch, start)

    def set_leader(self, is_leader: bool) -> None:
        """Set the role. A new leader discards its knowledge of the followers, which have to fetch first."""
        if is_leader and not self.is_leader:
            for replica in self.replicas.values():
                replica.forget_progress()
        self.is_leader = is_leader

    # Waits.

    def waits_of(self, kind: i64) -> WatchList:
        """The watch list of a kind, created if missing."""
        waits = self.waits[kind]
        if waits is None:
            waits = WatchList()
            self.waits[kind] = waits
        return waits

    def watched(self) -> i64:
        """Watch entries of pending operations."""
        total: i64 = 0
        for waits in self.waits:
            if waits is not None:
                total += waits.live
        for watch in self.fetch_watches():
            total += watch.entries.live
        return total

    def fetch_watches(self) -> list[FetchWatch]:
        """The watch lists of fetches, one per mark."""
        watches = (self.fetches_to_log_end, self.fetches_to_high_watermark, self.fetches_to_last_stable)
        return [watch for watch in watches if watch is not None]
