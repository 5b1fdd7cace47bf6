"""A common interface for the classes with a thread that advances time: embedded purgatory and system timer."""

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.threads import ClockThread
from purgatory.timer import SystemTimer, TimerTask
from tests.engine.generic.recording_operation import RecordingOperation

Owner = EmbeddedPurgatory | SystemTimer
both_owners = pytest.mark.parametrize("kind", [EmbeddedPurgatory, SystemTimer], ids=["purgatory", "timer"])


class Signal(TimerTask):
    """A task that records when and where it ran, with the attributes of RecordingOperation."""

    def __init__(self, delay_ms: int, then: Callable[[], object] | None = None) -> None:
        super().__init__(delay_ms)
        self.answered = threading.Event()
        self.answered_on = ""
        self.answered_at_ms = -1
        self.when_completed = then

    def run(self) -> None:
        self.answered_on = threading.current_thread().name
        self.answered_at_ms = SystemClock().now_ms()
        try:
            if self.when_completed is not None:
                self.when_completed()
        finally:
            self.answered.set()


def add(owner: Owner, delay_ms: int, then: Callable[[], object] | None = None) -> RecordingOperation | Signal:
    """Add an operation or task that the owner's thread ends after a delay."""
    if isinstance(owner, SystemTimer):
        task = Signal(delay_ms, then)
        owner.add(task)
        return task
    operation = RecordingOperation(delay_ms)
    operation.when_completed = then
    owner.try_complete_else_watch(operation, ["k"])
    return operation


def cancel(owner: Owner, one: RecordingOperation | Signal) -> bool:
    return one.cancel() if isinstance(one, Signal) else isinstance(owner, EmbeddedPurgatory) and owner.cancel(one)


def thread_of(owner: Owner) -> ClockThread:
    thread = owner._thread if isinstance(owner, SystemTimer) else owner._reaper
    assert thread is not None
    return thread


def run_forking(script: str, *arguments: str) -> None:
    """Run a script that forks in a separate process; it must exit with 0 and print nothing."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stderr) == (0, "")
