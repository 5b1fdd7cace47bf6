"""Shared by tests of the generic purgatory: an operation that records its hooks, and a purgatory on a manual clock."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from purgatory.clock import SystemClock
from purgatory.embedded import DelayedOperation, EmbeddedPurgatory
from purgatory.engine.codes import EXPIRED
from purgatory.engine.generic.operation import GenericOperation, OnError
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from purgatory.testing import ManualClock

DEADLINE_S = 60.0
"""Longer than any delay on a busy machine; only failing tests wait for it."""


class RecordingOperation(DelayedOperation):
    """Completes once `is_met` is set; counts its evaluations and records its effects in order."""

    def __init__(self, timeout_ms: int | None = 60_000, name: str = "", log: list[str] | None = None) -> None:
        super().__init__(timeout_ms)
        self.name = name
        self.is_met = False
        self.evaluations = 0
        self.effects: list[str] = []
        self.log: list[str] = [] if log is None else log
        self.when_evaluated: Callable[[], object] | None = None
        self.when_completed: Callable[[], object] | None = None
        self.when_expired: Callable[[], object] | None = None
        self.answered = threading.Event()
        """Set when all effects have run and none of them raised."""
        self.answered_on = ""
        self.answered_at_ms = 0

    def try_complete(self) -> bool:
        self.evaluations += 1
        if self.when_evaluated is not None:
            self.when_evaluated()
        return self.force_complete() if self.is_met else False

    def on_complete(self) -> None:
        assert self.is_completed
        self.answered_on = threading.current_thread().name
        self.answered_at_ms = SystemClock().now_ms()
        self.effects.append("complete")
        self.log.append(self.name)
        if self.when_completed is not None:
            self.when_completed()
        if self.outcome != EXPIRED:
            self.answered.set()

    def on_expiration(self) -> None:
        self.effects.append("expire")
        if self.when_expired is not None:
            self.when_expired()
        self.answered.set()


class Gate:
    """A hook that blocks every thread that calls it until it is opened."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()

    def __call__(self) -> None:
        self.is_reached.set()
        assert self.is_open.wait(DEADLINE_S)

    def wait_until_reached(self) -> None:
        assert self.is_reached.wait(DEADLINE_S)


class Errors:
    """The errors reported to `on_error`, in order; an instance is the callback."""

    def __init__(self) -> None:
        self.reported: list[tuple[GenericOperation, Exception]] = []

    def __call__(self, operation: GenericOperation, error: Exception) -> None:
        self.reported.append((operation, error))

    @property
    def operations(self) -> list[GenericOperation]:
        return [operation for operation, _ in self.reported]


def fail(message: str = "planted") -> NoReturn:
    raise ArithmeticError(message)


def never_called(operation: GenericOperation, error: Exception) -> None:
    raise AssertionError(f"on_error was called with {error!r}") from error


class FineClock(ManualClock):
    """A clock that is a fraction past its millisecond."""

    def ceiling_ms(self) -> int:
        return self.now_ms() + 1


class ManualPurgatory(EmbeddedPurgatory):
    """An embedded purgatory without a reaper, on a clock that the test moves."""

    def __init__(self, on_error: OnError = never_called, **settings: Any) -> None:  # noqa: ANN401 - some are wrong
        self.clock = ManualClock(1_000)
        super().__init__("manual", on_error, clock=self.clock, reaper_enabled=False, **settings)

    @property
    def core(self) -> DelayedOperationPurgatory:
        return self._core


def register(
    purgatory: EmbeddedPurgatory, *keys: str, count: int = 1, timeout_ms: int | None = 60_000
) -> list[RecordingOperation]:
    """Register `count` operations that are watched on the keys."""
    operations = [RecordingOperation(timeout_ms) for _ in range(count)]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, keys)
    return operations


def assert_empty(purgatory: EmbeddedPurgatory) -> None:
    assert purgatory.watched == purgatory.num_delayed == purgatory.pending == purgatory.key_count == 0
    assert purgatory.next_expiration_ms() == -1


def run_all(*bodies: Callable[[], object]) -> None:
    """Run each body on its own thread, started together; raise the first exception."""
    barrier = threading.Barrier(len(bodies))

    def body_after_barrier(body: Callable[[], object]) -> object:
        barrier.wait(DEADLINE_S)
        return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body_after_barrier, body) for body in bodies]:
            future.result(DEADLINE_S)


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if f"-{name}" in thread.name]
