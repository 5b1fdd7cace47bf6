"""Base class of a program's own delayed operations, and how the effects of an ended one run.

This is Kafka's contract for any condition that a program can test (docs/semantics.md). The daemon's own kinds of
operation are packed into arrays and implemented elsewhere. An operation ends exactly once. To end it is to *claim* it:
set its outcome and unlink it from every key and from the timer, before any of its effects run. The effects are
`on_complete` and then, after an expiry, `on_expiration`. They are queued and run once the purgatory's state is settled,
so they may call the purgatory freely, and completing an operation from within another's effects never recurses.

| hook            | called                                          | must                                    |
|-----------------|-------------------------------------------------|-----------------------------------------|
| `try_complete`  | many times, with the purgatory's state locked   | test; if met, return `force_complete()` |
| `on_complete`   | once, whatever the outcome                      | answer; may call the purgatory          |
| `on_expiration` | once, if the timer won, after `on_complete`     | extra effects: metrics, clean-up        |
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, SupportsIndex

from mypy_extensions import mypyc_attr

from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED
from purgatory.engine.generic.argument_checks import whole_number


def chained(error: BaseException, before: BaseException | None) -> BaseException:
    """Return `error` with `before` as its context, as if it had been raised while `before` was being handled."""
    if error.__context__ is None and error is not before:
        error.__context__ = before
    return error


def take(right: list[None]) -> bool:
    """Whether the caller won this right. Exactly one thread does: popping from a list is atomic."""
    try:
        right.pop()
    except IndexError:
        return False
    return True


@mypyc_attr(allow_interpreted_subclasses=True)
class GenericOperation:
    """One waiting request. Programs subclass `purgatory.embedded.DelayedOperation`, an awaitable subclass of this.

    `timeout_ms` may be any integer. 0 or less expires at the next `advance_clock`; values above 2**62 are capped there;
    None never expires. `outcome` is PENDING, SATISFIED, EXPIRED, CANCELLED or SHUTTING_DOWN, and is set before
    `on_complete` runs. Attributes named `purgatory_…` are reserved for the purgatory.
    """

    def __init__(self, timeout_ms: SupportsIndex | None) -> None:
        self.timeout_ms: Final[int | None] = None if timeout_ms is None else whole_number("timeout_ms", timeout_ms)
        self.outcome = PENDING
        # Rights that only one thread can `take`: to register the operation with a purgatory, and to set its outcome.
        self.purgatory_right_to_register: Final[list[None]] = [None]
        self.purgatory_right_to_end: Final[list[None]] = [None]
        self.purgatory_slot = -1
        self.purgatory_keys: list[Hashable] = []
        self.purgatory_claim: Callable[[GenericOperation], bool] | None = None
        self.purgatory_is_answered = False
        """Whether all effects have run."""
        self.purgatory_is_listened_to = False
        self.purgatory_listeners: Final[list[Callable[[], object]]] = []

    def try_complete(self) -> bool:
        """Test the condition. Return `self.force_complete()` if it is met, else False.

        It must be cheap, repeatable and free of side effects. Any other result counts by its truth value. Calling the
        purgatory from it raises `ReentrantCall`.
        """
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answer the caller. Runs exactly once; `outcome` tells why."""

    def on_expiration(self) -> None:
        """Extra effects of an expiry. Skipped if `on_complete` raised."""

    @property
    def is_completed(self) -> bool:
        """Whether the operation has been claimed. Its effects may not have run yet."""
        return self.outcome != PENDING

    def force_complete(self) -> bool:
        """End the operation as SATISFIED, regardless of its condition. Returns True if this call ended it.

        The effects of an operation that was never registered run within this call, and their exceptions propagate.
        """
        claim = self.purgatory_claim
        if claim is not None:
            return claim(self)
        if not take(self.purgatory_right_to_end):
            return False
        self.outcome = SATISFIED
        # Read again: another thread may have registered the operation since the first look. It must be unlinked there.
        registered_meanwhile = self.purgatory_claim
        if registered_meanwhile is not None:
            registered_meanwhile(self)
        try:
            self.on_complete()
        finally:
            self.purgatory_tell_listeners()
        return True

    def purgatory_listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` once after all effects have run: now if they have, else on the thread that runs them."""
        # Each side sets its own flag before it reads the other's, so at least one side sees the other; `pop` ensures
        # that only one of them calls the listener.
        self.purgatory_listeners.append(listener)
        self.purgatory_is_listened_to = True
        if self.purgatory_is_answered:
            self.purgatory_tell_listeners()

    def purgatory_forget(self, listener: Callable[[], object]) -> None:
        """Remove a listener. Does nothing if it has been called already."""
        with suppress(ValueError):
            self.purgatory_listeners.remove(listener)

    def purgatory_tell_listeners(self) -> None:
        """Mark the effects as done and call the listeners. Called by the thread that ran the effects."""
        self.purgatory_is_answered = True
        while self.purgatory_listeners:
            try:
                listener = self.purgatory_listeners.pop()
            except IndexError:
                return  # another thread took the last one
            listener()


OnError = Callable[[Any, Exception], object]
"""Called with each exception raised by a hook of an operation: (operation, exception). It should not raise."""


def run_effects(operation: GenericOperation, on_error: OnError) -> None:
    """Run the effects of a claimed operation. Exceptions go to `on_error` and do not affect other operations."""
    try:
        operation.on_complete()
        if operation.outcome == EXPIRED:
            operation.on_expiration()
    except Exception as error:  # noqa: BLE001 - contained and passed to on_error, never swallowed
        on_error(operation, error)
    finally:
        operation.purgatory_is_answered = True
        if operation.purgatory_is_listened_to:  # a flag: reading each operation's list would be a cache miss, 100 ns
            operation.purgatory_tell_listeners()
