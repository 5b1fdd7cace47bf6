"""Performs calls on the parts of an engine. `Engine` and `TapePlayer` share it, so each call has one meaning."""

from typing import Final

from mypy_extensions import i64

from purgatory.engine import calls
from purgatory.engine.batches import PartitionName, Receipt
from purgatory.engine.codes import CANCELLED, SHUTTING_DOWN
from purgatory.engine.inspection import EngineInspection
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.marks.events import Events
from purgatory.engine.waiting.admission import Admission
from purgatory.engine.waiting.stale_waits import StaleWaits
from purgatory.engine.waiting.tables import FREE, Owner
from purgatory.engine.waiting.wakeups import UNLIMITED
from purgatory.engine.waiting.wheel import MOVES_MAX

EXPIRED_AT_A_TIME: Final = 16
"""Operations taken out of the wheel at once. All of them then end, whatever that costs: each may have 2,000 items."""


class Performer:
    """Performs calls. The caller passes times that do not decrease."""

    def __init__(
        self, admission: Admission, events: Events, inspection: EngineInspection, stale_waits: StaleWaits
    ) -> None:
        self.admission: Final = admission
        self.events: Final = events
        self.pending: Final = admission.pending
        self._inspection: Final = inspection
        self._stale_waits: Final = stale_waits
        self._next_to_shut_down: i64 = 0

    def perform(self, owner: Owner | None, call: calls.Call, now_ms: i64, work_max: int) -> Receipt:
        """See `Engine.perform`."""
        before = self.pending.ended_total
        if isinstance(call, calls.Apply):
            usage = call.usage
            if usage is None:
                usage = self.pending.partitions.unowned
            receipt = self.events.apply(call.batch, now_ms, call.start, work_max, usage, call.is_full)
        elif isinstance(call, calls.Register):
            assert owner is not None, "a registration needs an owner"
            receipt = self.admission.admit(owner, call.kind, call.batch, now_ms, call.known_up_to)
        else:
            receipt = Receipt()
            if owner is None:
                self._perform_on_all(call, now_ms, work_max, receipt)
            else:
                self._perform_on(owner, call, now_ms, work_max, receipt)
        receipt.ended = self.pending.ended_total - before
        return receipt

    def _perform_on_all(self, call: calls.Call, now_ms: i64, work_max: int, receipt: Receipt) -> None:
        """Perform a call on the operations of all owners."""
        stop: i64 = self.pending.work_total + work_max
        if isinstance(call, calls.PassTime):
            self.expire(call.limit, now_ms, stop)
            receipt.has_more = 0 <= self.pending.wheel.next_expiration_ms() <= now_ms
        elif isinstance(call, calls.CancelName):
            self.cancel_name(call.name, now_ms, work_max)
            receipt.has_more = self._inspection.has_waits(call.name)
        elif isinstance(call, calls.Pause):
            receipt.unchanged = 0 if self.pause(call.pause_ms) else 1
        else:
            assert isinstance(call, calls.ShutDown), f"{call!r} needs an owner"
            self._shut_down(call.limit, now_ms, stop, receipt)

    def _perform_on(self, owner: Owner, call: calls.Call, now_ms: i64, work_max: int, receipt: Receipt) -> None:
        """Perform a call on the operations of one owner."""
        stop: i64 = self.pending.work_total + work_max
        if isinstance(call, calls.Cancel):
            for operation_id in call.operation_ids:
                if self.pending.work_total >= stop:
                    receipt.has_more = True
                    break
                # An id that is not pending is not counted as work, so the caller has to limit the number of ids.
                receipt.were_pending.append(self.end(owner, operation_id, CANCELLED, now_ms))
        elif isinstance(call, calls.CancelAll):
            self._end_all(owner, CANCELLED, now_ms, UNLIMITED, stop, call.up_to_id, receipt)
        elif isinstance(call, calls.ShutDown):
            self._end_all(owner, SHUTTING_DOWN, now_ms, call.limit, stop, OPERATION_ID_MAX, receipt)
        elif isinstance(call, calls.Extend):
            limits = self.admission.limits
            assert 1 <= call.timeout_ms <= limits.timeout_ms_max, f"timeout_ms={call.timeout_ms}"
            for operation_id in call.operation_ids:
                receipt.were_pending.append(self.extend(owner, operation_id, now_ms + call.timeout_ms))
        else:
            assert isinstance(call, calls.FailStale), f"{call!r} has no owner"
            for operation_id in call.operation_ids:
                if self.pending.work_total >= stop:
                    receipt.has_more = True
                    break
                receipt.were_pending.append(self.fail_stale(owner, operation_id, call.stale, now_ms))

    # One operation. Each returns whether it was pending.

    def end(self, owner: Owner, operation_id: int, outcome: i64, now_ms: i64) -> bool:
        """End an operation by id."""
        slot = self._inspection.find(owner, operation_id)
        if slot >= 0:
            self.pending.end(slot, outcome, now_ms)
        return slot >= 0

    def extend(self, owner: Owner, operation_id: int, deadline_ms: i64) -> bool:
        """Move the deadline of an operation, if that makes it later."""
        slot = self._inspection.find(owner, operation_id)
        if slot >= 0:
            self.pending.extend(slot, deadline_ms)
        return slot >= 0

    def fail_stale(self, owner: Owner, operation_id: int, stale: set[PartitionName], now_ms: i64) -> bool:
        """End an operation because of stale marks."""
        slot = self._inspection.find(owner, operation_id)
        if slot >= 0:
            self._stale_waits.fail(slot, stale, now_ms)
        return slot >= 0

    # Many operations.

    def _end_all(
        self, owner: Owner, outcome: i64, now_ms: i64, limit: i64, stop: i64, up_to_id: int, receipt: Receipt
    ) -> None:
        ended: i64 = 0
        slot = owner.first_pending(up_to_id, self.pending.operations)
        while slot >= 0 and ended < limit and self.pending.work_total < stop:
            self.pending.end(slot, outcome, now_ms)
            ended += 1
            slot = owner.first_pending(up_to_id, self.pending.operations)
        receipt.has_more = slot >= 0

    def _shut_down(self, limit: i64, now_ms: i64, stop: i64, receipt: Receipt) -> None:
        operations = self.pending.operations
        ended: i64 = 0
        while ended < limit and self.pending.count > 0 and self.pending.work_total < stop:
            slot = self._next_to_shut_down
            # The walk continues where the last slice stopped, and wraps: slots behind it may have been taken again.
            self._next_to_shut_down = slot + 1 if slot + 1 < operations.size else 0
            if slot < operations.size and operations.kind[slot] != FREE:
                self.pending.end(slot, SHUTTING_DOWN, now_ms)
                ended += 1
        receipt.has_more = self.pending.count > 0

    def cancel_name(self, name: PartitionName, now_ms: i64, work_max: int) -> None:
        """Cancel the operations that wait on a partition, or on a key as `(key, -1)`."""
        wakeups = self.events.wakeups
        if name[1] < 0:
            key = self.pending.keys.get(name[0])
            if key is not None:
                wakeups.cancel_waiting_key(key, CANCELLED, now_ms, work_max)
        else:
            partition = self.pending.partitions.get(name)
            if partition is not None:
                wakeups.cancel_waiting(partition, CANCELLED, now_ms, work_max)

    def expire(self, limit: int, now_ms: i64, stop: i64) -> int:
        """Expire up to `limit` operations that are due, until the total work reaches `stop`. Returns how many."""
        wheel = self.pending.wheel
        moves: i64 = wheel.moves_total
        expired = 0
        while expired < limit and self.pending.work_total < stop and wheel.moves_total - moves < MOVES_MAX:
            fired: list[int] = []
            asked = min(limit - expired, EXPIRED_AT_A_TIME)
            wheel.advance(now_ms, asked, fired)
            expired += self.pending.on_timers(fired, now_ms)
            if len(fired) < asked:  # nothing more is due, or the wheel has used up its moves
                break
        return expired

    def pause(self, pause_ms: int) -> bool:
        """Note a pause. Returns whether a pending operation has a heartbeat or a stale timeout."""
        assert pause_ms >= 0, f"pause_ms={pause_ms}"
        if not self.pending.heartbeats and not self.pending.stale_timeouts:
            return False
        self.pending.paused_ms += pause_ms
        return True
