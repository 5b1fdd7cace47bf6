"""A naive purgatory: lists and loops. After every call, each pending operation that may be affected is tested again.

The order among operations that are due or shut down at the same time is the engine's choice: `finish` takes the list of
operations that the engine ended. The oracle knows which are due and checks that none is early.
"""

from collections.abc import Sequence

from tests.engine import plain
from tests.engine.oracle import operations, refusals
from tests.engine.oracle.operations import OracleState, Waiting, WaitingItem
from tests.engine.oracle.partition import Partition

ACCEPTED, KNOWN, REFUSED = 0, -1, plain.INVALID_ARGUMENT
"""Answers to a registration: a google.rpc.Code if it is refused."""
NEVER_MS = 2**62
MAKES_KNOWN = (plain.LEADERSHIP, plain.LEADER_APPEND, plain.PARTITION_REMOVED)


def is_stale(waiting: Waiting, stale_ms: dict[plain.Name, int], listening_ms: int) -> bool:
    """Whether an operation must not wait any longer for a stale mark."""
    timeout_ms = waiting.operation.stale_timeout_ms
    if timeout_ms < 0 or waiting.operation.kind == plain.SIGNAL or listening_ms - waiting.listening_ms < timeout_ms:
        return False
    if waiting.operation.kind == plain.COMPOSITE:
        terms, _ = operations.arms(waiting)
        possible = [item for item in terms if item.code in {0, 7}]
        lost = [item for item in possible if not item.decided and stale_ms.get(item.name, -1) >= timeout_ms]
        return len(possible) - len(lost) < operations.required_terms(waiting)
    return any(stale_ms.get(item.name, -1) >= timeout_ms for item in waiting.items if not item.decided)


class Oracle:
    """A purgatory that is obviously correct."""

    def __init__(self, settings: plain.Settings = plain.DEFAULTS) -> None:
        self.settings = settings
        self.world = OracleState({}, {}, {}, set(), {})
        self.pending: dict[tuple[int, int], Waiting] = {}
        self.highest_ids: dict[int, int] = {}
        """The highest registered operation id of each owner."""
        self.paused_ms = 0
        """The sum of all pauses, which count neither as silence nor for stale timeouts."""
        self.ended: list[plain.Ended] = []
        self.tally: dict[int, list[int]] = {kind: [0] * 6 for kind in plain.KINDS}
        """Counts for each kind: registered, then ended by outcome."""

    # Owners.

    def add_owner(self, owner_id: int) -> None:
        """Add an owner with the id that the engine assigned."""
        assert owner_id not in self.highest_ids, f"owner {owner_id} is in use"
        self.highest_ids[owner_id] = 0

    def remove_owner(self, owner_id: int, now_ms: int) -> None:
        """Cancel all its operations and drop their results."""
        self.cancel_all(owner_id, now_ms)
        self.ended = [ended for ended in self.ended if ended.owner_id != owner_id]
        del self.highest_ids[owner_id]

    # Registration.

    def register(self, owner_id: int, batch: Sequence[plain.Operation], now_ms: int) -> list[int]:
        """Register operations. Ids known before the batch are repeats; within the batch, ids must be ascending."""
        known = self.highest_ids[owner_id]
        answers = [self.register_one(owner_id, operation, known, now_ms) for operation in batch]
        self.forget_mentioned_only()
        return answers

    def register_one(self, owner_id: int, operation: plain.Operation, known: int, now_ms: int) -> int:
        if operation.operation_id < 1:
            return REFUSED
        if operation.operation_id <= known:
            return KNOWN
        if operation.operation_id <= self.highest_ids[owner_id]:
            return REFUSED
        self.highest_ids[owner_id] = operation.operation_id
        if refusals.operation_fault(operation, self.settings.timeout_ms_max):
            return REFUSED
        deadline_ms = self.rounded_up(now_ms + operation.timeout_ms) if operation.timeout_ms else now_ms
        waiting = Waiting(owner_id, operation, now_ms, deadline_ms, now_ms - self.paused_ms)
        if operation.kind != plain.SIGNAL and not self.settings.strict:
            for item in waiting.items:
                if item.name not in self.world.partitions and not operations.is_key(operation, item):
                    self.world.partitions[item.name] = Partition(item.name, self.settings.lag_max_ms)
        self.tally[operation.kind][0] += 1
        operations.start(waiting, self.world)
        self.pending[waiting.key] = waiting
        if not self.check([waiting], now_ms) and not operation.timeout_ms:
            self.end(waiting, plain.EXPIRED, now_ms)
        return ACCEPTED

    # Events.

    def apply(self, event: plain.Event, now_ms: int) -> plain.EventAnswer:
        if event.type == plain.KEY_SIGNALLED:
            return self.signal(event, now_ms)
        if refusals.event_fault(event):
            return plain.EventAnswer(refused=(plain.INVALID_ARGUMENT, 0))
        partition = self.world.partitions.get(event.name)
        if partition is None:
            if self.settings.strict and event.type not in MAKES_KNOWN:
                return plain.EventAnswer(refused=(plain.NOT_FOUND, 3))
            if event.type == plain.PARTITION_REMOVED:
                return plain.EventAnswer(unchanged=True)
            partition = Partition(event.name, self.settings.lag_max_ms)
        refused = refusals.event_refusal(event, partition)
        if refused is not None:
            partition.stale += refused[1] == 74
            return plain.EventAnswer(refused=refused)
        self.world.partitions[event.name] = partition
        if event.type == plain.PARTITION_REMOVED:
            return plain.EventAnswer(self.remove_partition(event.name, 6 if event.flag == 1 else 3, now_ms))
        before = partition.all_state()
        ended = 0
        if event.epoch > partition.epoch or event.type == plain.LEADERSHIP:
            partition.take_epoch_and_role(event)
            ended += self.check(self.waiting_on(event.name), now_ms)
        lead_changed = event.type == plain.LEADERSHIP and partition.all_state() != before
        had_index = bool(partition.index.entries)
        partition.apply(event, now_ms)
        if lead_changed:
            partition.recompute_high_watermark(now_ms)
        if partition.first_known is None and partition.high_watermark >= 0:
            partition.first_known = partition.high_watermark, now_ms
        changed = partition.all_state() != before
        partition.unchanged += not changed
        concerned = self.waiting_on(event.name)
        if partition.index.entries and not had_index:
            for waiting in concerned:
                for item in waiting.items:
                    if item.partition is partition:
                        item.anchor()
        ended += self.check(concerned, now_ms)
        assert changed or ended == 0, f"{event} changed nothing and ended {ended}"
        self.forget_mentioned_only()
        return plain.EventAnswer(ended, not changed)

    def signal(self, event: plain.Event, now_ms: int) -> plain.EventAnswer:
        count = 1 if event.offset == -1 else event.offset
        if count < 0 or (count == 0 and (event.value or event.flag)):
            return plain.EventAnswer(refused=(plain.INVALID_ARGUMENT, 0))
        self.world.signals[event.name] = self.world.signals.get(event.name, 0) + count
        self.world.signalled_ms[event.name] = now_ms - self.paused_ms
        if event.value:
            self.world.values.setdefault(event.name, event.value)
        if event.flag:
            self.world.failed.add(event.name)
        ended = self.check(self.waiting_on(event.name), now_ms)
        self.forget_mentioned_only()
        return plain.EventAnswer(ended)

    def remove_partition(self, name: plain.Name, code: int, now_ms: int) -> int:
        """End everything that waits on it, and remove all its state."""
        concerned = self.waiting_on(name)
        self.world.partitions.pop(name).removed_code = code
        ended = self.check(concerned, now_ms)
        self.forget_mentioned_only()
        return ended

    # Ends other than conditions.

    def cancel(self, owner_id: int, operation_ids: list[int], now_ms: int) -> list[bool]:
        """Cancel by id; True if it was pending."""
        keys = [(owner_id, one) for one in operation_ids]
        return [self.cancel_these([self.pending[key]] if key in self.pending else [], now_ms) > 0 for key in keys]

    def cancel_these(self, concerned: list[Waiting], now_ms: int) -> int:
        for waiting in concerned:
            self.end(waiting, plain.CANCELLED, now_ms)
        self.forget_mentioned_only()
        return len(concerned)

    def fail_stale(self, stale_ms: dict[plain.Name, int], now_ms: int) -> int:
        """Fail the operations that have waited out their stale timeout for a mark that was stale as long."""
        stale = [waiting for waiting in self.pending.values() if is_stale(waiting, stale_ms, now_ms - self.paused_ms)]
        for waiting in stale:
            self.fail(waiting, 1001, set(stale_ms), now_ms)
        self.forget_mentioned_only()
        return len(stale)

    def fail(self, waiting: Waiting, error: int, names: set[plain.Name], now_ms: int) -> None:
        """Fail an operation, with this error for its items of these names that are not decided."""
        decided = [item.decided for item in waiting.items]
        self.end(waiting, plain.FAILED, now_ms)
        row = self.ended[-1]
        items = [
            item if is_decided or item.name not in names else item._replace(error=error)
            for item, is_decided in zip(row.items, decided, strict=True)
        ]
        self.ended[-1] = row._replace(items=tuple(items))

    def cancel_all(self, owner_id: int, now_ms: int) -> int:
        return self.cancel_these([one for one in self.pending.values() if one.owner_id == owner_id], now_ms)

    def cancel_name(self, name: plain.Name, now_ms: int) -> int:
        """Cancel all operations that still wait on a partition or key."""
        concerned = self.waiting_on(name)
        still = [one for one in concerned if any(item.name == name and not item.decided for item in one.items)]
        return self.cancel_these(still, now_ms)

    def extend(self, owner_id: int, operation_ids: list[int], timeout_ms: int, now_ms: int) -> list[bool]:
        """Move deadlines to a later time; True if it was pending."""
        found = [self.pending.get((owner_id, operation_id)) for operation_id in operation_ids]
        deadline_ms = self.rounded_up(now_ms + timeout_ms)
        for waiting in found:
            if waiting is not None and waiting.deadline_ms < deadline_ms:
                waiting.deadline_ms = deadline_ms
                # It expires last among operations with the same deadline.
                self.pending[waiting.key] = self.pending.pop(waiting.key)
        return [waiting is not None for waiting in found]

    def rounded_up(self, time_ms: int) -> int:
        return -(-time_ms // self.settings.tick_ms) * self.settings.tick_ms

    def silent_at_ms(self, waiting: Waiting, item: WaitingItem) -> int:
        """When a key that is still waited for will have been silent for the heartbeat timeout."""
        timeout_ms = waiting.operation.heartbeat_timeout_ms
        if timeout_ms < 1 or item.decided:
            return NEVER_MS
        heard_ms = max(waiting.listening_ms, self.world.signalled_ms.get(item.name, waiting.listening_ms))
        return self.rounded_up(heard_ms + timeout_ms + self.paused_ms)

    def due_ms(self, waiting: Waiting) -> int:
        """When an operation must end: at its deadline, or before if one of its keys is silent until then."""
        return min(waiting.deadline_ms, *(self.silent_at_ms(waiting, item) for item in waiting.items))

    def due(self, now_ms: int) -> dict[tuple[int, int], int]:
        """When each of the operations that must end now had to end, by key."""
        times = {key: self.due_ms(waiting) for key, waiting in self.pending.items()}
        return {key: due_ms for key, due_ms in times.items() if due_ms <= now_ms}

    def earliest_deadline_ms(self) -> int:
        """The next time at which an operation must end; -1: nothing is pending."""
        return min(map(self.due_ms, self.pending.values()), default=-1)

    def finish(self, keys: list[tuple[int, int]], outcome: int, now_ms: int) -> None:
        """End these operations as expired or shutting down."""
        for key in keys:
            waiting = self.pending[key]
            due_ms = self.due_ms(waiting)
            assert outcome != plain.EXPIRED or now_ms >= due_ms, f"{key} is early by {due_ms - now_ms} ms"
            if outcome == plain.EXPIRED and due_ms < waiting.deadline_ms:
                silent = {item.name for item in waiting.items if self.silent_at_ms(waiting, item) <= now_ms}
                self.fail(waiting, 1004, silent, now_ms)
            else:
                self.end(waiting, outcome, now_ms)
        self.forget_mentioned_only()

    # Views.

    def take_ended(self) -> list[plain.Ended]:
        """The operations that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def counts(self, kind: int) -> plain.Counts:
        registered, *outcomes = self.tally[kind]
        pending = sum(waiting.operation.kind == kind for waiting in self.pending.values())
        return plain.Counts(registered, pending, *outcomes)

    def waiting_on(self, name: plain.Name) -> list[Waiting]:
        """Pending operations that name a partition or key, oldest first."""
        return [waiting for waiting in self.pending.values() if any(item.name == name for item in waiting.items)]

    def view(self, waiting: Waiting) -> plain.Pending:
        """A pending operation as seen from outside."""
        operation = waiting.operation
        return plain.Pending(
            operation.kind,
            waiting.registered_ms,
            waiting.deadline_ms,
            operation.min_bytes if operation.kind == plain.FETCH else -1,
            tuple(self.item_view(operation, item) for item in waiting.items),
            operations.required_terms(waiting) if operation.kind == plain.COMPOSITE else -1,
            operation.unless_count if operation.kind == plain.COMPOSITE else -1,
        )

    def item_view(self, operation: plain.Operation, item: WaitingItem) -> tuple[plain.Name, int, int, int]:
        """One item: name, code (7 while waited for), required and reached."""
        if operation.kind == plain.FETCH:
            assert item.partition is not None
            return (item.name, 7, item.required, operations.fetch_end(operation, item.partition))
        reached = item.reached_then if item.decided else self.mark_of(operation, item)
        return (item.name, item.code, item.required, reached)

    def check_everything(self, now_ms: int) -> int:
        """Test every pending operation; any that ends now should have ended earlier."""
        return self.check(list(self.pending.values()), now_ms)

    # Internals.

    def check(self, candidates: list[Waiting], now_ms: int) -> int:
        """Test operations, end those whose condition holds, and return how many."""
        ended = 0
        for waiting in candidates:
            if operations.is_complete(waiting, self.world):
                self.end(waiting, 0, now_ms)
                ended += 1
        return ended

    def end(self, waiting: Waiting, outcome: int, now_ms: int) -> None:
        """The only way to end an operation. Outcome 0: its condition holds, and its items determine the outcome."""
        del self.pending[waiting.key]
        items = tuple(self.answer(waiting, item, outcome, now_ms) for item in waiting.items)
        if outcome == 0:
            failed = any(item.error for item in items)
            if waiting.operation.kind == plain.SIGNAL and waiting.operation.any_key:
                failed = all(item.error for item in items)
            elif waiting.operation.kind == plain.SIGNAL:
                failed = any(item.error == operations.SIGNAL_FAILED for item in items)
            outcome = plain.FAILED if failed else plain.SATISFIED
            if waiting.operation.kind == plain.COMPOSITE:
                outcome = operations.composite_outcome(waiting)
        lateness_ms = now_ms - waiting.deadline_ms if outcome == plain.EXPIRED else 0
        self.tally[waiting.operation.kind][outcome] += 1
        operation = waiting.operation
        waited_ms = now_ms - waiting.registered_ms
        end = (operation.kind, outcome, waited_ms, lateness_ms)
        self.ended.append(plain.Ended(waiting.owner_id, operation.operation_id, *end, items))

    def answer(self, waiting: Waiting, item: WaitingItem, outcome: int, now_ms: int) -> plain.EndedItem:
        """The result of one item."""
        operation = waiting.operation
        if operation.kind == plain.FETCH:
            return operations.read(operation, item)
        mark = self.mark_of(operation, item)
        if operation.kind == plain.DELETE_RECORDS:
            reached = item.reached_then
        else:
            reached = item.reached_then if item.decided else mark
        log_start = -1 if item.partition is None else item.partition.log_start
        remaining_ms, pace = -1, -1.0
        if outcome == plain.EXPIRED and not item.decided:
            remaining_ms, pace = self.estimate(waiting, item, mark, now_ms)
        row = plain.EndedItem(item.name, item.code, item.required, reached, log_start, remaining_ms, pace)
        return row._replace(value=self.world.values.get(item.name, 0) if item.decided else 0)

    def mark_of(self, operation: plain.Operation, item: WaitingItem) -> int:
        """The current value of the mark that an item waits for."""
        if operations.is_key(operation, item):
            return self.world.signals.get(item.name, 0)
        if item.partition is None:
            return -1
        is_low = operation.kind == plain.DELETE_RECORDS
        return item.partition.low_watermark() if is_low else item.partition.high_watermark

    @staticmethod
    def estimate(waiting: Waiting, item: WaitingItem, mark: int, now_ms: int) -> tuple[int, float]:
        """Remaining time at the mean pace of the mark since the registration, or since it became known later, and that
        pace; -1: unknown.
        """
        start, since_ms = item.mark_at_start, waiting.registered_ms
        is_low = waiting.operation.kind == plain.DELETE_RECORDS
        if start < 0 and item.partition is not None and item.partition.first_known and not is_low:
            start, since_ms = item.partition.first_known
        moved, waited_ms = mark - start, now_ms - since_ms
        if start < 0 or moved <= 0 or waited_ms <= 0:
            return (-1, -1.0)
        remaining_ms = min(-(-(item.required - mark) * waited_ms // moved), 2**62)
        return (remaining_ms, moved * 1000 / waited_ms)

    def forget_mentioned_only(self) -> None:
        """Drop partitions that no event has named and no pending operation names."""
        if all(partition.events for partition in self.world.partitions.values()):
            return
        named = {id(item.partition) for waiting in self.pending.values() for item in waiting.items}
        for name, partition in list(self.world.partitions.items()):
            if partition.events == 0 and id(partition) not in named:
                del self.world.partitions[name]
