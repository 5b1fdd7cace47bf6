"""The generic purgatory: where a program's own delayed operations wait until satisfied, expired or cancelled.

Sans-I/O with one owner and no locks, like all of the engine; `purgatory.embedded` wraps it for threads. Kafka's
contract in its 4.1+ form (docs/semantics.md, section 2), with its gaps closed:

* An ended operation is unlinked from every key and from the timer the moment it is claimed, so nothing is purged, no
  payload outlives its operation, and `watched` counts pending entries only.
* What a hook raises is contained: `on_error` is told, the operation stays as it was, the others go on.
* Cancel and shutdown are outcomes, and `on_complete` hears of them. No operation is forgotten.
* Never early: a deadline is rounded up to a tick.

User predicates have no threshold, so a visit to a key costs its watchers. (The daemon's kinds do better: `watches`.)

Every public call ends by running the effects of what it ended, and of what those ended in turn, in order; a call made
from within an effect leaves its own to the outermost one. With an `ActionQueue` given, its owner drains it instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Final

from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import PurgatoryClosed, ReentrantCall
from purgatory.engine.generic.operation import ActionQueue, DelayedOperation, OnError
from purgatory.engine.waiting.wheel import DEADLINE_MAX, TimingWheel


class DelayedOperationPurgatory:
    """Pending operations by watch key and by deadline. All times are monotonic milliseconds and must not go back.

    `on_error(operation, exception)` is told of what hooks raise; what it raises itself reaches the caller, after the
    state is settled. `timer_enabled=False`: nothing expires. `claim` replaces the purgatory's own `force_complete` for
    operations that are forced from outside: a wrapper with a lock passes its own.
    """

    def __init__(
        self,
        now_ms: int,
        on_error: OnError,
        *,
        tick_ms: int = 1,
        wheel_size: int = 20,
        timer_enabled: bool = True,
        actions: ActionQueue | None = None,
        claim: Callable[[DelayedOperation], bool] | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.is_closed = False
        self.watched = 0
        """Entries in watch lists: (operation, key) pairs of pending operations."""
        self.pending = 0
        """Registered operations that have not ended."""
        self.evaluations = 0
        """Calls of `try_complete` so far."""
        self._on_error: Final = on_error
        self._timer_enabled: Final = timer_enabled
        self._runs_effects: Final = actions is None
        self._actions: Final = ActionQueue() if actions is None else actions
        self._claim_from_outside: Final = self.force_complete if claim is None else claim
        self._wheel: Final = TimingWheel(tick_ms, wheel_size, now_ms)
        self._due: Final[OrderedDict[int, None]] = OrderedDict()
        self._watchers: Final[dict[Hashable, dict[int, DelayedOperation]]] = {}
        self._operations: Final[list[DelayedOperation | None]] = []
        self._free_slots: Final[list[int]] = []
        self._shutdown_slot = 0
        self._is_busy = False
        self._is_evaluating = False

    @property
    def num_delayed(self) -> int:
        """Operations with a live timer entry: every pending one, unless timers are disabled."""
        return self._wheel.count + len(self._due)

    @property
    def key_count(self) -> int:
        """Keys that somebody waits on; a key vanishes with its last watcher."""
        return len(self._watchers)

    @property
    def is_evaluating(self) -> bool:
        """Whether a `try_complete` is running right now, so that this is a call from within it."""
        return self._is_evaluating

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Sequence[Hashable], now_ms: int) -> bool:
        """Try to complete an operation; if it can't yet, watch it on `keys` until it can or its time runs out.

        True: this call completed it. Duplicate keys count once. An operation that has already ended is not watched.
        Raises ValueError when `keys` is empty or the operation is pending already, PurgatoryClosed after `shut_down`.
        """
        if not keys:
            raise ValueError("keys is empty: nothing could ever complete the operation but its timeout")
        if operation.purgatory_slot >= 0:
            raise ValueError("the operation is pending in a purgatory already")
        if self.is_closed:
            raise PurgatoryClosed("the purgatory is shutting down")
        outermost = self._enter()
        try:
            self._set_now(now_ms)
            if operation.outcome != PENDING:
                return False
            operation.purgatory_claim = self._claim_from_outside
            if self._evaluate(operation):
                return True
            if self._has_ended_meanwhile(operation):
                return False
            self._watch(operation, keys)
            if self._evaluate(operation):
                return True
            if self._has_ended_meanwhile(operation):
                self._unlink(operation)
            elif self._timer_enabled:
                self._start_timer(operation)
            return False
        finally:
            self._leave(outermost)

    def check_and_complete(self, key: Hashable) -> int:
        """Re-test the operations watched on a key, oldest first; return how many this call completed on it."""
        outermost = self._enter()
        try:
            completed = 0
            for operation in list(self._watchers.get(key, {}).values()):
                if operation.outcome == PENDING and self._evaluate(operation):
                    completed += 1
            return completed
        finally:
            self._leave(outermost)

    def force_complete(self, operation: DelayedOperation) -> bool:
        """End an operation as SATISFIED. True: this call ended it. May be called from within its `try_complete`."""
        if self._is_evaluating:
            return self._claim(operation, SATISFIED)
        outermost = self._enter()
        try:
            return self._claim(operation, SATISFIED)
        finally:
            self._leave(outermost)

    def cancel(self, operation: DelayedOperation) -> bool:
        """End a pending operation as CANCELLED. False: it is not pending here, so it has ended or was never watched."""
        outermost = self._enter()
        try:
            return self._is_watched_here(operation) and self._claim(operation, CANCELLED)
        finally:
            self._leave(outermost)

    def cancel_for_key(self, key: Hashable) -> list[DelayedOperation]:
        """End every operation watched on a key as CANCELLED; return them, oldest first."""
        outermost = self._enter()
        try:
            operations = list(self._watchers.get(key, {}).values())
            for operation in operations:
                self._claim(operation, CANCELLED)
            return operations
        finally:
            self._leave(outermost)

    def advance_clock(self, now_ms: int, limit: int) -> int:
        """Expire operations due at `now_ms`, at most `limit`, in order of deadline; return how many.

        What is left over shows as `next_expiration_ms() <= now_ms`: call again.
        """
        outermost = self._enter()
        try:
            self._set_now(now_ms)
            slots = list(islice(self._due, limit))
            self._wheel.advance(now_ms, limit - len(slots), slots)
            for slot in slots:
                operation = self._operations[slot]
                assert operation is not None, f"slot {slot} fired at {now_ms} but holds no operation"
                self._claim(operation, EXPIRED)
            return len(slots)
        finally:
            self._leave(outermost)

    def next_expiration_ms(self) -> int:
        """When `advance_clock` has something to do; -1: never. A value at or before now means at once."""
        if self._due:
            return self.now_ms
        return self._wheel.next_expiration_ms()

    def shut_down(self, limit: int) -> int:
        """Refuse registrations from now on and end up to `limit` operations as SHUTTING_DOWN. 0: none is left."""
        outermost = self._enter()
        try:
            self.is_closed = True
            ended = 0
            while ended < limit and self._shutdown_slot < len(self._operations):
                operation = self._operations[self._shutdown_slot]
                self._shutdown_slot += 1
                if operation is not None and self._claim(operation, SHUTTING_DOWN):
                    ended += 1
            return ended
        finally:
            self._leave(outermost)

    def _enter(self) -> bool:
        """Begin a public call. True: it is the outermost one, so it runs the effects when it leaves."""
        if self._is_evaluating:
            raise ReentrantCall("try_complete called its own purgatory; do it in on_complete")
        outermost = not self._is_busy
        self._is_busy = True
        return outermost

    def _leave(self, outermost: bool) -> None:
        if not outermost:
            return
        try:
            while self._runs_effects and len(self._actions) > 0:
                self._actions.drain(self._on_error)
        finally:
            self._is_busy = False

    def _set_now(self, now_ms: int) -> None:
        assert now_ms >= self.now_ms, f"clock went back: now_ms={now_ms} purgatory={self.now_ms}"
        self.now_ms = now_ms

    def _evaluate(self, operation: DelayedOperation) -> bool:
        """Ask an operation that is pending; True: it ended. What `try_complete` raises counts as "not yet"."""
        self.evaluations += 1
        failure: Exception | None = None
        is_met = False
        self._is_evaluating = True
        try:
            is_met = operation.try_complete()
        except Exception as error:  # noqa: BLE001 - contained and handed on below
            failure = error
        finally:
            self._is_evaluating = False
        if is_met:
            self._claim(operation, SATISFIED)
        has_ended = operation.outcome != PENDING
        if has_ended:
            self._unlink(operation)
        if failure is not None:
            self._on_error(operation, failure)
        return has_ended

    def _is_watched_here(self, operation: DelayedOperation) -> bool:
        slot = operation.purgatory_slot
        return 0 <= slot < len(self._operations) and self._operations[slot] is operation

    def _has_ended_meanwhile(self, operation: DelayedOperation) -> bool:
        """Whether `on_error`, told of a failed evaluation, ended the operation or shut the purgatory down."""
        if self.is_closed:
            self._claim(operation, SHUTTING_DOWN)
        return operation.outcome != PENDING

    def _watch(self, operation: DelayedOperation, keys: Sequence[Hashable]) -> None:
        """Give the operation a slot and a place behind the watchers of each of its keys."""
        if self._free_slots:
            slot = self._free_slots.pop()
            self._operations[slot] = operation
        else:
            slot = len(self._operations)
            self._operations.append(operation)
            self._wheel.ensure(slot + 1)
        operation.purgatory_slot = slot
        operation.purgatory_keys = list(dict.fromkeys(keys))
        for key in operation.purgatory_keys:
            self._watchers.setdefault(key, {})[slot] = operation
        self.watched += len(operation.purgatory_keys)
        self.pending += 1

    def _start_timer(self, operation: DelayedOperation) -> None:
        deadline_ms = min(max(self.now_ms + operation.timeout_ms, 0), DEADLINE_MAX)
        if not self._wheel.add(operation.purgatory_slot, deadline_ms):
            self._due[operation.purgatory_slot] = None

    def _claim(self, operation: DelayedOperation, outcome: int) -> bool:
        """The one transition: out of PENDING, out of every list and the timer, effects queued. False: it had ended.

        One that a thread ended just while it was being registered is still unlinked; its effects are that thread's.
        """
        is_winner = operation.purgatory_take_ticket()
        if is_winner:
            operation.outcome = outcome
        self._unlink(operation)
        if is_winner:
            self._actions.add(operation)
        return is_winner

    def _unlink(self, operation: DelayedOperation) -> None:
        """Take an operation that has ended out of its keys and the timer, if it is in them."""
        operation.purgatory_claim = None
        slot = operation.purgatory_slot
        if slot >= 0:
            assert self._is_watched_here(operation), f"slot {slot} holds another operation than the one that ended"
            for key in operation.purgatory_keys:
                watchers = self._watchers[key]
                del watchers[slot]
                if not watchers:
                    del self._watchers[key]
            self.watched -= len(operation.purgatory_keys)
            self.pending -= 1
            self._wheel.remove(slot)
            self._due.pop(slot, None)
            self._operations[slot] = None
            self._free_slots.append(slot)
            operation.purgatory_slot = -1
            operation.purgatory_keys = []
