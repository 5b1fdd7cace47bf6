"""A user's own delayed operation, and the queue in which the effects of ended ones wait for their turn.

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

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from mypy_extensions import mypyc_attr

from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation:
    """One waiting request; subclass it. `timeout_ms` may be 0 or negative: it then expires at the next `advance_clock`.

    `outcome` is PENDING, or how it ended: SATISFIED, EXPIRED, CANCELLED, SHUTTING_DOWN. It is set before `on_complete`
    runs, which can read it. The attributes named `purgatory_…` belong to the purgatory.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms: Final = timeout_ms
        self.outcome = PENDING
        self.purgatory_ticket: Final[list[None]] = [None]
        """Whoever takes it ends the operation: taking the last element of a list is one step for all threads."""
        self.purgatory_slot = -1
        self.purgatory_keys: list[Hashable] = []
        self.purgatory_claim: Callable[[DelayedOperation], bool] | None = None

    def try_complete(self) -> bool:
        """Test the condition. Met: `return self.force_complete()`; else False.

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
        if not self.purgatory_take_ticket():
            return False
        self.outcome = SATISFIED
        registered_meanwhile = self.purgatory_claim
        if registered_meanwhile is not None:
            registered_meanwhile(self)
        self.on_complete()
        return True

    def purgatory_take_ticket(self) -> bool:
        """Whether the caller is the one who ends the operation."""
        try:
            self.purgatory_ticket.pop()
        except IndexError:
            return False
        return True


OnError = Callable[[DelayedOperation, Exception], None]
"""Told of each exception that a hook of an operation raised: (operation, exception). It should not raise."""


def run_effects(operation: DelayedOperation, on_error: OnError) -> None:
    """Run what follows the end of a claimed operation; what it raises goes to `on_error` and stops nobody else."""
    try:
        operation.on_complete()
        if operation.outcome == EXPIRED:
            operation.on_expiration()
    except Exception as error:  # noqa: BLE001 - contained and handed on, never swallowed
        on_error(operation, error)


class ActionQueue:
    """Ended operations whose effects have yet to run, oldest first. May be shared by several purgatories."""

    def __init__(self) -> None:
        self._operations: Final[deque[DelayedOperation]] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: DelayedOperation) -> None:
        """Queue the effects of a claimed operation."""
        self._operations.append(operation)

    def drain(self, on_error: OnError) -> int:
        """Run the effects that are queued now; those added meanwhile wait for the next drain. Return how many ran."""
        count = len(self._operations)
        for _ in range(count):
            run_effects(self._operations.popleft(), on_error)
        return count

    def take_all(self) -> list[DelayedOperation]:
        """Empty the queue: the caller runs the effects."""
        operations = list(self._operations)
        self._operations.clear()
        return operations
