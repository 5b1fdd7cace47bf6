"""The generic purgatory: holds a program's own delayed operations until they are satisfied, expired or cancelled.

Sans-I/O, with one owner and no locks, like the rest of the engine; `purgatory.embedded` wraps it for threads. It
follows Kafka's contract in its 4.1+ form, and closes its gaps (cases 24 to 46 in docs/semantics.md):

* An operation is unlinked from every key and from the timer when it is claimed. So there is no purge, no payload
  outlives its operation, and `watched` counts pending entries only.
* Exceptions of hooks are contained: `on_error` is called, the operation keeps its state, and the others continue. A
  BaseException (KeyboardInterrupt, SystemExit, CancelledError) reaches the caller, after the others had their turn.
* A registration that raises leaves nothing behind: arguments are checked first, and links already made are removed.
* Cancellation and shutdown are outcomes, and run `on_complete` too. No operation is forgotten.
* No operation expires early: deadlines are rounded up to a tick.

User predicates have no threshold, so a check of a key evaluates all its watchers. (The daemon's own kinds avoid that
cost; see `waiting/watches`.)

A call does not run the effects of the operations that it ended: it appends them to `ended`, and the owner runs them.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Any, Final, SupportsIndex

from purgatory.engine.codes import CANCELLED, EXPIRED, OUTCOME_NAMES, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryClosed, PurgatoryFull, ReentrantCall
from purgatory.engine.generic.argument_checks import distinct_keys, in_range, truth
from purgatory.engine.generic.operation import GenericOperation, OnError, chained, take
from purgatory.engine.waiting.wheel import DEADLINE_MAX, TICK_MS_MAX, WHEEL_SIZE_MAX, TimingWheel

TIMEOUT_MS_MAX: Final = 2**62
"""Longer timeouts are capped at this value (146 million years), because compiled arithmetic has 64 bits."""


class DelayedOperationPurgatory:
    """Pending operations, by watch key and by deadline. All times are monotonic milliseconds and must not decrease.

    Args:
        on_error: Called as `on_error(operation, exception)` for exceptions of `try_complete` and of keys.
        claim: `force_complete` of the owner, with its lock, for operations that are completed from outside.
        timer_enabled: If False, nothing expires.
        pending_max: Maximum number of pending operations; None means no limit.
    """

    def __init__(
        self,
        now_ms: int,
        on_error: OnError,
        claim: Callable[[GenericOperation], bool],
        *,
        tick_ms: SupportsIndex,
        wheel_size: SupportsIndex,
        timer_enabled: bool,
        pending_max: SupportsIndex | None,
    ) -> None:
        self.now_ms = now_ms
        self.is_closed = False
        self.watched = 0
        """Entries in watch lists: (operation, key) pairs of pending operations."""
        self.pending = 0
        """Registered operations that have not ended."""
        self.ended: Final[deque[GenericOperation]] = deque()
        """Ended operations whose effects have not run yet, oldest first."""
        self._on_error: Final = on_error
        self._timer_enabled: Final = timer_enabled
        self._pending_max: Final = -1 if pending_max is None else in_range("pending_max", pending_max, 1, 2**63 - 1)
        self._claim_from_outside: Final = claim
        tick = in_range("tick_ms", tick_ms, 1, TICK_MS_MAX)
        self._wheel: Final = TimingWheel(tick, in_range("wheel_size", wheel_size, 2, WHEEL_SIZE_MAX), now_ms)
        self._due: Final[OrderedDict[int, None]] = OrderedDict()
        self._watchers: Final[dict[Hashable, dict[int, GenericOperation]]] = {}
        self._operations: Final[list[GenericOperation | None]] = []
        self._free_slots: Final[list[int]] = []
        self._shutdown_slot = 0
        self.is_busy = False
        """Whether a public call is in progress. If so, another call comes from a hook or a signal handler."""
        self._is_evaluating = False

    @property
    def num_delayed(self) -> int:
        """Operations with a timer entry: all pending operations that can expire."""
        return self._wheel.count + len(self._due)

    @property
    def key_count(self) -> int:
        """Keys with at least one watcher. A key is removed with its last watcher."""
        return len(self._watchers)

    def is_registered(self, operation: GenericOperation) -> bool:
        """Whether the operation is pending here."""
        slot = operation.purgatory_slot
        return 0 <= slot < len(self._operations) and self._operations[slot] is operation

    def try_complete_else_watch(self, operation: GenericOperation, keys: Iterable[Hashable], now_ms: int) -> bool:
        """See `EmbeddedPurgatory.try_complete_else_watch`. Duplicate keys count once."""
        distinct = distinct_keys(keys)
        if self.is_closed:
            raise PurgatoryClosed("the purgatory is shutting down")
        outermost = self._enter()
        try:
            self._set_now(now_ms)
            # The last of these checks: a call that is refused for another reason must not use up the right to register.
            _take_right_to_register(operation)
            try:
                return self._try_complete_else_watch(operation, distinct)
            except BaseException:
                self._withdraw(operation)
                raise
        finally:
            self._leave(outermost)

    def check_and_complete(self, key: Hashable) -> int:
        """Evaluate the operations watched on a key, oldest first. Returns how many this call completed on it."""
        outermost = self._enter()
        try:
            completed = 0
            interrupt: BaseException | None = None
            # A copy, because operations that end leave this dictionary during the loop.
            for operation in list(self._watchers.get(key, {}).values()):
                # An earlier operation's `try_complete` or `on_error` may have ended this one.
                if operation.outcome == PENDING:
                    # The other operations would not be evaluated until the next event, so they get their turn before it
                    # is raised.
                    try:
                        if self._evaluate(operation):
                            completed += 1
                    except BaseException as error:  # noqa: BLE001 - raised below
                        interrupt = chained(error, interrupt)
            if interrupt is not None:
                raise interrupt
            return completed
        finally:
            self._leave(outermost)

    def force_complete(self, operation: GenericOperation) -> bool:
        """End an operation as SATISFIED. Returns True if this call ended it. Allowed within its own `try_complete`."""
        # `_enter` would raise ReentrantCall here. The effects run when the call that evaluates is over.
        if self._is_evaluating:
            return self._claim(operation, SATISFIED)
        outermost = self._enter()
        try:
            return self._claim(operation, SATISFIED)
        finally:
            self._leave(outermost)

    def cancel(self, operation: GenericOperation) -> bool:
        """See `EmbeddedPurgatory.cancel`."""
        outermost = self._enter()
        try:
            is_mine = self.is_registered(operation) or take(operation.purgatory_right_to_register)
            return is_mine and self._claim(operation, CANCELLED)
        finally:
            self._leave(outermost)

    def cancel_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End all operations watched on a key as CANCELLED. Returns them, oldest first."""
        return self._end_for_key(key, CANCELLED)

    def force_complete_for_key(self, key: Hashable) -> list[GenericOperation]:
        """End all operations watched on a key as SATISFIED, whatever their conditions. Returns them, oldest first."""
        return self._end_for_key(key, SATISFIED)

    def advance_clock(self, now_ms: int, limit: int) -> int:
        """Expire up to `limit` operations that are due at `now_ms`, in order of deadline. Returns how many expired.

        If more are due, `next_expiration_ms() <= now_ms` afterwards: call again.
        """
        outermost = self._enter()
        try:
            self._set_now(now_ms)
            # They stay in `_due` until `_claim` unlinks them.
            slots = list(islice(self._due, limit))
            self._wheel.advance(now_ms, limit - len(slots), slots)
            claimed = 0
            try:
                for slot in slots:
                    operation = self._operations[slot]
                    assert operation is not None, f"slot {slot} fired at {now_ms} but holds no operation"
                    claimed += 1
                    self._claim(operation, EXPIRED)
            finally:
                # The wheel has already released all of them. After an interrupt, the rest must be kept as due.
                for slot in slots[claimed:]:
                    self._due[slot] = None
            return len(slots)
        finally:
            self._leave(outermost)

    def next_expiration_ms(self) -> int:
        """When to call `advance_clock` next; -1: never. A value at or before now means immediately."""
        if self._due:
            return self.now_ms
        return self._wheel.next_expiration_ms()

    def shut_down(self, limit: int) -> int:
        """Reject registrations from now on; end up to `limit` operations as SHUTTING_DOWN. Returns 0 if none is
        left.
        """
        outermost = self._enter()
        try:
            self.is_closed = True
            ended = 0
            while ended < limit and self._shutdown_slot < len(self._operations):
                operation = self._operations[self._shutdown_slot]
                # Each slot is visited once: a closed purgatory registers nothing, so no slot is taken again behind this
                # one.
                self._shutdown_slot += 1
                if operation is not None and self._claim(operation, SHUTTING_DOWN):
                    ended += 1
            return ended
        finally:
            self._leave(outermost)

    def _enter(self) -> bool:
        """Begin a public call. Returns True for the outermost call."""
        if self._is_evaluating:
            raise ReentrantCall("try_complete called its own purgatory; do it in on_complete")
        outermost = not self.is_busy
        self.is_busy = True
        return outermost

    def _leave(self, outermost: bool) -> None:
        if outermost:
            self.is_busy = False

    def _set_now(self, now_ms: int) -> None:
        assert now_ms >= self.now_ms, f"clock went back: now_ms={now_ms} purgatory={self.now_ms}"
        self.now_ms = now_ms

    def _try_complete_else_watch(self, operation: GenericOperation, keys: dict[Hashable, None]) -> bool:
        # Before the first evaluation: from now on `force_complete`, on any thread, must end the operation through this
        # purgatory, which unlinks it.
        operation.purgatory_claim = self._claim_from_outside
        if self._evaluate(operation):
            return True
        if self._has_ended_meanwhile(operation):
            return False
        if 0 <= self._pending_max <= self.pending:
            raise PurgatoryFull(f"{self.pending} operations are pending, which is the limit (pending_max)")
        self._watch(operation, keys)
        # Evaluate again now that it is watched, as Kafka's tryCompleteElseWatch does: an event between the first
        # evaluation and now found no watcher to wake.
        if self._evaluate(operation):
            return True
        if self._has_ended_meanwhile(operation):
            self._unlink(operation)
        elif self._timer_enabled:
            self._start_timer(operation)
        return False

    def _withdraw(self, operation: GenericOperation) -> None:
        """Undo a registration that raised. The operation may be registered again unless it has ended."""
        self._unlink(operation)
        if operation.purgatory_right_to_end:
            operation.purgatory_right_to_register.append(None)

    def _evaluate(self, operation: GenericOperation) -> bool:
        """Evaluate a pending operation; True: it ended. An Exception from `try_complete` counts as "not yet"."""
        failure: Exception | None = None
        is_met = False
        self._is_evaluating = True
        try:
            # Called through Any: with the declared type, compiled code would reject every result that is not a bool.
            asked: Any = operation
            is_met = truth(asked.try_complete())
        except Exception as error:  # noqa: BLE001 - contained and passed to on_error below
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

    def _has_ended_meanwhile(self, operation: GenericOperation) -> bool:
        """Whether `on_error`, called for a failed evaluation, ended the operation or shut the purgatory down."""
        if self.is_closed:
            self._claim(operation, SHUTTING_DOWN)
        return operation.outcome != PENDING

    def _watch(self, operation: GenericOperation, keys: dict[Hashable, None]) -> None:
        """Assign a slot to the operation and append it to the watchers of each key."""
        if self._free_slots:
            slot = self._free_slots.pop()
            self._operations[slot] = operation
        else:
            slot = len(self._operations)
            self._operations.append(operation)
            self._wheel.ensure(slot + 1)
        operation.purgatory_slot = slot
        self.pending += 1
        # One key at a time, so that `_unlink` is correct after a partial run: a key's hash or comparison may raise here
        # too.
        for key in keys:
            watchers = self._watchers.get(key)
            if watchers is None:
                self._watchers[key] = {slot: operation}
            else:
                watchers[slot] = operation
            operation.purgatory_keys.append(key)
            self.watched += 1

    def _start_timer(self, operation: GenericOperation) -> None:
        timeout_ms = operation.timeout_ms
        if timeout_ms is None:
            return
        slot = operation.purgatory_slot
        if timeout_ms <= 0:
            self._due[slot] = None
            return
        # Capped while it is a Python integer: a larger one does not fit the 64-bit parameter of the wheel and would
        # raise.
        deadline_ms = DEADLINE_MAX if timeout_ms >= TIMEOUT_MS_MAX else min(self.now_ms + timeout_ms, TIMEOUT_MS_MAX)
        if not self._wheel.add(slot, deadline_ms):
            self._due[slot] = None

    def _end_for_key(self, key: Hashable, outcome: int) -> list[GenericOperation]:
        outermost = self._enter()
        try:
            return [one for one in list(self._watchers.get(key, {}).values()) if self._claim(one, outcome)]
        finally:
            self._leave(outermost)

    def _claim(self, operation: GenericOperation, outcome: int) -> bool:
        """The only transition out of PENDING: unlink, stop the timer, queue the effects. False: it had already ended.

        An operation that another thread ended during its registration is still unlinked; that thread runs its effects.
        """
        is_winner = take(operation.purgatory_right_to_end)
        if is_winner:
            # Queued before `_unlink`, which may raise through `on_error`: the effects must run anyway.
            operation.outcome = outcome
            self.ended.append(operation)
        self._unlink(operation)
        return is_winner

    def _unlink(self, operation: GenericOperation) -> None:
        """Remove an operation from its keys and from the timer, if it is linked."""
        operation.purgatory_claim = None
        slot = operation.purgatory_slot
        if slot < 0:
            return
        assert self.is_registered(operation), f"slot {slot} holds another operation than the one that ended"
        keys = operation.purgatory_keys
        operation.purgatory_slot = -1
        operation.purgatory_keys = []
        # All that cannot raise comes first. Removing from the keys' dictionaries calls `__hash__` and `__eq__` of the
        # program's keys.
        self.watched -= len(keys)
        self.pending -= 1
        self._wheel.remove(slot)
        self._due.pop(slot, None)
        self._operations[slot] = None
        try:
            for key in keys:
                watchers = self._watchers[key]
                del watchers[slot]
                if not watchers:
                    del self._watchers[key]
        except Exception as error:  # noqa: BLE001 - passed to on_error
            # The hash of a key has changed, or raises now. Its list can no longer be found by key, so all lists are
            # searched: the slot is about to be reused for another operation.
            for watchers in self._watchers.values():
                watchers.pop(slot, None)
            self._on_error(operation, error)
        # Last: until here a watch list may still hold this slot, and a new operation there would be taken for the old
        # one.
        self._free_slots.append(slot)


def _take_right_to_register(operation: GenericOperation) -> None:
    may_register = take(operation.purgatory_right_to_register)
    if operation.outcome != PENDING:
        ended = OUTCOME_NAMES[operation.outcome]
        raise OperationEnded(f"the operation has ended ({ended}): make a new one for each registration")
    if not may_register:
        raise ValueError("the operation is pending in a purgatory already")
