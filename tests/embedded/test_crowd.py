"""The embedded purgatory under many threads: each operation is answered once, no wakeup is lost, none hangs.

A thread's actions depend only on its seed; the interleaving of the threads does not. All checks hold for any
interleaving. `CROWD_OPERATIONS=20000 make test ARGS=tests/embedded/test_crowd.py` runs that many operations in each of
the 16 threads.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine import COMPILED
from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryClosed
from tests.engine.generic.recording_operation import (
    Errors,
    RecordingOperation,
    assert_empty,
    never_called,
    run_all,
    threads_of,
)
from tests.kit.eventually import wait_until

STUCK_AFTER_S = 60.0
"""If no thread completes an action for this long, they are deadlocked."""
THREADS = 16
OPERATIONS_EACH = int(os.environ.get("CROWD_OPERATIONS", "700"))
KEYS = tuple(f"key-{number}" for number in range(6))
SHORT_TIMEOUTS_MS = (0, 1, 2, 3, 5)
LONG_TIMEOUT_MS = 3_600_000
WEIGHTS = {"register": 50, "raise_and_check": 30, "cancel": 10, "force": 8, "advance": 4, "check": 3, "cancel_key": 1}
"""Relative frequency of each action of a thread."""


class MarkOperation(RecordingOperation):
    """Waits until each of its keys has reached its threshold. One evaluation may raise."""

    def __init__(self, timeout_ms: int, marks: dict[str, int], thresholds: dict[str, int], raises_at: int) -> None:
        super().__init__(timeout_ms)
        self.thresholds = thresholds
        self.raises_at = raises_at
        self.due_ms = SystemClock().now_ms() + timeout_ms
        self._marks = marks
        self._is_being_evaluated = threading.Lock()

    def holds(self) -> bool:
        return all(self._marks[key] >= threshold for key, threshold in self.thresholds.items())

    def try_complete(self) -> bool:
        assert self._is_being_evaluated.acquire(blocking=False), "two threads evaluate one operation at a time"
        try:
            self.evaluations += 1
            if self.evaluations == self.raises_at:
                raise ArithmeticError("planted")
            return self.holds() and self.force_complete()
        finally:
            self._is_being_evaluated.release()


class Member(threading.Thread):
    """One thread: draws actions, performs them, and counts the purgatory's results."""

    def __init__(self, crowd: Crowd, seed: int) -> None:
        super().__init__(name=f"member-{seed}", daemon=True)
        self.crowd = crowd
        self.rng = random.Random(seed)
        self.done = 0
        self.mine: list[MarkOperation] = []
        self.arriving: MarkOperation | None = None
        """The operation that is about to be registered, or was registered last."""
        self.answered: Counter[str] = Counter()

    def run(self) -> None:
        for action in self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=OPERATIONS_EACH):
            getattr(self, action)()
            self.done += 1

    def register(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.choice([1, 1, 2, 3]))
        marks = self.crowd.marks
        thresholds = {key: marks[key] + self.rng.randint(-1, 6) for key in keys}
        timeout_ms = self.rng.choice(SHORT_TIMEOUTS_MS) if self.rng.random() < 0.3 else LONG_TIMEOUT_MS
        raises_at = self.rng.randint(1, 3) if self.rng.random() < 0.05 else -1
        operation = MarkOperation(timeout_ms, marks, thresholds, raises_at)
        if self.rng.random() < 0.2:
            # An effect that calls the purgatory, on whichever thread ends the operation.
            other_key = KEYS[(KEYS.index(keys[0]) + 1) % len(KEYS)]
            operation.when_completed = lambda: self.crowd.satisfied_in_effects.append(
                self.crowd.purgatory.check_and_complete(other_key)
            )
        self.arriving = operation
        try:
            if self.crowd.purgatory.try_complete_else_watch(operation, keys):
                self.answered["satisfied"] += 1
        except OperationEnded:
            self.answered["ended before"] += 1  # forced or cancelled by another thread before it was registered
        except PurgatoryClosed:
            self.answered["closed"] += 1
            # Another thread may have forced it before, or may do so later: forcing it here settles who was first.
            self.answered["satisfied"] += operation.force_complete()
        self.mine.append(operation)

    def raise_and_check(self) -> None:
        key = self.rng.choice(KEYS)
        self.crowd.raise_mark(key, 1)
        self.check(key)

    def check(self, key: str = "") -> None:
        self.answered["satisfied"] += self.crowd.purgatory.check_and_complete(key or self.rng.choice(KEYS))

    def anyone(self) -> MarkOperation | None:
        """An operation of any thread: ended, pending, or about to be registered."""
        member = self.rng.choice(self.crowd.members)
        if self.rng.random() < 0.5:
            return member.arriving
        return self.rng.choice(member.mine[-20:]) if member.mine else None

    def cancel(self) -> None:
        operation = self.anyone()
        if operation is not None and self.crowd.purgatory.cancel(operation):
            self.answered["cancelled"] += 1

    def cancel_key(self) -> None:
        self.answered["cancelled"] += len(self.crowd.purgatory.cancel_for_key(self.rng.choice(KEYS)))

    def force(self) -> None:
        """Includes operations that are not registered yet, as a future's callback may do."""
        operation = self.anyone()
        if operation is not None and operation.force_complete():
            self.answered["satisfied"] += 1

    def advance(self) -> None:
        self.crowd.purgatory.advance_clock(self.rng.choice([1, 3, 1_000]))


class Crowd:
    """Some threads and the purgatory that they share."""

    def __init__(self) -> None:
        self.marks = dict.fromkeys(KEYS, 0)
        self.errors = Errors()
        self.purgatory = EmbeddedPurgatory("crowd", self.errors)
        self.satisfied_in_effects: list[int] = []
        self._marks_lock = threading.Lock()
        self.members = [Member(self, seed) for seed in range(THREADS)]

    def raise_mark(self, key: str, count: int) -> None:
        with self._marks_lock:
            self.marks[key] += count

    @property
    def operations(self) -> list[MarkOperation]:
        return [operation for member in self.members for operation in member.mine]

    @property
    def done(self) -> int:
        return sum(member.done for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def join(self) -> None:
        """Wait for all threads to finish. pytest reports what they raise."""
        watch(self.members, lambda: self.done)
        assert self.done == THREADS * OPERATIONS_EACH
        planted = {id(operation) for operation in self.operations if 0 < operation.raises_at <= operation.evaluations}
        # A reported operation that was not accepted was ended by the closing purgatory; no thread counts it.
        for operation, error in self.errors.reported:
            assert isinstance(error, ArithmeticError), f"on_error was called with {error!r} by {operation}"
        assert {id(operation) for operation in self.errors.operations} >= planted

    def is_answered(self) -> bool:
        """Whether all effects of ended operations have run, including those on the reaper."""
        return all(operation.answered.is_set() for operation in self.operations if operation.outcome != PENDING)

    def outcomes(self) -> Counter[int]:
        return Counter(operation.outcome for operation in self.operations)

    def check(self) -> None:
        """The results of the calls add up to the outcomes, and each operation was answered once, not early."""
        outcomes = self.outcomes()
        answered = sum((member.answered for member in self.members), Counter[str]())
        assert answered["satisfied"] + sum(self.satisfied_in_effects) == outcomes[SATISFIED]
        assert answered["cancelled"] == outcomes[CANCELLED]
        assert self.purgatory.pending == outcomes[PENDING]
        for operation in self.operations:
            effects = {PENDING: [], EXPIRED: ["complete", "expire"]}.get(operation.outcome, ["complete"])
            assert operation.effects == effects
            assert operation.outcome != EXPIRED or operation.answered_at_ms >= operation.due_ms, "it expired early"


def watch(threads: Sequence[threading.Thread], progress: Callable[[], int]) -> None:
    """Join threads while `progress` grows; fail with all stacks if it does not grow for too long."""
    for thread in threads:
        while thread.is_alive():
            before = progress()
            thread.join(STUCK_AFTER_S)
            assert not thread.is_alive() or progress() > before, f"nothing moves any more:\n{all_stacks()}"


def all_stacks() -> str:
    return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """The interpreter switches threads a hundred times as often as usual."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s / 100)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.slow
def test_case_23_30_32_34_44_95_a_crowd_that_finishes() -> None:
    """No satisfiable wait is left behind threads that register, check, cancel, force and expire on few keys."""
    crowd = Crowd()
    crowd.start()
    crowd.join()
    wait_until(lambda: not any(o.outcome == PENDING and o.timeout_ms != LONG_TIMEOUT_MS for o in crowd.operations))
    wait_until(crowd.is_answered)
    # An operation whose evaluation raised is evaluated again only at the next check: that is its contract, not a lost
    # wakeup.
    waiting = [operation for operation in crowd.operations if operation.outcome == PENDING]
    missed = [operation for operation in waiting if operation.holds() and operation.raises_at != operation.evaluations]
    assert missed == []
    crowd.check()
    for key in KEYS:
        crowd.raise_mark(key, 1_000)
    for key in (*KEYS, *KEYS):  # twice, for those whose first evaluation raises
        crowd.members[0].answered["satisfied"] += crowd.purgatory.check_and_complete(key)
    assert_empty(crowd.purgatory)
    crowd.check()
    assert crowd.purgatory.close() == 0
    assert set(crowd.outcomes()) == {SATISFIED, EXPIRED, CANCELLED}


@pytest.mark.slow
def test_case_22_crowd_that_is_closed_on_is_answered_once() -> None:
    crowd = Crowd()
    crowd.start()
    wait_until(lambda: crowd.done > THREADS * OPERATIONS_EACH // 2)
    shut_down: list[int] = []
    closers = [threading.Thread(target=lambda: shut_down.append(crowd.purgatory.close()), daemon=True) for _ in "ab"]
    for closer in closers:
        closer.start()
    watch(closers, lambda: crowd.done)
    crowd.join()
    assert_empty(crowd.purgatory)
    wait_until(crowd.is_answered)
    crowd.check()
    outcomes = crowd.outcomes()
    assert outcomes[PENDING] == 0
    assert outcomes[SHUTTING_DOWN] == sum(shut_down)
    assert sum(member.answered["closed"] for member in crowd.members) > 0
    assert threads_of("crowd") == []


@pytest.mark.skipif(COMPILED, reason="compiled, force_complete runs in one step that no other thread gets into")
@pytest.mark.parametrize("others_force_too", [False, True])
def test_operation_forced_while_another_thread_registers_it_ends_once(others_force_too: bool) -> None:
    for step in itertools.count(1):
        with EmbeddedPurgatory("forced", never_called, reaper_enabled=False) as purgatory:
            operation = RecordingOperation()

            def intrude(purgatory: EmbeddedPurgatory = purgatory, operation: RecordingOperation = operation) -> None:
                with suppress(OperationEnded):
                    purgatory.try_complete_else_watch(operation, ["k"])
                if others_force_too:
                    operation.force_complete()

            was_reached = run_with_intruder(operation.force_complete, step, intrude)
            assert operation.outcome == SATISFIED
            assert operation.effects == ["complete"], f"step {step}"
            assert_empty(purgatory)
        if not was_reached:
            assert step > 3, "force_complete was not stepped through"
            return


def run_with_intruder(call: Callable[[], object], step: int, intrude: Callable[[], None]) -> bool:
    """Run a call; at its `step`-th line, run `intrude` on another thread. Returns whether that line was reached."""
    lines = itertools.count(1)
    reached: list[int] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401 - the signature that the interpreter calls
        if frame.f_code.co_name != "force_complete" or not frame.f_code.co_filename.endswith("operation.py"):
            return None
        if event == "line" and next(lines) == step:
            reached.append(step)
            run_all(intrude)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return bool(reached)
