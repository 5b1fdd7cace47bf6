"""The embedded purgatory's reaper, its close, and what it does when hooks misbehave."""

import logging
import threading

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import CANCELLED, SHUTTING_DOWN
from purgatory.engine.errors import ReentrantCall
from purgatory.engine.generic.operation import GenericOperation
from purgatory.testing import ManualClock
from tests.embedded.test_threads import assert_empty, reaper_threads
from tests.engine.generic.recording_operation import (
    DEADLINE_S,
    Errors,
    RecordingOperation,
    SignallingOperation,
    fail,
    never_told,
    run_all,
    wait_until,
)


def test_lesson_13_a_quiet_system_still_fires(purgatory: EmbeddedPurgatory) -> None:
    """After any cancel and re-registration the reaper is armed for the next expiration, and fires it unprompted."""
    reaper = purgatory._reaper
    assert reaper is not None
    for timeout_ms in (60_000, 30_000, 90_000):
        cancelled = RecordingOperation(timeout_ms)
        purgatory.try_complete_else_watch(cancelled, ["k"])
        wait_until(lambda: 0 <= reaper.armed_ms <= purgatory.next_expiration_ms())
        purgatory.cancel(cancelled)
    operation = SignallingOperation(10)
    purgatory.try_complete_else_watch(operation, ["k"])
    assert operation.answered.wait(DEADLINE_S)
    wait_until(lambda: reaper.armed_ms == -1)
    again = SignallingOperation(10)
    purgatory.try_complete_else_watch(again, ["k"])
    assert again.answered.wait(DEADLINE_S)


def test_lesson_14_wake_ups_are_not_lost(purgatory: EmbeddedPurgatory) -> None:
    """Short registrations, cancels and forced completions in quick succession: every one left alone still expires."""
    left_alone = []
    for number in range(300):
        operation = SignallingOperation(number % 4)
        purgatory.try_complete_else_watch(operation, ["k"])
        if number % 3 == 0:
            purgatory.cancel(operation)
        elif number % 3 == 1:
            operation.force_complete()
        else:
            left_alone.append(operation)
    assert all(operation.answered.wait(DEADLINE_S) for operation in left_alone)


def test_an_idle_reaper_does_not_turn(purgatory: EmbeddedPurgatory) -> None:
    """With nothing pending, or everything far away, the reaper sleeps: its clock is not read again."""
    reads = 0

    class CountingClock(SystemClock):
        def now_ms(self) -> int:
            nonlocal reads
            reads += 1
            return super().now_ms()

    with EmbeddedPurgatory("idle", never_told, clock=CountingClock()) as idle:
        reaper = idle._reaper
        assert reaper is not None
        idle.try_complete_else_watch(RecordingOperation(10**9), ["k"])
        wait_until(lambda: reaper.armed_ms > 0)
        # A whole life of another operation elsewhere passes meanwhile.
        before = reads
        other = SignallingOperation(30)
        purgatory.try_complete_else_watch(other, ["k"])
        assert other.answered.wait(DEADLINE_S)
        assert reads <= before + 1


@pytest.mark.parametrize("failure", [SystemExit("torn"), KeyboardInterrupt()])
def test_lesson_56_the_reaper_survives_anything(
    purgatory: EmbeddedPurgatory, caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    """An effect that raises even SystemExit is logged and counted; the effects behind it run, the reaper goes on."""

    def tear() -> None:
        raise failure

    first, second = SignallingOperation(10), SignallingOperation(10)
    first.when_completed = tear
    with caplog.at_level(logging.CRITICAL, "purgatory.embedded"):
        for operation in (first, second):
            purgatory.try_complete_else_watch(operation, ["k"])
        assert second.answered.wait(DEADLINE_S)
        later = SignallingOperation(10)
        purgatory.try_complete_else_watch(later, ["k"])
        assert later.answered.wait(DEADLINE_S)
    assert purgatory._reaper is not None
    assert purgatory._reaper.failures == 1


def test_the_reaper_survives_a_failing_clock(caplog: pytest.LogCaptureFixture) -> None:
    """A clock that fails for a while delays expiries, no more."""
    failures = 3

    class FailingClock(SystemClock):
        def now_ms(self) -> int:
            nonlocal failures
            if failures and threading.current_thread().name.startswith("ExpirationReaper"):
                failures -= 1
                raise OSError("no time")
            return super().now_ms()

    with (
        caplog.at_level(logging.CRITICAL, "purgatory.embedded"),
        EmbeddedPurgatory("failing", never_told, clock=FailingClock()) as purgatory,
    ):
        operation = SignallingOperation(10)
        purgatory.try_complete_else_watch(operation, ["k"])
        assert operation.answered.wait(DEADLINE_S)
    assert failures == 0


def test_effects_of_a_torn_thread_are_run_by_the_reaper(purgatory: EmbeddedPurgatory) -> None:
    """A caller interrupted in the middle of its effects sees the interrupt; the reaper runs the rest."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    first, second = SignallingOperation(), SignallingOperation()
    for operation in (first, second):
        purgatory.try_complete_else_watch(operation, ["k"])
        operation.is_met = True
    first.when_completed = interrupt
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("k")
    assert second.answered.wait(DEADLINE_S)
    assert (first.effects, second.effects) == (["complete"], ["complete"])


def test_errors_are_told_outside_the_lock() -> None:
    """on_error, told of a failed try_complete, may wait for another thread that uses the purgatory."""
    counts: list[int] = []

    def on_error(operation: GenericOperation, error: Exception) -> None:
        run_all(lambda: counts.append(embedded.check_and_complete("other")))

    with EmbeddedPurgatory("errors", on_error) as embedded:
        operation = RecordingOperation()
        operation.when_evaluated = fail
        embedded.try_complete_else_watch(operation, ["k"])
        assert counts == [0, 0]


def test_try_complete_must_not_call_back() -> None:
    """A try_complete that calls its purgatory is reported; the purgatory stays whole."""
    errors = Errors()
    with EmbeddedPurgatory("re-entry", errors) as purgatory:
        operation = RecordingOperation()
        operation.when_evaluated = lambda: purgatory.check_and_complete("k")
        purgatory.try_complete_else_watch(operation, ["k"])
        assert [type(error) for _, error in errors.told] == [ReentrantCall, ReentrantCall]
        operation.when_evaluated = None
        operation.is_met = True
        assert purgatory.check_and_complete("k") == 1


@pytest.mark.parametrize("closer", ["caller", "reaper"])
def test_lesson_67_close_from_a_completion_callback(closer: str) -> None:
    """Close from within an effect, on a caller's thread or the reaper's, returns; leftovers end as SHUTTING_DOWN."""
    purgatory = EmbeddedPurgatory("closing", never_told)
    first = SignallingOperation(60_000 if closer == "caller" else 5)
    leftovers = [SignallingOperation() for _ in range(10)]
    closed: list[int] = []
    first.when_completed = lambda: closed.append(purgatory.close())
    for operation in (first, *leftovers):
        purgatory.try_complete_else_watch(operation, ["k"])
    if closer == "caller":
        first.force_complete()
    assert all(operation.answered.wait(DEADLINE_S) for operation in (first, *leftovers))
    assert closed == [10]
    assert {operation.outcome for operation in leftovers} == {SHUTTING_DOWN}
    wait_until(lambda: reaper_threads("closing") == [])
    assert purgatory.close() == 0


def test_lesson_65_two_threads_close(purgatory: EmbeddedPurgatory) -> None:
    """Threads that close at the same time all return, and every operation is told once."""
    operations = [RecordingOperation() for _ in range(2500)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"])
    ended: list[int] = []
    run_all(*(lambda: ended.append(purgatory.close()) for _ in range(4)))
    assert sum(ended) == 2500
    assert all(operation.effects == ["complete"] for operation in operations)


def test_a_herd_expires_in_slices(manual: tuple[EmbeddedPurgatory, ManualClock]) -> None:
    """advance_clock expires at most its limit; next_expiration_ms says that more is due."""
    purgatory, clock = manual
    for _ in range(25):
        purgatory.try_complete_else_watch(RecordingOperation(5), ["k"])
    clock.jump(5)
    assert [purgatory.advance_clock(10) for _ in range(4)] == [10, 10, 5, 0]
    assert purgatory.next_expiration_ms() == -1


def test_cancel_for_key_among_threads(purgatory: EmbeddedPurgatory) -> None:
    """cancel_for_key returns and answers what was watched on the key."""
    operations = [RecordingOperation() for _ in range(3)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k", "other"])
    assert purgatory.cancel_for_key("k") == operations
    assert {operation.outcome for operation in operations} == {CANCELLED}
    assert_empty(purgatory)


def test_timers_disabled() -> None:
    """Without timers there is no reaper thread and nothing expires."""
    with EmbeddedPurgatory("no-timers", never_told, timer_enabled=False) as purgatory:
        assert reaper_threads("no-timers") == []
        operation = RecordingOperation(1)
        purgatory.try_complete_else_watch(operation, ["k"])
        assert (purgatory.num_delayed, purgatory.next_expiration_ms()) == (0, -1)
        operation.is_met = True
        assert purgatory.check_and_complete("k") == 1
