"""A program's own delayed operation, and the queue in which the effects of ended ones wait for their turn.

This is Kafka's contract for any condition a program can test (docs/semantics.md): the operations of the
daemon's wire are packed and live elsewhere. An operation ends exactly once. To end it is to *claim* it: set its outcome
and unlink it from every key and from the timer, all before any of its effects run. The effects, `on_complete` and then
perhaps `on_expiration`, are queued and run when the purgatory's state is settled, so they may call back in freely, and
completing one operation from within another's effects never recurses.

| hook            | called                                          | must                                    |
|-----------------|-------------------------------------------------|-----------------------------------------|
| `try_complete`  | many times, with the purgatory's state locked   | look; if met, return `force_complete()` |
| `on_complete`   | once, whatever the outcome                      | answer; may call the purgatory          |
| `on_expiration` | once, if the timer won, after `on_complete`     | extra effects: metrics, clean-up        |
"""

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, SupportsIndex

from mypy_extensions import mypyc_attr

from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED
from purgatory.engine.generic.argument_checks import whole_number


def chained(error: BaseException, before: BaseException | None) -> BaseException:
    """`error`, whose traceback shows the one that came before it, as if it had been raised while that was handled."""
    if error.__context__ is None and error is not before:
        error.__context__ = before
    return error


def take(right: list[None]) -> bool:
    """Whether the caller is the one who got the right: to pop from a list is one step for all threads."""
    try:
        right.pop()
    except IndexError:
        return False
    return True


@mypyc_attr(allow_interpreted_subclasses=True)
class GenericOperation:
    """One waiting request. Programs subclass `purgatory.embedded.DelayedOperation`, which is this and can be awaited.

    `timeout_ms` may be any whole number: 0 or less expires at the next `advance_clock`, more than 2**62 is taken as
    that. None: it never expires. `outcome` is PENDING, or how it ended: SATISFIED, EXPIRED, CANCELLED, SHUTTING_DOWN;
    it is set before `on_complete` runs. The attributes named `purgatory_…` belong to the purgatory.
    """

    def __init__(self, timeout_ms: SupportsIndex | None) -> None:
        self.timeout_ms: Final[int | None] = None if timeout_ms is None else whole_number("timeout_ms", timeout_ms)
        self.outcome = PENDING
        # Rights that one thread alone may `take`: to put the operation into a purgatory, and to set its outcome.
        self.purgatory_right_to_register: Final[list[None]] = [None]
        self.purgatory_right_to_end: Final[list[None]] = [None]
        self.purgatory_slot = -1
        self.purgatory_keys: list[Hashable] = []
        self.purgatory_claim: Callable[[GenericOperation], bool] | None = None
        self.purgatory_is_answered = False
        """Whether all its effects have run."""
        self.purgatory_is_listened_to = False
        self.purgatory_listeners: Final[list[Callable[[], object]]] = []

    def try_complete(self) -> bool:
        """Test the condition. Met: `return self.force_complete()`; else False. Anything else is read by its truth.

        Cheap, repeatable and harmless. It must not call the purgatory: that raises `ReentrantCall`.
        """
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer the caller. Runs exactly once; `outcome` says why."""

    def on_expiration(self) -> None:
        """Do what only an expiry asks for. Skipped when `on_complete` raised."""

    @property
    def is_completed(self) -> bool:
        """Whether it has been claimed. Its effects may not have run yet."""
        return self.outcome != PENDING

    def force_complete(self) -> bool:
        """End it as SATISFIED whatever its condition says. True: this call was the one that ended it.

        An operation that was never registered runs its effects at once, on the caller; what they raise is the caller's.
        """
        claim = self.purgatory_claim
        if claim is not None:
            return claim(self)
        if not take(self.purgatory_right_to_end):
            return False
        self.outcome = SATISFIED
        registered_meanwhile = self.purgatory_claim
        if registered_meanwhile is not None:
            registered_meanwhile(self)
        try:
            self.on_complete()
        finally:
            self.purgatory_tell_listeners()
        return True

    def purgatory_listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` once when all effects have run: now, if they have, else on the thread that runs them."""
        # Each side sets its flag before it reads the other's, so one of the two sees the other, and `pop` lets only one
        # of them call the listener.
        self.purgatory_listeners.append(listener)
        self.purgatory_is_listened_to = True
        if self.purgatory_is_answered:
            self.purgatory_tell_listeners()

    def purgatory_forget(self, listener: Callable[[], object]) -> None:
        """Take a listener back; one that was called already is no longer there."""
        with suppress(ValueError):
            self.purgatory_listeners.remove(listener)

    def purgatory_tell_listeners(self) -> None:
        """Say that the effects have run. For whoever ran them."""
        self.purgatory_is_answered = True
        while self.purgatory_listeners:
            try:
                listener = self.purgatory_listeners.pop()
            except IndexError:
                return  # another thread took the last one
            listener()


OnError = Callable[[Any, Exception], object]
"""Called with each exception that a hook of an operation raised: (operation, exception). It should not raise."""


def run_effects(operation: GenericOperation, on_error: OnError) -> None:
    """Run what follows the end of a claimed operation; what it raises goes to `on_error` and stops nobody else."""
    try:
        operation.on_complete()
        if operation.outcome == EXPIRED:
            operation.on_expiration()
    except Exception as error:  # noqa: BLE001 - contained and handed on, never swallowed
        on_error(operation, error)
    finally:
        operation.purgatory_is_answered = True
        if operation.purgatory_is_listened_to:  # a flag, as to read the list of each costs a cache miss: 100 ns
            operation.purgatory_tell_listeners()


class ActionQueue:
    """Ended operations whose effects have yet to run, oldest first. May be shared by several purgatories."""

    def __init__(self) -> None:
        self._operations: Final[deque[GenericOperation]] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: GenericOperation) -> None:
        """Queue the effects of a claimed operation."""
        self._operations.append(operation)

    def drain(self, on_error: OnError) -> int:
        """Run the effects that are queued now; those added meanwhile wait for the next drain. Return how many ran."""
        count = len(self._operations)
        for _ in range(count):
            run_effects(self._operations.popleft(), on_error)
        return count

    def take_all(self) -> list[GenericOperation]:
        """Empty the queue: the caller runs the effects."""
        operations = list(self._operations)
        self._operations.clear()
        return operations
