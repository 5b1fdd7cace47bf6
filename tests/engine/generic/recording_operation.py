"""What tests of the generic purgatory register: an operation with a settable condition that records its hooks."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from purgatory.clock import SystemClock
from purgatory.engine.codes import EXPIRED
from purgatory.engine.generic.operation import GenericOperation

DEADLINE_S = 20.0
"""Beyond any hiccup of a busy machine; no test waits for it unless it fails."""


class RecordingOperation(GenericOperation):
    """Completes when `is_met`; counts its evaluations and records its effects in order."""

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

    def try_complete(self) -> bool:
        self.evaluations += 1
        if self.when_evaluated is not None:
            self.when_evaluated()
        return self.force_complete() if self.is_met else False

    def on_complete(self) -> None:
        assert self.is_completed
        self.effects.append("complete")
        self.log.append(self.name)
        if self.when_completed is not None:
            self.when_completed()

    def on_expiration(self) -> None:
        self.effects.append("expire")
        if self.when_expired is not None:
            self.when_expired()


class Errors:
    """What `on_error` was told, in order; an instance is the callback."""

    def __init__(self) -> None:
        self.told: list[tuple[GenericOperation, Exception]] = []

    def __call__(self, operation: GenericOperation, error: Exception) -> None:
        self.told.append((operation, error))


def fail(message: str = "planted") -> NoReturn:
    raise ArithmeticError(message)


def never_told(operation: GenericOperation, error: Exception) -> None:
    raise AssertionError(f"on_error was told of {error!r}") from error


class SignallingOperation(RecordingOperation):
    """Sets an event when its effects have all run."""

    def __init__(self, timeout_ms: int | None = 60_000, name: str = "", log: list[str] | None = None) -> None:
        super().__init__(timeout_ms, name, log)
        self.answered = threading.Event()
        self.answered_on = ""
        self.answered_at_ms = 0

    def on_complete(self) -> None:
        self.answered_on = threading.current_thread().name
        self.answered_at_ms = SystemClock().now_ms()
        super().on_complete()
        if self.outcome != EXPIRED:
            self.answered.set()

    def on_expiration(self) -> None:
        super().on_expiration()
        self.answered.set()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.001)


def run_all(*bodies: Callable[[], object]) -> None:
    """Run each body on a thread of its own, started together; raise what any of them raised."""
    barrier = threading.Barrier(len(bodies))

    def body_after_barrier(body: Callable[[], object]) -> object:
        barrier.wait(DEADLINE_S)
        return body()

    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body_after_barrier, body) for body in bodies]:
            future.result(DEADLINE_S)
