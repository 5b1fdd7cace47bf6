"""Random histories of a purgatory compared with a model: cases 24 to 46 and 98 of docs/semantics.md.

After every step, the model predicts the state of each operation, its number of evaluations, the errors reported to
`on_error`, and what is watched, timed and counted.
"""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryClosed, PurgatoryFull
from tests.engine.generic.recording_operation import Errors, ManualPurgatory, RecordingOperation, assert_empty, fail

NEVER = 1_000_000
KEYS = "abcd"
Step = tuple[Any, ...]


class ModelledOperation(RecordingOperation):
    """Its condition holds from evaluation number `holds_from` on. The other attributes belong to the model."""

    def __init__(self, keys: str, timeout_ms: int | None, holds_from: int, fails: str) -> None:
        super().__init__(timeout_ms)
        self.keys = list(dict.fromkeys(keys))
        self.holds_from = holds_from
        self.fails = fails
        self.is_registered = False
        self.deadline_ms: int | None = None
        self.expected_outcome = PENDING
        self.expected_effects: list[str] = []
        self.expected_evaluations = 0
        if fails == "check":
            self.when_evaluated = fail
        if fails == "complete":
            self.when_completed = fail

    def try_complete(self) -> bool:
        self.is_met = self.evaluations + 1 >= self.holds_from
        return super().try_complete()


class ModelledPurgatory:
    """A purgatory, and a list of all its operations as the model. Each step is applied to both."""

    def __init__(self, timer_enabled: bool = True, pending_max: int | None = None) -> None:
        self.errors = Errors()
        self.timer_enabled, self.pending_max = timer_enabled, pending_max
        self.purgatory = ManualPurgatory(self.errors, timer_enabled=timer_enabled, pending_max=pending_max)
        self.operations: list[ModelledOperation] = []
        self.expected_errors: list[ModelledOperation] = []
        self.failing_effects: list[ModelledOperation] = []
        self.pending_most = 0
        self.is_closed = False

    @property
    def pending(self) -> list[ModelledOperation]:
        return [one for one in self.operations if one.is_registered and one.expected_outcome == PENDING]

    def watching(self, key: str) -> list[ModelledOperation]:
        return [one for one in self.pending if key in one.keys]

    def make(self, keys: str, timeout_ms: int | None = 60_000, holds_from: int = NEVER, fails: str = "") -> None:
        self.operations.append(ModelledOperation(keys, timeout_ms, holds_from, fails))

    def register(self, keys: str, *arguments: Any) -> None:  # noqa: ANN401 - as for `make`
        self.make(keys, *arguments)
        self.submit(-1)

    def submit(self, number: int) -> None:
        """Register an operation; it may already be registered or have ended."""
        operation = self.one(number)
        refusal: type[Exception] | None = None
        if self.is_closed:
            refusal = PurgatoryClosed
        elif operation.expected_outcome != PENDING:
            refusal = OperationEnded
        elif operation.is_registered:
            refusal = ValueError
        if refusal is not None:
            with pytest.raises(refusal):
                self.purgatory.try_complete_else_watch(operation, operation.keys)
            return
        # Registered again, it is last in the order of registration, which is the order on every key.
        self.operations.remove(operation)
        self.operations.append(operation)
        is_full = self.pending_max is not None and len(self.pending) >= self.pending_max
        operation.is_registered = True
        if operation.timeout_ms is not None and self.timer_enabled:
            operation.deadline_ms = min(self.purgatory.clock.now_ms() + min(operation.timeout_ms, 2**62), 2**62)
        completed = self.evaluate(operation)
        if is_full and not completed:
            operation.is_registered = False
            with pytest.raises(PurgatoryFull, match=f"{self.pending_max} operations are pending"):
                self.purgatory.try_complete_else_watch(operation, operation.keys)
            return
        completed = completed or self.evaluate(operation)
        assert self.purgatory.try_complete_else_watch(operation, operation.keys * 2) == completed

    def meet(self, number: int) -> None:
        self.one(number).holds_from = 0

    def check(self, key: str) -> None:
        watching = self.watching(key)
        assert self.purgatory.check_and_complete(key) == sum([self.evaluate(operation) for operation in watching])

    def force(self, number: int) -> None:
        operation = self.one(number)
        if not operation.is_registered and operation.expected_outcome == PENDING and operation.fails == "complete":
            # Not registered, so exceptions of its effects propagate to the caller.
            with pytest.raises(ArithmeticError):
                operation.force_complete()
            self.end(operation, SATISFIED)
            self.failing_effects.clear()
        else:
            assert operation.force_complete() == self.end(operation, SATISFIED)

    def cancel(self, number: int) -> None:
        operation = self.one(number)
        assert self.purgatory.cancel(operation) == self.end(operation, CANCELLED)

    def cancel_key(self, key: str) -> None:
        watching = self.watching(key)
        assert self.purgatory.cancel_for_key(key) == watching
        for operation in watching:
            self.end(operation, CANCELLED)

    def force_key(self, key: str) -> None:
        watching = self.watching(key)
        assert self.purgatory.force_complete_for_key(key) == watching
        for operation in watching:
            self.end(operation, SATISFIED)

    def advance(self, ms: int, limit: int = 1_000) -> None:
        """Operations that were due at their registration come first, then the others by deadline."""
        now_ms = self.purgatory.clock.jump(ms)
        due = [one for one in self.pending if one.deadline_ms is not None and one.deadline_ms <= now_ms]
        due.sort(key=lambda one: one.deadline_ms or 0 if (one.timeout_ms or 0) > 0 else 0)
        assert self.purgatory.advance_clock(limit) == len(due[:limit])
        for operation in due[:limit]:
            self.end(operation, EXPIRED)

    def close(self) -> None:
        pending = self.pending
        assert self.purgatory.close() == len(pending)
        self.is_closed = True
        for operation in pending:
            self.end(operation, SHUTTING_DOWN)

    def one(self, number: int) -> ModelledOperation:
        return self.operations[number % len(self.operations)]

    def evaluate(self, operation: ModelledOperation) -> bool:
        operation.expected_evaluations += 1
        if operation.fails == "check":
            self.expected_errors.append(operation)
            return False
        return operation.expected_evaluations >= operation.holds_from and self.end(operation, SATISFIED)

    def end(self, operation: ModelledOperation, outcome: int) -> bool:
        if operation.expected_outcome != PENDING:
            return False
        operation.expected_outcome = outcome
        operation.expected_effects = ["complete"]
        if operation.fails == "complete":
            self.failing_effects.append(operation)
        elif outcome == EXPIRED:
            operation.expected_effects.append("expire")
        return True

    def take(self, step: Step) -> None:
        """Apply a step and compare all visible state."""
        name, *arguments = step
        getattr(self, name)(*arguments)
        self.expected_errors += self.failing_effects  # effects run after all evaluations of the same call
        self.failing_effects.clear()
        purgatory, pending = self.purgatory, self.pending
        self.pending_most = max(self.pending_most, len(pending))
        for one in self.operations:
            assert (one.outcome, one.effects) == (one.expected_outcome, one.expected_effects)
            assert one.evaluations == one.expected_evaluations
            assert purgatory.is_registered(one) == (one in pending)
        assert sorted(map(id, self.errors.operations)) == sorted(map(id, self.expected_errors))
        watched = {key: self.watching(key) for key in dict.fromkeys(key for one in pending for key in one.keys)}
        watchers = {key: list(by_slot.values()) for key, by_slot in purgatory.core._watchers.items()}
        assert watchers == watched
        assert (purgatory.pending, purgatory.key_count) == (len(pending), len(watched))
        assert purgatory.watched == sum(len(one.keys) for one in pending)
        assert len(purgatory.core._operations) <= self.pending_most + 1, "slots are used again"
        deadlines_ms = [one.deadline_ms for one in pending if one.deadline_ms is not None]
        assert purgatory.num_delayed == len(deadlines_ms)
        next_ms = purgatory.next_expiration_ms()
        assert 0 <= next_ms <= max(min(deadlines_ms), purgatory.clock.now_ms()) if deadlines_ms else next_ms == -1


def play(modelled: ModelledPurgatory, steps: list[Step]) -> None:
    for step in (*steps, ("close",), ("register", "a"), ("cancel", -1), ("close",)):
        if modelled.operations or step[0] not in {"submit", "meet", "force", "cancel"}:
            modelled.take(step)
    assert_empty(modelled.purgatory)


@pytest.mark.parametrize("timeout_ms", [-(10**30), 2**62, sys.maxsize, 2**63, 10**30, np.int64(2**62)])
def test_timeout_of_any_size_never_overflows(timeout_ms: int) -> None:
    play(ModelledPurgatory(), [("register", "a", timeout_ms), ("advance", 2**61), ("cancel", 0)])


NUMBERS = st.integers(0, 100)
NEW_OPERATIONS = st.tuples(
    st.sampled_from(["make", "register", "register"]),
    st.text(KEYS, min_size=1, max_size=5),
    st.none() | st.integers(-5, 60),
    st.sampled_from([1, 2, 3, NEVER, NEVER, NEVER]),
    st.sampled_from(["", "", "", "check", "complete"]),
)
STEPS = st.one_of(
    NEW_OPERATIONS,
    st.tuples(st.sampled_from(["submit", "meet", "force", "cancel"]), NUMBERS),
    st.tuples(st.sampled_from(["check", "check", "cancel_key", "force_key"]), st.sampled_from(KEYS)),
    st.tuples(st.just("advance"), st.integers(0, 30), st.sampled_from([1, 3, 1_000])),
)


@given(st.booleans(), st.sampled_from([None, None, 1, 3]), st.lists(STEPS, max_size=60))
def test_any_history_against_a_model(timer_enabled: bool, pending_max: int | None, steps: list[Step]) -> None:
    """After any history, pending operations are found, ended ones were answered once, and counters are right."""
    play(ModelledPurgatory(timer_enabled, pending_max), steps)
