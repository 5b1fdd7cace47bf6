"""The threads of the embedded purgatory and of the timer: on time, asleep when nothing is due, and robust."""

import itertools
import logging
import threading

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.testing import ManualClock
from purgatory.timer import SystemTimer
from tests.embedded.crowd import all_stacks
from tests.engine.generic.recording_operation import DEADLINE_S, RecordingOperation, threads_of, wait_until
from tests.timer.clock_threads import Owner, Signal, add, both_owners, cancel, thread_of


@both_owners
def test_case_31_it_fires_by_itself_and_never_early(kind: type[Owner]) -> None:
    with kind("test") as owner:
        added_at_ms = SystemClock().now_ms()
        far = add(owner, 60_000)
        waiting = {delay_ms: add(owner, delay_ms) for delay_ms in (30, 5, 0)}
        for delay_ms, one in waiting.items():
            assert one.answered.wait(DEADLINE_S)
            assert one.answered_at_ms - added_at_ms >= delay_ms
            assert one.answered_on.startswith(("executor-test", "ExpirationReaper-test"))
        assert not far.answered.is_set()
        wait_until(lambda: thread_of(owner).armed_ms == owner.next_expiration_ms())


@both_owners
def test_a_quiet_system_still_fires(kind: type[Owner]) -> None:
    with kind("quiet") as owner:
        for delay_ms in (60_000, 30_000, 90_000):
            cancelled = add(owner, delay_ms)
            wait_until(lambda: 0 <= thread_of(owner).armed_ms <= owner.next_expiration_ms())
            assert cancel(owner, cancelled)
        for _ in range(2):
            assert add(owner, 10).answered.wait(DEADLINE_S)
            wait_until(lambda: thread_of(owner).armed_ms == -1)


@both_owners
def test_wake_ups_are_not_lost(kind: type[Owner]) -> None:
    with kind("hasty") as owner:
        left_alone = []
        for number in range(300):
            one = add(owner, number % 4)
            if number % 3:
                cancel(owner, one)
            else:
                left_alone.append(one)
        assert all(one.answered.wait(DEADLINE_S) for one in left_alone)


@both_owners
def test_addition_just_before_the_thread_sleeps_wakes_it(kind: type[Owner], monkeypatch: pytest.MonkeyPatch) -> None:
    with kind("window") as owner:
        look = thread_of(owner)._wait_ms
        late: list[RecordingOperation | Signal] = []

        def look_and_let_someone_in() -> int:
            wait_ms = look()
            if wait_ms < 0 and len(late) < 3:
                late.append(add(owner, 1))
            return wait_ms

        monkeypatch.setattr(thread_of(owner), "_wait_ms", look_and_let_someone_in)
        add(owner, 0)
        wait_until(lambda: len(late) == 3)
        assert all(one.answered.wait(DEADLINE_S) for one in late), f"it sleeps:\n{all_stacks()}"


@both_owners
def test_it_sleeps_while_nothing_is_due(kind: type[Owner]) -> None:
    reads = itertools.count()

    class CountingClock(SystemClock):
        def now_ms(self) -> int:
            next(reads)
            return super().now_ms()

    with kind("asleep", clock=CountingClock()) as asleep, kind("awake") as awake:
        add(asleep, 10**9)
        wait_until(lambda: thread_of(asleep).armed_ms > 0)
        before = next(reads)
        # On the other owner, one is added and ends in the meantime.
        assert add(awake, 30).answered.wait(DEADLINE_S)
        assert next(reads) <= before + 2


@both_owners
@pytest.mark.parametrize("failure", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_the_thread_survives_anything(
    kind: type[Owner], caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    def tear() -> None:
        raise failure("planted")

    with caplog.at_level(logging.ERROR, "purgatory"), kind("torn") as owner:
        add(owner, 5, tear)
        beside = add(owner, 5)
        assert beside.answered.wait(DEADLINE_S)
        assert add(owner, 10).answered.wait(DEADLINE_S)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "planted" in caplog.text


@both_owners
def test_it_survives_a_failing_clock(kind: type[Owner], caplog: pytest.LogCaptureFixture) -> None:
    failures = 3

    class FailingClock(SystemClock):
        def now_ms(self) -> int:
            nonlocal failures
            if failures and threading.current_thread().name.endswith("-failing"):
                failures -= 1
                raise OSError("no time")
            return super().now_ms()

    with caplog.at_level(logging.CRITICAL, "purgatory"), kind("failing", clock=FailingClock()) as owner:
        assert add(owner, 10).answered.wait(DEADLINE_S)
        assert (failures, thread_of(owner).failures) == (0, 3)


@both_owners
def test_close_from_within(kind: type[Owner]) -> None:
    """Closing within an effect or a task returns the rest instead of waiting for its own thread."""
    owner = kind("closing")
    leftovers = [add(owner, 60_000) for _ in range(10)]
    closed: list[object] = []
    closing = add(owner, 5, lambda: closed.append(owner.close()))
    assert closing.answered.wait(DEADLINE_S)
    assert closed == [10 if kind is EmbeddedPurgatory else leftovers]
    wait_until(lambda: threads_of("closing") == [])
    assert not owner.close()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (EmbeddedPurgatory, r"reaper_enabled=False and call advance_clock\(\)"),
        (SystemTimer, r"use Timer and call advance_clock\(\)"),
    ],
    ids=["purgatory", "timer"],
)
def test_a_manual_clock_is_refused(kind: type[Owner], says: str) -> None:
    """A manual clock is refused, with the alternative, before the thread is started: a thread sleeps in real time and
    would never end anything.
    """
    with pytest.raises(ValueError, match=says):
        kind("manual", clock=ManualClock())
    assert threads_of("manual") == []
    EmbeddedPurgatory("manual", clock=ManualClock(), timer_enabled=False).close()
