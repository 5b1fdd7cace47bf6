"""A waiting operation, its conditions, and its result (docs/semantics.md, "Operations")."""

from typing import NamedTuple

from tests.engine import plain
from tests.engine.oracle.partition import Partition

PENDING_CODE = 7
SIGNAL_FAILED = 1003


class WaitingItem:
    """One partition (or key) of a waiting operation. `code` is 7 until it is decided."""

    def __init__(self, item: plain.Item) -> None:
        self.item = item
        self.name = item.name
        self.partition: Partition | None = None
        self.start_segment = 0
        self.start_reach = 0
        self.required = item.offset
        self.code = PENDING_CODE
        self.decided = False
        self.mark_at_start = -1
        self.reached_then = -1
        """The mark at the decision. For delete-records: the low watermark at registration until then."""

    def decide(self, code: int, reached: int = -1) -> None:
        """Set the final code, and the current mark. A decided item is not changed."""
        assert not self.decided, f"{self.name} was decided before"
        self.code = code
        self.decided = True
        self.reached_then = reached

    def anchor(self) -> None:
        """Record where a fetch starts, as a first read would find it."""
        if self.partition is not None:
            self.start_segment = self.partition.index.segment(self.item.offset)
            self.start_reach = self.partition.index.reach(self.item.offset)


class Waiting:
    """A registered operation that has not ended."""

    def __init__(
        self, owner_id: int, operation: plain.Operation, now_ms: int, deadline_ms: int, listening_ms: int
    ) -> None:
        self.owner_id = owner_id
        self.operation = operation
        self.registered_ms = now_ms
        self.deadline_ms = deadline_ms
        self.listening_ms = listening_ms
        self.items = [WaitingItem(item) for item in operation.items]

    @property
    def key(self) -> tuple[int, int]:
        return (self.owner_id, self.operation.operation_id)


class OracleState(NamedTuple):
    """Everything that conditions read: partitions by name; the counts of keys, their first values, those that failed,
    and the times of their last signals.
    """

    partitions: dict[plain.Name, Partition]
    signals: dict[plain.Name, int]
    values: dict[plain.Name, int]
    failed: set[plain.Name]
    signalled_ms: dict[plain.Name, int]


def epoch_error(requested: int, partition: Partition) -> int:
    """0, 74 (the partition is newer) or 75 (older). Not checked if either epoch is unknown."""
    if requested < 0 or partition.epoch < 0 or requested == partition.epoch:
        return 0
    return 74 if partition.epoch > requested else 75


def lookup_error(partition: Partition, epoch: int, *, leader_only: bool) -> int:
    """Removal, then storage, then epoch, then leadership (docs/semantics.md, "produce")."""
    if partition.removed_code:
        return partition.removed_code
    if partition.storage_failed:
        return 56
    fenced = epoch_error(epoch, partition)
    if fenced:
        return fenced
    return 6 if leader_only and not partition.is_leader else 0


def start(waiting: Waiting, world: OracleState) -> None:
    """Set the fields that are fixed at registration."""
    kind = waiting.operation.kind
    for item in waiting.items:
        if is_key(waiting.operation, item):
            item.mark_at_start = world.signals.get(item.name, 0)
            if waiting.operation.from_now:
                item.required += item.mark_at_start
            continue
        item.partition = world.partitions.get(item.name)
        if item.partition is None:
            item.decide(item.item.local_error or 3)
        elif item.item.local_error:
            item.decide(item.item.local_error, item.partition.high_watermark if kind == plain.PRODUCE else -1)
        elif kind in {plain.PRODUCE, plain.COMPOSITE}:
            item.mark_at_start = item.partition.high_watermark
        elif kind == plain.DELETE_RECORDS:
            start_delete(item, item.partition)
        else:
            item.anchor()


def start_delete(item: WaitingItem, partition: Partition) -> None:
    """Resolve -1, and refuse offsets above the high watermark (docs/semantics.md, "delete-records")."""
    error = lookup_error(partition, -1, leader_only=True)
    if error:
        item.decide(error)
        return
    if item.required == -1:
        if partition.high_watermark < 0:
            item.decide(78)
            return
        item.required = partition.high_watermark
    if 0 <= partition.high_watermark < item.required:
        item.decide(1)
        return
    item.mark_at_start = partition.low_watermark()
    item.reached_then = item.mark_at_start


def is_complete(waiting: Waiting, world: OracleState) -> bool:
    """Test the condition, and decide items along the way."""
    kind = waiting.operation.kind
    if kind == plain.FETCH:
        return fetch_is_complete(waiting)
    if kind == plain.COMPOSITE:
        return composite_is_complete(waiting, world)
    for item in waiting.items:
        if item.decided:
            continue
        if kind == plain.SIGNAL:
            count = world.signals.get(item.name, 0)
            if item.name in world.failed:
                item.decide(SIGNAL_FAILED, count)
            elif count >= item.required:
                item.decide(0, count)
            continue
        assert item.partition is not None
        if kind == plain.PRODUCE:
            check_produce(item, item.partition)
        else:
            check_delete(item, item.partition)
    if kind == plain.SIGNAL:
        decisive = 0 if waiting.operation.any_key else SIGNAL_FAILED
        if any(item.decided and item.code == decisive for item in waiting.items):
            return True
    return all(item.decided for item in waiting.items)


def is_key(operation: plain.Operation, item: WaitingItem) -> bool:
    return operation.kind == plain.SIGNAL or (operation.kind == plain.COMPOSITE and item.name[1] < 0)


def arms(waiting: Waiting) -> tuple[list[WaitingItem], list[WaitingItem]]:
    """The terms of a composite, and its failure arm."""
    terms = len(waiting.items) - waiting.operation.unless_count
    return waiting.items[:terms], waiting.items[terms:]


def required_terms(waiting: Waiting) -> int:
    return waiting.operation.required_terms or len(arms(waiting)[0])


def composite_is_complete(waiting: Waiting, world: OracleState) -> bool:
    """All terms are tested first, then both arms: so failure wins if they hold at the same instant."""
    terms, unless = arms(waiting)
    for item in terms:
        check_term(item, world, 0)
    for item in unless:
        check_term(item, world, 1002)
    return composite_outcome(waiting) != 0


def composite_outcome(waiting: Waiting) -> int:
    """The outcome of a composite by its decided terms; 0: it waits."""
    terms, unless = arms(waiting)
    required = required_terms(waiting)
    if any(item.code == 1002 for item in unless):
        return plain.FAILED
    if sum(item.code == 0 for item in terms) >= required:
        return plain.SATISFIED
    return plain.FAILED if sum(item.code in {0, 7} for item in terms) < required else 0


def check_term(item: WaitingItem, world: OracleState, code: int) -> None:
    """Decide a term of a composite: with `code` once it is true, with an error once it cannot become so."""
    if item.decided:
        return
    if item.name[1] < 0:
        count = world.signals.get(item.name, 0)
        if item.name in world.failed and code == 0:
            item.decide(SIGNAL_FAILED, count)
        elif count >= item.required:
            item.decide(code, count)
        return
    assert item.partition is not None
    error = lookup_error(item.partition, -1, leader_only=True)
    mark = item.partition.high_watermark
    if error:
        item.decide(error, mark)
    elif mark >= item.required and mark >= 0:
        item.decide(code, mark)


def check_produce(item: WaitingItem, partition: Partition) -> None:
    """docs/semantics.md, "produce", with the epoch as part of the condition."""
    error = lookup_error(partition, item.item.epoch, leader_only=True)
    if error:
        item.decide(error, partition.high_watermark)
    elif partition.high_watermark >= item.required:
        item.decide(0 if partition.enough_in_sync() else 20, partition.high_watermark)


def check_delete(item: WaitingItem, partition: Partition) -> None:
    """docs/semantics.md, "delete-records"."""
    error = lookup_error(partition, -1, leader_only=True)
    if error:
        item.decide(error)
    elif partition.low_watermark() >= item.required:
        item.decide(0, partition.low_watermark())


def fetch_end(operation: plain.Operation, partition: Partition) -> int:
    """The end of the range that this reader may read."""
    if operation.replica_id >= 0:
        return partition.log_end
    if operation.isolation == plain.READ_COMMITTED:
        return partition.last_stable()
    return partition.high_watermark


def is_leader_only(operation: plain.Operation) -> bool:
    """Followers and plain consumers are served only by the leader."""
    return operation.replica_id >= 0 or not operation.follower_reads


def is_throttled(operation: plain.Operation, item: plain.Item, partition: Partition) -> bool:
    """Whether this is a follower over its quota that is out of the in-sync set."""
    return item.throttled and operation.replica_id >= 0 and operation.replica_id not in (partition.committed or set())


def divergence(item: plain.Item, partition: Partition) -> tuple[int, int] | None:
    """Where the reader's log diverges: (epoch, end offset); (-1, -1): its epoch is unknown here; None: nowhere."""
    if item.last_epoch < 0 or partition.log_end < 0:
        return None
    answer = partition.end_of_epoch(item.last_epoch)
    if answer is None:
        return (-1, -1)
    epoch, end = answer
    return answer if epoch < item.last_epoch or end < item.offset else None


def fetch_is_complete(waiting: Waiting) -> bool:
    """docs/semantics.md, "fetch": the first reason to answer immediately, or enough bytes."""
    operation = waiting.operation
    total = 0
    for item in waiting.items:
        partition = item.partition
        if partition is None or lookup_error(partition, item.item.epoch, leader_only=is_leader_only(operation)):
            return True
        offset = item.item.offset
        end = fetch_end(operation, partition)
        if offset < partition.log_start or 0 <= end < offset:
            return True
        if can_count(operation, item, partition):
            if partition.index.segment(end) > item.start_segment:
                return True
            total += min(partition.index.reach(end) - item.start_reach, item.item.max_bytes)
        if divergence(item.item, partition) is not None:
            return True
    return total >= operation.min_bytes


def can_count(operation: plain.Operation, item: WaitingItem, partition: Partition) -> bool:
    """Whether there are readable bytes of known size, and this reader may have them."""
    end = fetch_end(operation, partition)
    throttled = is_throttled(operation, item.item, partition)
    return item.item.offset < end and partition.index.reach(end) >= 0 and not throttled


def failed_read(item: plain.Item, error: int) -> plain.EndedItem:
    return plain.EndedItem(item.name, error, item.offset, -1, available_bytes=0)


def read(operation: plain.Operation, waiting_item: WaitingItem) -> plain.EndedItem:
    """The result of reading one partition (docs/semantics.md, "fetch")."""
    item = waiting_item.item
    partition = waiting_item.partition
    if partition is None:
        return failed_read(item, waiting_item.code)
    error = lookup_error(partition, item.epoch, leader_only=is_leader_only(operation))
    if error:
        return failed_read(item, error)
    diverging = divergence(item, partition)
    beyond = 0 <= partition.log_end < item.offset
    if diverging == (-1, -1) or item.offset < partition.log_start or (beyond and diverging is None):
        return failed_read(item, 1)
    end = fetch_end(operation, partition)
    available_bytes = 0
    if diverging is None and can_count(operation, waiting_item, partition):
        available_bytes = item.max_bytes
        if partition.index.segment(end) <= waiting_item.start_segment:
            available_bytes = min(partition.index.reach(end) - waiting_item.start_reach, item.max_bytes)
    marks = (partition.high_watermark, partition.last_stable())
    values = (item.name, 0, item.offset, end, partition.log_start, -1, -1.0, available_bytes, *marks)
    return plain.EndedItem(*values, *(diverging or (-1, -1)))
