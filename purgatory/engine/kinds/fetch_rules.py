"""The rules of a fetch: when a long poll may answer, what it answers, and which reach it waits for in between.

The condition of a fetch is a sum over partitions. Instead of adding it up at every append, each partition gets a share
of the missing bytes as its threshold; the sum is recomputed, and the rest shared out again, only when one partition
reaches its share. The share is the missing bytes divided by the partitions that can still grow, rounded up: if none has
grown by its share, the sum is still too small. So no wakeup is missed, and a fetch is examined
O(partitions * log(min_bytes)) times instead of once per append.

Fetches are few compared to produce waits (one long poll per reader, not per write), so they are objects.
Rules: Kafka's DelayedFetch, cases A to H (docs/semantics.md).
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.codes import NONE, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, READ_COMMITTED
from purgatory.engine.completions import FetchedPartition
from purgatory.engine.kinds.countdown import partition_fault
from purgatory.engine.marks.partition import FetchWatch, Partition

NEVER: Final[i64] = 2**62
"""A threshold that no reach passes: only a change of the partition's state can end the wait there."""

ANSWER_NOW: Final[i64] = -1

AGREES: Final = (-2, -2)
UNDEFINED: Final = (-1, -1)


class FetchItem:
    """One partition of a fetch. `threshold` is the reach it is watched for; -1 while it is not watched."""

    def __init__(
        self,
        partition: Partition,
        fetch_offset: i64,
        max_bytes: i64,
        leader_epoch: i64,
        last_fetched_epoch: i64,
        throttled: bool,
    ) -> None:
        self.partition: Final = partition
        self.fetch_offset: Final[i64] = fetch_offset
        self.max_bytes: Final[i64] = max_bytes
        self.leader_epoch: Final[i64] = leader_epoch
        self.last_fetched_epoch: Final[i64] = last_fetched_epoch
        self.throttled: Final = throttled
        self.item: i64 = -1
        self.threshold: i64 = -1
        self.available: i64 = 0
        self.start_segment: i64 = 0
        self.start_reach: i64 = 0
        self.anchor()

    def anchor(self) -> None:
        """Record the position of the fetch offset in the log, as a first read would."""
        self.start_segment = self.partition.positions.segment(self.fetch_offset)
        self.start_reach = self.partition.positions.reach(self.fetch_offset)


class Fetch:
    """A fetch: who reads, up to which mark, and how many bytes are requested."""

    def __init__(self, min_bytes: i64, replica_id: i64, isolation_level: i64, follower_reads: bool) -> None:
        self.min_bytes: Final[i64] = min_bytes
        self.replica_id: Final[i64] = replica_id
        self.is_follower: Final = replica_id >= 0
        self.read_committed: Final = isolation_level == READ_COMMITTED
        self.leader_only: Final = replica_id >= 0 or not follower_reads
        self.items: Final[list[FetchItem]] = []

    def end_offset(self, partition: Partition) -> i64:
        """Readable end: log end for followers, last stable offset or high watermark for consumers; -1: unknown."""
        if self.is_follower:
            return partition.log_end_offset
        return partition.last_stable_offset() if self.read_committed else partition.high_watermark

    def watch(self, partition: Partition) -> FetchWatch:
        """The partition's watch list for the mark that this fetch reads up to; created if missing."""
        segment = partition.positions.segment(self.end_offset(partition))
        if self.is_follower:
            if partition.fetches_to_log_end is None:
                partition.fetches_to_log_end = FetchWatch(segment)
            return partition.fetches_to_log_end
        if self.read_committed:
            if partition.fetches_to_last_stable is None:
                partition.fetches_to_last_stable = FetchWatch(segment)
            return partition.fetches_to_last_stable
        if partition.fetches_to_high_watermark is None:
            partition.fetches_to_high_watermark = FetchWatch(segment)
        return partition.fetches_to_high_watermark

    def holds_back(self, item: FetchItem) -> bool:
        """Whether the item's bytes are not counted: a follower over its quota and outside the in-sync set."""
        return item.throttled and self.is_follower and int(self.replica_id) not in item.partition.in_sync


def read_error(fetch: Fetch, item: FetchItem) -> i64:
    """Why the partition cannot be read (cases A to E); NONE if it can."""
    error = partition_fault(item.partition, item.leader_epoch)
    # A partition that has moved answers the same code, and cannot be read from anybody here.
    if error == NOT_LEADER_OR_FOLLOWER and not fetch.leader_only and item.partition.removed_error_code == NONE:
        return NONE
    return error


def divergence(item: FetchItem) -> tuple[int, int]:
    """Where the reader's log diverged, as (epoch, end offset).

    AGREES: it did not diverge. UNDEFINED: the reader's epoch is not known here.
    """
    partition = item.partition
    if item.last_fetched_epoch < 0 or partition.log_end_offset < 0:
        return AGREES
    epoch, end_offset = partition.epochs.end_offset(item.last_fetched_epoch, partition.log_end_offset)
    if epoch < 0:
        return UNDEFINED
    if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:
        return epoch, end_offset
    return AGREES


def examine_item(fetch: Fetch, item: FetchItem) -> i64:
    """The bytes that one partition adds to the sum, or ANSWER_NOW."""
    if read_error(fetch, item) != NONE:
        return ANSWER_NOW
    partition = item.partition
    if item.fetch_offset < partition.log_start_offset:
        return ANSWER_NOW
    end = fetch.end_offset(partition)
    held_back = fetch.holds_back(item)
    available: i64 = 0
    if end >= 0:
        # The log was truncated below the reader, or the reader is beyond the end that it may read. Waiting would not
        # help it, so it is answered, as in Kafka.
        if item.fetch_offset > end:
            return ANSWER_NOW
        # A reach of -1 means that the end is below all known positions; such a partition adds nothing.
        reach = partition.positions.reach(end)
        if item.fetch_offset < end and reach >= 0 and not held_back:
            if partition.positions.segment(end) > item.start_segment:
                return ANSWER_NOW
            available = reach - item.start_reach
            if available > item.max_bytes:
                available = item.max_bytes
    return available if divergence(item) == AGREES else ANSWER_NOW


def examine(fetch: Fetch) -> bool:
    """Whether the fetch may answer now: a partition gives a reason to, or there are enough bytes. Sets `available`."""
    total: i64 = 0
    for item in fetch.items:
        available = examine_item(fetch, item)
        # If this returns True, `available` of the later items is out of date. It may be read only after False, as in
        # `split_missing_bytes`.
        if available == ANSWER_NOW:
            return True
        item.available = available
        total += available
        # At the first item that is enough: the bytes of all partitions together may not fit into 64 bits.
        if total >= fetch.min_bytes:
            return True
    return False


def split_missing_bytes(fetch: Fetch) -> list[i64]:
    """The reach to watch for on each partition, after `examine` returned False. Always above the current reach."""
    missing = fetch.min_bytes
    growing: i64 = 0
    for item in fetch.items:
        missing -= item.available
        if item.available < item.max_bytes and not fetch.holds_back(item):
            growing += 1
    # If no partition can grow, no threshold depends on the share; the condition only avoids a division by zero.
    share = (missing + growing - 1) // growing if growing else missing
    return [_threshold(fetch, item, share) for item in fetch.items]


def _threshold(fetch: Fetch, item: FetchItem, share: i64) -> i64:
    partition = item.partition
    end = fetch.end_offset(partition)
    reach = partition.positions.reach(end) if end >= 0 else -1
    if reach < 0:
        # The mark is unknown: wake at the first one.
        return 0
    if fetch.holds_back(item):
        # Only a change of the in-sync set helps, and that reevaluates all waits.
        return NEVER
    if partition.positions.segment(end) > item.start_segment:
        # The log rolled exactly at the fetch offset: the first byte of the new segment answers.
        return reach + 1
    if item.available >= item.max_bytes:
        # This partition cannot add more; the others have to grow.
        return NEVER
    room = item.max_bytes - item.available
    needed = item.start_reach + item.available + (share if share < room else room)
    # Above the present reach in any case: an entry at or below it would be popped again as soon as it is added, and
    # `FetchKind` would never come to an end.
    return needed if needed > reach else reach + 1


class FetchAnswer:
    """The result of one partition of an ended fetch."""

    def __init__(self, error_code: i64, reached_offset: i64, log_start_offset: i64, fetched: FetchedPartition) -> None:
        self.error_code: Final[i64] = error_code
        self.reached_offset: Final[i64] = reached_offset
        self.log_start_offset: Final[i64] = log_start_offset
        self.fetched: Final = fetched


def answer(fetch: Fetch, item: FetchItem) -> FetchAnswer:
    """The result of reading the partition now. Checks are in the order of a read in Kafka."""
    partition = item.partition
    error = read_error(fetch, item)
    said = AGREES
    if error == NONE:
        said = divergence(item)
        if said == UNDEFINED or item.fetch_offset < partition.log_start_offset:
            error = OFFSET_OUT_OF_RANGE
    diverged = error == NONE and said != AGREES
    if error == NONE and not diverged and 0 <= partition.log_end_offset < item.fetch_offset:
        error = OFFSET_OUT_OF_RANGE
    if error != NONE:
        return FetchAnswer(error, -1, -1, FetchedPartition(0, -1, -1, -1, -1))
    end = fetch.end_offset(partition)
    fetched = FetchedPartition(
        0 if diverged else _readable_bytes(fetch, item, end),
        partition.high_watermark,
        partition.last_stable_offset(),
        said[0] if diverged else -1,
        said[1] if diverged else -1,
    )
    return FetchAnswer(NONE, end, partition.log_start_offset, fetched)


def _readable_bytes(fetch: Fetch, item: FetchItem, end: i64) -> i64:
    positions = item.partition.positions
    reach = positions.reach(end) if end >= 0 else -1
    if item.fetch_offset >= end or reach < 0 or fetch.holds_back(item):
        return 0
    # Byte positions of different segments cannot be subtracted; the reader is promised as much as it may take.
    if positions.segment(end) > item.start_segment:
        return item.max_bytes
    available = reach - item.start_reach
    return available if available < item.max_bytes else item.max_bytes
