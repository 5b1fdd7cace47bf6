"""One partition as its leader (or a follower) sees it: marks, replicas, in-sync set, epochs; and the rules by which
they move.

Rules are Kafka's (3.7 and later; docs/semantics.md lists where ours close a gap). Marks are guarded where they are
stored: every method that may move one returns whether it did. Operations are not known here; a partition only carries
the watch lists of those that wait on it. -1 means not known, everywhere.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, ReplicaSets
from purgatory.engine.codes import KINDS
from purgatory.engine.holdings import Holdings
from purgatory.engine.marks.epochs import EpochCache
from purgatory.engine.marks.positions import PositionIndex
from purgatory.engine.waiting.watches import WatchList

__all__ = ["NO_FETCH_OFFSET", "FetchWatch", "Partition", "Replica"]

NO_FETCH_OFFSET: Final[i64] = 2**62
"""Above all fetch offsets."""


class Replica:
    """A remote replica: what its last fetch reported, and whether it counts."""

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
        # A new leader knows nothing of what this replica has until it fetches.
        self.log_end_offset = -1
        self.log_start_offset = -1
        self.last_caught_up_ms = -1
        self.last_fetch_ms = -1
        self.leader_end_at_last_fetch = -1

    def is_caught_up(self, leader_end_offset: i64, now_ms: i64, lag_max_ms: i64) -> bool:
        """Kafka's rule: at the leader's end, or last seen there at most `lag_max_ms` ago."""
        if self.log_end_offset == leader_end_offset:
            return True
        return self.last_caught_up_ms >= 0 and now_ms - self.last_caught_up_ms <= lag_max_ms


class FetchWatch:
    """Fetches that wait for one mark of a partition, by the reach they need; all were looked at within `segment`."""

    def __init__(self, segment: i64) -> None:
        self.entries: Final = WatchList()
        self.segment: i64 = segment


class Partition:
    """State of one partition."""

    def __init__(self, name: AsGiven, index: i64, maker: Holdings) -> None:
        self.name: Final[AsGiven] = name
        self.index: Final[i64] = index
        self.is_named = False
        """Its name leads here."""
        self.announced = False
        """An event has spoken of it; until then it was only mentioned by those who wait."""
        self.removed_error_code: i64 = 0
        """Other than 0: it is gone, and its waits are answered with this code."""
        self.storage_failed = False
        self.leader_epoch: i64 = -1
        self.is_leader = True
        self.leader_id: i64 = -1
        self.log_start_offset: i64 = 0
        self.log_end_offset: i64 = -1
        self.high_watermark: i64 = -1
        self.first_unstable_offset: i64 = -1
        self.min_in_sync_replicas: i64 = 1
        self.in_sync: list[int] = []
        self.proposed: list[int] = []
        self.replicas: Final[dict[int, Replica]] = {}
        self._maximal_in_sync: i64 = 0
        self.positions: Final = PositionIndex()
        self.epochs: Final = EpochCache()
        self.maker: Final = maker
        """Of whoever named it first."""
        self.weighed_bytes: i64 = 0
        """What it was counted as taking last."""
        self.unchanged_events: i64 = 0
        self.stale_events: i64 = 0

        self.references: i64 = 0
        """Items of pending operations that name it."""
        self.named_by_row: i64 = -1
        """The row that named it last, by the number that registration gave it."""
        self.waits: Final[list[WatchList | None]] = [None] * (len(KINDS) + 1)
        """By kind: who waits for one mark, by the value it must reach. Fetches have lists of their own."""
        self.fetches_to_log_end: FetchWatch | None = None
        self.fetches_to_high_watermark: FetchWatch | None = None
        self.fetches_to_last_stable: FetchWatch | None = None
        self.lowest_fetch_offset: i64 = NO_FETCH_OFFSET
        """At most the lowest fetch offset that waits here."""
        self.throttled_fetches: i64 = 0

    # Derived marks.

    def last_stable_offset(self) -> i64:
        """The first unstable offset where it is below the high watermark, else the high watermark."""
        unstable = self.first_unstable_offset
        if unstable < 0 or unstable >= self.high_watermark:
            return self.high_watermark
        return unstable if unstable > self.log_start_offset else self.log_start_offset

    def low_watermark(self) -> i64:
        """Lowest log start offset over the leader and all replicas that are not dead; -1: one has not fetched, or not
        leader.
        """
        if not self.is_leader:
            return -1
        lowest = self.log_start_offset
        for replica in self.replicas.values():
            if not replica.dead and replica.log_start_offset < lowest:
                lowest = replica.log_start_offset
        return lowest

    def effective_min_in_sync_replicas(self) -> i64:
        """Never more than there are replicas (Kafka 3.7+)."""
        replicas: i64 = len(self.replicas) + 1
        return self.min_in_sync_replicas if self.min_in_sync_replicas < replicas else replicas

    def is_under_min_in_sync(self) -> bool:
        """Whether too few replicas are in sync to acknowledge; False where the set is not known."""
        return bool(self.in_sync) and self._maximal_in_sync < self.effective_min_in_sync_replicas()

    # Marks.

    def raise_high_watermark(self, offset: i64) -> bool:
        """A high watermark was reported. On a leader it only moves up; on a follower it is what the leader says,
        clamped to its own log, and may go down.
        """
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        if self.is_leader:
            if offset <= self.high_watermark:
                return False
            # What is committed is in the log, even if no append has reported it yet.
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
        # A roll at the same end is news: fetches from the older segment are answered.
        rolled = log_end_offset == self.log_end_offset and segment > self.positions.last_segment()
        if log_end_offset <= self.log_end_offset and not rolled:
            return False
        self.positions.add(log_end_offset, segment, position)
        self.log_end_offset = log_end_offset
        if self.high_watermark < 0:
            self.high_watermark = self.log_start_offset
        return True

    def raise_log_start(self, offset: i64) -> bool:
        """The first readable offset has moved up; at most to the high watermark, which was checked before."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self.high_watermark = offset
        if self.log_end_offset < offset:
            self.log_end_offset = offset
        return True

    def set_first_unstable(self, offset: i64) -> bool:
        """The oldest open transaction starts at `offset`; -1: none is open. The last stable offset never goes back."""
        if offset == self.first_unstable_offset or (0 <= offset < self.last_stable_offset()):
            return False
        self.first_unstable_offset = offset
        return True

    def truncate(self, log_end_offset: i64) -> bool:
        """The log was cut; every mark above the cut goes down with it."""
        if log_end_offset >= self.log_end_offset:
            return False
        self.log_end_offset = log_end_offset
        if self.log_start_offset > log_end_offset:
            self.log_start_offset = log_end_offset
        if self.high_watermark > log_end_offset:
            self.high_watermark = log_end_offset
        if self.first_unstable_offset >= log_end_offset:
            self.first_unstable_offset = -1
        self.positions.truncate(log_end_offset)
        self.epochs.truncate(log_end_offset)
        return True

    # Replicas.

    def replica(self, replica_id: int) -> Replica:
        """The remote replica of that id, made if it was unknown."""
        known = self.replicas.get(replica_id)
        if known is None:
            known = self.know(replica_id)
            known.in_sync = replica_id in self.in_sync
            known.proposed = replica_id in self.proposed
        return known

    def know(self, replica_id: int) -> Replica:
        """The same for many: `mark_members` is to follow."""
        known = self.replicas.get(replica_id)
        if known is None:
            known = Replica(replica_id)
            self.replicas[replica_id] = known
        return known

    def follower_progress(self, replica_id: int, log_end_offset: i64, log_start_offset: i64, now_ms: i64) -> bool:
        """A follower has fetched up to `log_end_offset`; `log_start_offset` -1: as before."""
        replica = self.replica(replica_id)
        leader_end = self.log_end_offset
        if leader_end >= 0:
            # Caught up now, or (so that a follower of a busy leader counts) up to where the leader's log ended when it
            # fetched before: then it was caught up at that time.
            if log_end_offset >= leader_end:
                replica.last_caught_up_ms = now_ms
            elif 0 <= replica.leader_end_at_last_fetch <= log_end_offset:
                if replica.last_fetch_ms > replica.last_caught_up_ms:
                    replica.last_caught_up_ms = replica.last_fetch_ms
            replica.leader_end_at_last_fetch = leader_end
            replica.last_fetch_ms = now_ms
        changed = replica.log_end_offset != log_end_offset
        replica.log_end_offset = log_end_offset
        if log_start_offset >= 0 and log_start_offset != replica.log_start_offset:
            replica.log_start_offset = log_start_offset
            changed = True
        return changed

    def set_in_sync(self, sets: ReplicaSets) -> bool:
        """A committed set, a proposal or the minimum has changed; the leader's id was checked before."""
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
        """Keeps the replicas' own marks of membership in step with the sets; unknown members are made."""
        # Sets: a partition may have a thousand replicas, and a search in a list for each would be a million steps.
        in_sync = set(self.in_sync)
        proposed = set(self.proposed)
        self._maximal_in_sync = len(in_sync | proposed)
        for member in self.in_sync + self.proposed:
            if member != self.leader_id:
                self.know(member)
        if self.leader_id in self.replicas:
            del self.replicas[int(self.leader_id)]
        for replica in self.replicas.values():
            replica.in_sync = replica.replica_id in in_sync
            replica.proposed = replica.replica_id in proposed

    def assign(self, replica_ids: list[int], leader_id: int) -> None:
        """Who is assigned (empty: unchanged) and who leads (-1: unchanged)."""
        if leader_id >= 0:
            self.leader_id = leader_id
        if replica_ids:
            assigned = set(replica_ids)
            for gone in [known for known in self.replicas if known not in assigned]:
                del self.replicas[gone]
            self.in_sync = [member for member in self.in_sync if member in assigned]
            self.proposed = [member for member in self.proposed if member in assigned]
            for replica_id in replica_ids:
                if replica_id != self.leader_id:
                    self.know(replica_id)
        self.mark_members()

    def assignment(self) -> tuple[int, list[int], list[int], list[int]]:
        """Leader, remote replicas and sets: what an event about them may have changed."""
        return int(self.leader_id), sorted(self.replicas), self.in_sync, self.proposed

    def recompute_high_watermark(self, now_ms: i64, lag_max_ms: i64) -> bool:
        """Raises the high watermark to the lowest log end of all replicas that count. Returns whether it moved."""
        if not self.is_leader or not self.in_sync or self.log_end_offset < 0:
            return False
        # Frozen under the minimum (KAFKA-15583): what too few replicas have must not be shown to consumers. Only the
        # committed set counts here; a proposal may still be refused.
        committed: i64 = len(self.in_sync)
        if committed < self.effective_min_in_sync_replicas():
            return False
        # Who counts: the committed set, a proposal (if it is accepted they are in the set, so the mark must hold for
        # them already), and whoever has caught up and may join at any moment.
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
        """A newer epoch was heard of: the role and what is known of the replicas stay."""
        assert leader_epoch > self.leader_epoch, f"epoch went back: {leader_epoch} after {self.leader_epoch}"
        self.leader_epoch = leader_epoch
        if self.is_leader:
            self.note_epoch_start(-1)

    def note_epoch_start(self, epoch_start_offset: i64) -> None:
        """Enters the current epoch in the cache, at the log end where no offset is given."""
        start = epoch_start_offset
        if start < 0:
            start = self.log_end_offset if self.log_end_offset >= 0 else 0
        self.epochs.assign(self.leader_epoch, start)

    def set_leader(self, is_leader: bool) -> None:
        """Takes a role. A new leader forgets what it knew of the followers, who must fetch first."""
        if is_leader and not self.is_leader:
            for replica in self.replicas.values():
                replica.forget_progress()
        self.is_leader = is_leader

    # Who waits here.

    def waits_of(self, kind: i64) -> WatchList:
        """The list of a kind, made if there was none."""
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
        """The lists of fetches that wait here, one for each mark."""
        watches = (self.fetches_to_log_end, self.fetches_to_high_watermark, self.fetches_to_last_stable)
        return [watch for watch in watches if watch is not None]
