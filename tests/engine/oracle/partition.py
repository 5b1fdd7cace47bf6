"""One partition's marks and replicas, by rules that correspond one to one to the section "Events" of docs/semantics.md.

Everything is recomputed from lists on every call; nothing is optimised.
"""

from typing import NamedTuple

from tests.engine import plain

EPOCHS_MAX = 1_000
INDEX_ENTRIES_MAX = 512


class Entry(NamedTuple):
    """The position of an offset: its segment, its byte in it, and its reach (bytes counted over all segments)."""

    offset: int
    segment: int
    position: int
    reach: int


class Index:
    """Byte positions of one log, in order of offsets, found by walking a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def entry_at(self, offset: int) -> Entry | None:
        """The last entry at or below an offset."""
        below = [entry for entry in self.entries if entry.offset <= offset]
        return below[-1] if below else None

    def reach(self, offset: int) -> int:
        """The reach of an offset in bytes; above an entry each offset counts one; -1: it is below all entries."""
        if not self.entries or offset < 0:
            return offset
        entry = self.entry_at(offset)
        return -1 if entry is None else entry.reach + offset - entry.offset

    def segment(self, offset: int) -> int:
        """Base offset of the segment of an offset; 0 if no positions are known; -1: it is below all entries."""
        if not self.entries:
            return 0
        entry = self.entry_at(offset)
        return -1 if entry is None else entry.segment

    def newest_segment(self) -> int:
        return self.entries[-1].segment if self.entries else 0

    def add(self, offset: int, segment: int, position: int) -> None:
        """Each segment begins at byte 0, and each record has at least one byte, whether or not it was reported."""
        if segment < 0:
            segment = self.newest_segment()
        if not self.entries:
            self.push(Entry(segment, segment, 0, segment))
        elif segment > self.entries[-1].segment:
            self.push(Entry(segment, segment, 0, self.reach(segment)))
        last = self.entries[-1]
        if offset > last.offset:
            grown = max(position - last.position, offset - last.offset)
            self.push(Entry(offset, segment, last.position + grown, last.reach + grown))

    def push(self, entry: Entry) -> None:
        """Add an entry; if there are too many, drop every second one of the older half."""
        below = [known for known in self.entries if known.offset < entry.offset]
        if len(below) == len(self.entries) >= INDEX_ENTRIES_MAX:
            half = len(below) // 2
            below = [known for i, known in enumerate(below) if i >= half or i % 2 == 0]
        self.entries = [*below, entry]

    def truncate(self, offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry.offset <= offset]


class Replica:
    """A remote replica as its leader sees it."""

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.dead = False
        self.fenced = False
        self.forget_progress()

    def forget_progress(self) -> None:
        """A new leader knows nothing about the logs of its replicas."""
        self.log_end = -1
        self.log_start = -1
        self.last_caught_up_ms = -1
        self.last_fetch_ms = -1
        self.leader_log_end_at_last_fetch = -1


class Partition:
    """The marks of one partition."""

    def __init__(self, name: plain.Name, lag_max_ms: int) -> None:
        self.name = name
        self.lag_max_ms = lag_max_ms
        self.epoch = -1
        self.is_leader = True
        self.leader_id = -1
        self.storage_failed = False
        self.log_start = 0
        self.log_end = -1
        self.high_watermark = -1
        self.first_known: tuple[int, int] | None = None
        """The first high watermark that was known, and when."""
        self.first_unstable = -1
        self.min_in_sync = 1
        self.committed: set[int] | None = None
        self.proposed: set[int] = set()
        self.replicas: dict[int, Replica] = {}
        self.removed_code = 0
        """If not 0, the partition was removed, and its waits end with this code."""
        self.index = Index()
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset), in order. The offset of the oldest is -1 if older ones were dropped."""
        self.events = 0
        self.unchanged = 0
        self.stale = 0

    # Derived from the marks.

    def last_stable(self) -> int:
        """Last stable offset: the first unstable one, not below the log start and not above the high watermark."""
        if self.high_watermark < 0 or self.first_unstable < 0:
            return self.high_watermark
        return min(max(self.first_unstable, self.log_start), self.high_watermark)

    def low_watermark(self) -> int:
        """Lowest log start of the leader and its live replicas; -1: unknown, or this is not the leader."""
        if not self.is_leader:
            return -1
        return min([self.log_start, *(one.log_start for one in self.replicas.values() if not one.dead)])

    def maximal_in_sync(self) -> set[int]:
        """Committed and proposed members together."""
        return (self.committed or set()) | self.proposed

    def effective_min_in_sync(self) -> int:
        """The minimum cannot exceed the number of replicas."""
        return min(self.min_in_sync, len(self.replicas) + 1)

    def enough_in_sync(self) -> bool:
        """Whether a write below the high watermark may be acknowledged."""
        return self.committed is None or len(self.maximal_in_sync()) >= self.effective_min_in_sync()

    def caught_up(self, replica: Replica, now_ms: int) -> bool:
        """Whether a replica is at the leader's end, or was there recently."""
        if replica.log_end == self.log_end:
            return True
        return replica.last_caught_up_ms >= 0 and now_ms - replica.last_caught_up_ms <= self.lag_max_ms

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """The (epoch, end offset) for a requested epoch; None: undefined."""
        if not self.epochs or epoch < 0 or epoch > self.epochs[-1][0]:
            return None
        if epoch == self.epochs[-1][0]:
            return (epoch, self.log_end)
        if epoch < self.epochs[0][0]:
            if self.epochs[0][1] < 0:
                return None
            return (epoch, self.epochs[0][1])
        largest = max(known for known, _ in self.epochs if known <= epoch)
        return (largest, min(start for known, start in self.epochs if known > epoch))

    def marks(self) -> plain.PartitionMarks:
        in_sync = self.committed or set()
        replicas = tuple(
            (number, one.log_end, one.log_start, number in in_sync, one.dead, one.fenced)
            for number, one in sorted(self.replicas.items())
        )
        return plain.PartitionMarks(
            self.epoch,
            self.is_leader,
            self.leader_id,
            self.storage_failed,
            self.log_start,
            self.last_stable(),
            self.high_watermark,
            self.log_end,
            self.low_watermark(),
            self.min_in_sync,
            tuple(sorted(in_sync)),
            replicas,
            self.unchanged,
            self.stale,
        )

    def all_state(self) -> tuple[object, ...]:
        """All state that an event can change; an event that changes none of it is `unchanged`."""
        counters = 2
        return (*self.marks()[:-counters], self.first_unstable, sorted(self.proposed), list(self.index.entries))

    # Events. All have passed the checks in refusals.py.

    def take_epoch_and_role(self, event: plain.Event) -> None:
        """An event's epoch (and role) are applied first: fenced waits are answered with the marks before the event."""
        if event.type == plain.LEADERSHIP:
            self.lead(event)
            return
        self.epoch = event.epoch
        if self.is_leader:
            self.start_epoch(event.epoch, max(self.log_end, 0))

    def apply(self, event: plain.Event, now_ms: int) -> None:
        """Apply one event; its epoch has been taken over before."""
        self.events += 1
        if event.type == plain.LEADER_APPEND:
            self.append(event, now_ms)
        elif event.type == plain.FOLLOWER_PROGRESS:
            self.progress(event, now_ms)
        elif event.type == plain.HIGH_WATERMARK:
            self.set_high_watermark(event.offset)
        elif event.type == plain.LAST_STABLE_OFFSET:
            if event.offset < 0 or event.offset >= self.last_stable():
                self.first_unstable = event.offset
        elif event.type == plain.LOG_START_OFFSET:
            self.raise_log_start(event.offset)
        elif event.type == plain.IN_SYNC_REPLICAS:
            self.set_in_sync(event, now_ms)
        elif event.type == plain.REPLICA_STATE:
            replica = self.replica(event.replica_id)
            replica.dead = event.flag & 1 != 0
            replica.fenced = event.flag & 2 != 0
        elif event.type == plain.TRUNCATION:
            self.truncate(event.offset)
        elif event.type == plain.STORAGE_FAILED:
            self.storage_failed = True
        elif event.type == plain.STORAGE_ONLINE:
            self.storage_failed = False

    def append(self, event: plain.Event, now_ms: int) -> None:
        """The leader's log has grown, or rolled to a new segment at the same offset."""
        rolled = event.offset == self.log_end and event.segment > self.index.newest_segment()
        if event.offset <= self.log_end and not rolled:
            return
        self.log_end = event.offset
        if event.position >= 0 or event.segment >= 0:
            self.index.add(event.offset, event.segment, event.position)
        if self.high_watermark < 0:
            self.high_watermark = self.log_start
        self.recompute_high_watermark(now_ms)

    def progress(self, event: plain.Event, now_ms: int) -> None:
        is_new = event.replica_id not in self.replicas
        replica = self.replica(event.replica_id)
        before = (replica.log_end, replica.log_start)
        replica.log_end = event.offset
        if event.log_start >= 0:
            replica.log_start = event.log_start
        if self.log_end >= 0:
            if event.offset >= self.log_end:
                replica.last_caught_up_ms = max(replica.last_caught_up_ms, now_ms)
            elif replica.leader_log_end_at_last_fetch >= 0 and event.offset >= replica.leader_log_end_at_last_fetch:
                replica.last_caught_up_ms = max(replica.last_caught_up_ms, replica.last_fetch_ms)
        replica.leader_log_end_at_last_fetch = self.log_end
        replica.last_fetch_ms = now_ms
        if is_new or before != (replica.log_end, replica.log_start):
            self.recompute_high_watermark(now_ms)

    def set_high_watermark(self, offset: int) -> None:
        if self.is_leader:
            if offset > self.high_watermark:
                self.high_watermark = max(offset, self.log_start)
                self.log_end = max(self.log_end, self.high_watermark)
        else:
            wanted = offset if self.log_end < 0 else min(offset, self.log_end)
            self.high_watermark = max(wanted, self.log_start)
            self.log_end = max(self.log_end, self.high_watermark)

    def raise_log_start(self, offset: int) -> None:
        if offset <= self.log_start:
            return
        self.log_start = offset
        if self.high_watermark < 0:
            self.high_watermark = offset
            self.log_end = max(self.log_end, offset)

    def set_in_sync(self, event: plain.Event, now_ms: int) -> None:
        """The set of in-sync replicas has changed, or a change is proposed."""
        before = (self.committed, self.proposed, self.min_in_sync, self.leader_id)
        if event.leader_id >= 0:
            self.leader_id = event.leader_id
        if event.in_sync:
            self.committed = set(event.in_sync)
        self.proposed = set(event.proposed)
        if event.min_in_sync >= 0:
            self.min_in_sync = event.min_in_sync
        self.make_members()
        proposal_ended = bool(before[1] - self.proposed)
        if proposal_ended or (before[0], *before[2:]) != (self.committed, self.min_in_sync, self.leader_id):
            self.recompute_high_watermark(now_ms)

    def make_members(self) -> None:
        """Create replicas for in-sync members; the leader is not a remote replica."""
        for replica_id in self.maximal_in_sync():
            self.replica(replica_id)
        self.replicas.pop(self.leader_id, None)

    def lead(self, event: plain.Event) -> None:
        """A leader epoch begins, or the role or the replicas of the current one become known."""
        leads = event.flag == 1
        newer = event.epoch > self.epoch
        becomes_leader = leads and (newer or not self.is_leader)
        if leads and not self.is_leader:
            for replica in self.replicas.values():
                replica.forget_progress()
        self.is_leader = leads
        if event.leader_id >= 0:
            self.leader_id = event.leader_id
        if event.replicas:
            self.replicas = {number: one for number, one in self.replicas.items() if number in event.replicas}
            self.committed = (self.committed or set()) & set(event.replicas) or None
            self.proposed &= set(event.replicas)
            for replica_id in event.replicas:
                self.replica(replica_id)
            self.replicas.pop(self.leader_id, None)
        elif event.leader_id >= 0:
            self.make_members()
        self.epoch = event.epoch
        if becomes_leader or (newer and event.offset >= 0):
            self.start_epoch(event.epoch, event.offset if event.offset >= 0 else max(self.log_end, 0))

    def start_epoch(self, epoch: int, start: int) -> None:
        """Record an epoch's first offset; contradicted entries are dropped."""
        if self.epochs and self.epochs[-1][0] == epoch and self.epochs[-1][1] <= start:
            return
        self.epochs = [entry for entry in self.epochs if entry[0] < epoch and entry[1] < start]
        self.epochs.append((epoch, start))
        if len(self.epochs) > EPOCHS_MAX:
            self.epochs = [(self.epochs[1][0], -1), *self.epochs[2:]]

    def truncate(self, offset: int) -> None:
        if offset >= self.log_end:
            return
        self.log_end = offset
        self.log_start = min(self.log_start, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.index.truncate(offset)
        self.epochs = [entry for entry in self.epochs if entry[1] < offset]
        if self.first_unstable >= offset:
            self.first_unstable = -1

    def replica(self, replica_id: int) -> Replica:
        """The replica with this id, created on first mention."""
        if replica_id not in self.replicas:
            self.replicas[replica_id] = Replica(replica_id)
        return self.replicas[replica_id]

    def recompute_high_watermark(self, now_ms: int) -> None:
        """Raise it to the lowest log end of the replicas that count (docs/semantics.md, "Events"; rule of 3.7+)."""
        if not self.is_leader or self.committed is None or self.log_end < 0:
            return
        if len(self.committed) < self.effective_min_in_sync():
            return
        ends = [one.log_end for one in self.replicas.values() if self.counts(one, now_ms)]
        self.high_watermark = max(self.high_watermark, min([self.log_end, *ends]))

    def counts(self, replica: Replica, now_ms: int) -> bool:
        """Whether the high watermark waits for a replica: it is in sync, or will be soon."""
        joins_soon = self.caught_up(replica, now_ms) and not replica.fenced and not replica.dead
        return joins_soon or replica.replica_id in self.maximal_in_sync()
