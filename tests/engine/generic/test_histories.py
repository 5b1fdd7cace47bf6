"""Histories of a purgatory compared with a model: the numbered cases of docs/semantics.md, and random ones.

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
from purgatory.engine.errors import OperationEnded, PurgatoryClosed
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

    def __init__(self) -> None:
        self.errors = Errors()
        self.purgatory = ManualPurgatory(self.errors)
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
        """Create an operation without registering it."""
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
        operation.is_registered = True
        if operation.timeout_ms is not None:
            operation.deadline_ms = min(self.purgatory.clock.now_ms() + min(operation.timeout_ms, 2**62), 2**62)
        completed = self.purgatory.try_complete_else_watch(operation, operation.keys * 2)
        assert completed == (self.evaluate(operation) or self.evaluate(operation))

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

    def advance(self, ms: int) -> None:
        now_ms = self.purgatory.clock.jump(ms)
        due = [one for one in self.pending if one.deadline_ms is not None and one.deadline_ms <= now_ms]
        assert self.purgatory.advance_clock() == len(due)
        for operation in sorted(due, key=lambda one: max(one.deadline_ms or 0, now_ms - ms)):
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
        """Predict the result of an evaluation."""
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


def play(steps: list[Step]) -> None:
    modelled = ModelledPurgatory()
    for step in (*steps, ("close",), ("register", "a"), ("cancel", -1), ("close",)):
        if modelled.operations or step[0] not in {"submit", "meet", "force", "cancel"}:
            modelled.take(step)
    assert_empty(modelled.purgatory)


CASES: dict[str, list[Step]] = {
    "24 completed at registration": [("register", "a", 60_000, 1)],
    "26 the condition turns true while registering": [("register", "abc", 60_000, 2)],
    "27 a key that nobody watches": [("check", "a")],
    "28 two keys": [("register", "ab"), ("meet", 0), ("check", "a"), ("check", "b")],
    "29 completed directly": [
        *(("register", keys) for keys in ("a", "ab", "abc")),
        *[("force", 1), ("force", 2), ("force", 2)],
        *[("check", "a"), ("check", "b"), ("check", "c")],
    ],
    "31 completed by the timer": [("register", "a"), ("register", "a", 20), ("advance", 19), ("advance", 1)],
    "32 the event before the expiry": [("register", "a", 20), ("meet", 0), ("check", "a"), ("advance", 20)],
    "32 the expiry before the event": [("register", "a", 20), ("meet", 0), ("advance", 20), ("check", "a")],
    "35 no expiry after completion": [("register", "a", 20), ("force", 0), ("advance", 1_000)],
    "36 cancelled by key": [
        *[("register", "ab", 20), ("register", "b"), ("cancel_key", "a")],
        *[("meet", 0), ("check", "b"), ("advance", 1_000)],
    ],
    "37 cancelled by a key that nobody watches": [("cancel_key", "a")],
    "38 nothing to purge": [("register", "ab")] * 4 + [("meet", 0), ("check", "a"), ("meet", 2), ("check", "a")],
    "40 duplicate keys": [("register", "aa"), ("meet", 0), ("check", "a")],
    "42 try_complete raises": [
        *[("register", "a", 60_000, NEVER, "check"), ("register", "a"), ("meet", 1)],
        *[("check", "a"), ("advance", 60_000)],
    ],
    "42 try_complete raises at registration": [("register", "a", 5, NEVER, "check"), ("advance", 5)],
    "43 on_complete raises": [
        *[("register", "a", 20, NEVER, "complete"), ("register", "a", 20), ("meet", 0), ("meet", 1)],
        *[("check", "a"), ("advance", 100)],
    ],
    "43 on_complete raises at expiry": [
        *[("register", "a", 20, NEVER, "complete"), ("register", "a", 20), ("advance", 20)]
    ],
    "46 no time to wait": [("register", "a", 0), ("register", "b", -5), ("advance", 0)],
    "46 due at once and completed before": [("register", "a", 0), ("force", 0), ("advance", 10)],
    "98 heartbeats": [("register", "a", 30), ("meet", -1), ("check", "a"), ("advance", 1)] * 50,
    "forced by key": [
        *[("register", "ab"), ("register", "b"), ("register", "a"), ("force_key", "a"), ("force_key", "a")]
    ],
    "cancelled once": [("register", "a"), ("cancel", 0), ("cancel", 0)],
    "cancelled before registration": [("make", "a"), ("cancel", 0), ("submit", 0)],
    "forced before registration": [("make", "a"), ("force", 0), ("force", 0), ("cancel", 0), ("submit", 0)],
    "registered twice": [("register", "a"), ("submit", 0), ("force", 0), ("submit", 0)],
    "never expires": [("register", "a", None), ("advance", 2**61), ("meet", 0), ("check", "a")],
    "long overdue": [("register", "a", -(10**30)), ("advance", 0)],
    **{
        f"a timeout of {timeout_ms:.3g} ms": [("register", "a", timeout_ms), ("advance", 2**61), ("cancel", 0)]
        for timeout_ms in (2**62, sys.maxsize, 2**63, 10**30, np.int64(2**62))
    },
}


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES)
def test_case(steps: list[Step]) -> None:
    """The numbered cases of docs/semantics.md, and our additional guarantees."""
    play(steps)


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
    st.tuples(st.just("advance"), st.integers(0, 30)),
)


@given(steps=st.lists(STEPS, max_size=60))
def test_any_history_against_a_model(steps: list[Step]) -> None:
    """After any history, pending operations are found, ended ones were answered once, and counters are right."""
    play(steps)
