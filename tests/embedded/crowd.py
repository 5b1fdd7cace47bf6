"""A crowd of threads at one embedded purgatory: what each draws and does, what is counted, and a watchdog over them.

What a thread draws depends on its seed alone; how the threads interleave does not. All demands hold however they do.
"""

from __future__ import annotations

import faulthandler
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED
from purgatory.engine.errors import OperationEnded, PurgatoryClosed
from tests.engine.generic.recording_operation import Errors, RecordingOperation

STUCK_AFTER_S = 60.0
"""So long without a single operation done by anyone means that they wait for each other."""
KEYS = tuple(f"key-{number}" for number in range(6))
SHORT_TIMEOUTS_MS = (0, 1, 2, 3, 5)
LONG_TIMEOUT_MS = 3_600_000


class MarkOperation(RecordingOperation):
    """Waits until every one of its keys has reached its threshold. One evaluation may raise."""

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
    """One thread of the crowd: draws what to do, does it, and counts what the purgatory answered."""

    def __init__(self, crowd: Crowd, seed: int, operations_max: int) -> None:
        super().__init__(name=f"member-{seed}", daemon=True)
        self.crowd = crowd
        self.rng = random.Random(seed)
        self.operations_max = operations_max
        self.done = 0
        self.mine: list[MarkOperation] = []
        self.arriving: MarkOperation | None = None
        """The operation that is about to be registered, or was last."""
        self.answered: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        weights = {
            self.register: 50,
            self.raise_and_check: 30,
            self.cancel: 10,
            self.force: 8,
            self.advance: 4,
            self.check_only: 3,
            self.cancel_key: 1,
        }
        try:
            for _ in range(self.operations_max):
                self.rng.choices(list(weights), list(weights.values()))[0]()
                self.done += 1
        except BaseException as error:
            self.error = error
            raise

    def register(self) -> None:
        keys = self.rng.sample(KEYS, self.rng.choice([1, 1, 2, 3]))
        marks = self.crowd.marks
        thresholds = {key: marks[key] + self.rng.randint(-1, 6) for key in keys}
        timeout_ms = self.rng.choice(SHORT_TIMEOUTS_MS) if self.rng.random() < 0.3 else LONG_TIMEOUT_MS
        raises_at = self.rng.randint(1, 3) if self.rng.random() < 0.05 else -1
        operation = MarkOperation(timeout_ms, marks, thresholds, raises_at)
        if self.rng.random() < 0.2:
            # An effect that calls back in, on whatever thread ends the operation.
            other_key = KEYS[(KEYS.index(keys[0]) + 1) % len(KEYS)]
            operation.when_completed = lambda: self.crowd.satisfied_in_effects.append(
                self.crowd.purgatory.check_and_complete(other_key)
            )
        self.arriving = operation
        try:
            if self.crowd.purgatory.try_complete_else_watch(operation, keys):
                self.answered["satisfied"] += 1
        except OperationEnded:
            self.answered["ended before"] += 1  # somebody forced or cancelled it while it was about to be registered
        except PurgatoryClosed:
            self.answered["closed"] += 1
            # Somebody may have forced it before that, or do so later: settled here, whoever is first.
            self.answered["satisfied"] += operation.force_complete()
        self.mine.append(operation)

    def raise_and_check(self) -> None:
        key = self.rng.choice(KEYS)
        self.crowd.raise_mark(key, 1)
        self.answered["satisfied"] += self.crowd.purgatory.check_and_complete(key)

    def check_only(self) -> None:
        self.answered["satisfied"] += self.crowd.purgatory.check_and_complete(self.rng.choice(KEYS))

    def anyone(self) -> MarkOperation | None:
        """An operation of any thread: ended, pending, or only about to be registered."""
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
        """Also what is not registered yet, as a future's callback may do."""
        operation = self.anyone()
        if operation is not None and operation.force_complete():
            self.answered["satisfied"] += 1

    def advance(self) -> None:
        self.crowd.purgatory.advance_clock(self.rng.choice([1, 3, 1_000]))


class Crowd:
    """Some threads and the purgatory between them."""

    def __init__(self, seed: int, threads: int, operations_each: int) -> None:
        self.marks = dict.fromkeys(KEYS, 0)
        self.errors = Errors()
        self.purgatory = EmbeddedPurgatory("crowd", self.errors)
        self.satisfied_in_effects: list[int] = []
        self._marks_lock = threading.Lock()
        self.members = [Member(self, seed * 1_000 + number, operations_each) for number in range(threads)]

    def raise_mark(self, key: str, count: int) -> None:
        with self._marks_lock:
            self.marks[key] += count

    @property
    def operations(self) -> list[MarkOperation]:
        """Every operation that was ever accepted."""
        return [operation for member in self.members for operation in member.mine]

    @property
    def done(self) -> int:
        """How much has been done so far, by all."""
        return sum(member.done for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def join(self) -> None:
        """Returns when all have done all they had to; fails with every stack when nobody does anything any more."""
        watch(self.members, lambda: self.done)
        for member in self.members:
            assert member.error is None, f"{member.name} failed: {member.error!r}"
        planted = {id(operation) for operation in self.operations if 0 < operation.raises_at <= operation.evaluations}
        # One that is reported and was not accepted was ended by the closing purgatory; it is nobody's.
        for operation, error in self.errors.reported:
            assert isinstance(error, ArithmeticError), f"on_error was called with {error!r} by {operation}"
        assert {id(operation) for operation in self.errors.operations} >= planted

    def is_answered(self) -> bool:
        """Whether all effects of what has ended have run, the reaper's too."""
        return all(operation.answered.is_set() for operation in self.operations if operation.outcome != PENDING)

    def outcomes(self) -> Counter[int]:
        """How all have ended so far."""
        return Counter(operation.outcome for operation in self.operations)

    def demand_counts(self) -> None:
        """What the calls answered is what has happened."""
        outcomes = self.outcomes()
        answered = sum((member.answered for member in self.members), Counter[str]())
        assert answered["satisfied"] + sum(self.satisfied_in_effects) == outcomes[SATISFIED]
        assert answered["cancelled"] == outcomes[CANCELLED]
        assert self.purgatory.pending == outcomes[PENDING]

    def demand_answers(self) -> None:
        """Everyone who ended was answered once, those that expired once more and never early, the others not at all."""
        for operation in self.operations:
            effects = {PENDING: [], EXPIRED: ["complete", "expire"]}.get(operation.outcome, ["complete"])
            assert operation.effects == effects
            assert operation.outcome != EXPIRED or operation.answered_at_ms >= operation.due_ms, "it expired early"


def watch(threads: Sequence[threading.Thread], progress: Callable[[], int]) -> None:
    """Joins threads as long as `progress` grows; fails with the stacks of all when it stands still for too long."""
    seen, since = progress(), time.monotonic()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(0.01)
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > STUCK_AFTER_S:
            raise AssertionError(f"nothing moves any more after {seen} steps:\n{all_stacks()}")


def all_stacks() -> str:
    """The stacks of every thread, as faulthandler writes them."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
