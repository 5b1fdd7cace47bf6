"""The purgatory among threads: the cases 20 to 23, 30 to 34, 41, 44, 45, 95 and 96 of docs/semantics.md."""

import random
import threading
from concurrent.futures import Future

import pytest

from purgatory.clock import SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import PurgatoryClosed
from purgatory.engine.generic.operation import GenericOperation
from purgatory.testing import ManualClock
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


def assert_empty(purgatory: EmbeddedPurgatory) -> None:
    assert purgatory.watched == purgatory.num_delayed == purgatory.pending == purgatory.key_count == 0


def reaper_threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"ExpirationReaper-{name}"]


def test_case_20_an_expiry_that_raises() -> None:
    """The effect of one expiry raises: on_error is told, the second still runs, and so does a later one."""
    errors = Errors()
    with EmbeddedPurgatory("case-20", errors) as purgatory:
        first, second, later = SignallingOperation(5), SignallingOperation(5), SignallingOperation(10)
        first.when_completed = fail
        for operation in (first, second, later):
            purgatory.try_complete_else_watch(operation, ["k"])
        assert second.answered.wait(DEADLINE_S)
        assert later.answered.wait(DEADLINE_S)
        assert [operation for operation, _ in errors.told] == [first]


def test_case_21_effects_of_expiries_run_one_after_the_other(purgatory: EmbeddedPurgatory) -> None:
    """A slow effect of an expiry delays the next one: the one reaper thread runs them in order."""
    log: list[str] = []
    release = threading.Event()
    slow, fast = SignallingOperation(5, "slow", log), SignallingOperation(5, "fast", log)
    slow.when_expired = lambda: release.wait(DEADLINE_S)
    purgatory.try_complete_else_watch(slow, ["k"])
    purgatory.try_complete_else_watch(fast, ["k"])
    wait_until(lambda: log == ["slow"])
    assert not fast.effects
    release.set()
    assert fast.answered.wait(DEADLINE_S)
    assert log == ["slow", "fast"]
    assert slow.answered_on == fast.answered_on == "ExpirationReaper-test"


def test_case_22_close_answers_what_is_pending() -> None:
    """100 pending operations: close ends each as SHUTTING_DOWN, with its effect, and leaves no thread behind."""
    purgatory = EmbeddedPurgatory("case-22", never_told)
    operations = [RecordingOperation() for _ in range(100)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"])
    assert len(reaper_threads("case-22")) == 1
    assert purgatory.close() == 100
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}
    assert all(operation.effects == ["complete"] for operation in operations)
    assert reaper_threads("case-22") == []
    assert_empty(purgatory)
    assert purgatory.close() == 0
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(RecordingOperation(), ["k"])


@pytest.mark.slow
def test_case_23_many_threads(purgatory: EmbeddedPurgatory) -> None:
    """8 threads register 8,000 short operations while the reaper advances and half are cancelled: each is told once."""
    operations = [[RecordingOperation(random.randrange(30)) for _ in range(1000)] for _ in range(8)]

    def register(mine: list[RecordingOperation]) -> None:
        for number, operation in enumerate(mine):
            purgatory.try_complete_else_watch(operation, [number % 7, "all"])
            if number % 2:
                purgatory.cancel(mine[number - 1])

    run_all(*(lambda mine=mine: register(mine) for mine in operations))
    wait_until(lambda: purgatory.pending == 0)
    everyone = [operation for mine in operations for operation in mine]
    wait_until(lambda: all(operation.effects for operation in everyone))
    assert {operation.outcome for operation in everyone} <= {EXPIRED, CANCELLED}
    wait_until(lambda: all("expire" in o.effects for o in everyone if o.outcome == EXPIRED))
    assert all(operation.effects.count("complete") == 1 for operation in everyone)
    assert_empty(purgatory)


def test_case_30_sixteen_threads_check_one_key(purgatory: EmbeddedPurgatory) -> None:
    """One operation, 16 threads checking its key: told once, and the counts sum to 1."""
    operation = RecordingOperation()
    purgatory.try_complete_else_watch(operation, ["k"])
    operation.is_met = True
    counts: list[int] = []
    run_all(*(lambda: counts.append(purgatory.check_and_complete("k")) for _ in range(16)))
    assert sum(counts) == 1
    assert operation.effects == ["complete"]


def test_case_31_expires_by_itself_and_never_early(purgatory: EmbeddedPurgatory) -> None:
    """With nothing else happening the reaper expires an operation, at its timeout or later; others are untouched."""
    other, operation = RecordingOperation(), SignallingOperation(20)
    purgatory.try_complete_else_watch(other, ["k"])
    registered_at_ms = SystemClock().now_ms()
    purgatory.try_complete_else_watch(operation, ["k"])
    assert operation.answered.wait(DEADLINE_S)
    assert operation.answered_at_ms - registered_at_ms >= 20
    assert operation.effects == ["complete", "expire"]
    assert (other.outcome, other.effects) == (PENDING, [])


@pytest.mark.slow
def test_case_32_expiry_and_check_race(manual: tuple[EmbeddedPurgatory, ManualClock]) -> None:
    """A check and the timer race 300 times: told once each time, on_expiration exactly if the timer won."""
    purgatory, clock = manual
    winners = set()
    for _ in range(300):
        operation = RecordingOperation(10)
        purgatory.try_complete_else_watch(operation, ["k"])
        operation.is_met = True
        clock.jump(10)
        bodies = [lambda: purgatory.check_and_complete("k"), purgatory.advance_clock, operation.force_complete]
        random.shuffle(bodies)
        run_all(*bodies)
        assert operation.effects == (["complete", "expire"] if operation.outcome == EXPIRED else ["complete"])
        winners.add(operation.outcome)
        assert_empty(purgatory)
    assert winners <= {SATISFIED, EXPIRED}


def test_case_33_check_returns_while_the_timer_is_inside_on_complete(purgatory: EmbeddedPurgatory) -> None:
    """While the reaper is stuck in an on_complete, a check from elsewhere returns 0 at once and asks nobody."""
    entered, release = threading.Event(), threading.Event()
    operation = SignallingOperation(5)

    def block() -> None:
        entered.set()
        assert release.wait(DEADLINE_S)

    operation.when_completed = block
    purgatory.try_complete_else_watch(operation, ["k"])
    assert entered.wait(DEADLINE_S)
    evaluations = operation.evaluations
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 0
    assert not operation.force_complete()
    assert operation.is_completed
    assert operation.evaluations == evaluations
    assert_empty(purgatory)
    release.set()
    assert operation.answered.wait(DEADLINE_S)


def test_case_34_completed_while_being_registered(manual: tuple[EmbeddedPurgatory, ManualClock]) -> None:
    """Forced by another thread while its registration is under way: told once, and no timer entry stays behind."""
    purgatory, _ = manual
    operation = RecordingOperation()
    forced: list[bool] = []
    others: list[threading.Thread] = []

    def force_from_another_thread() -> None:
        if operation.evaluations == 2:
            others.append(threading.Thread(target=lambda: forced.append(operation.force_complete())))
            others[0].start()

    operation.when_evaluated = force_from_another_thread
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    others[0].join(DEADLINE_S)
    assert forced == [True]
    assert operation.effects == ["complete"]
    assert_empty(purgatory)


def test_case_41_check_waits_for_an_evaluation_elsewhere(purgatory: EmbeddedPurgatory) -> None:
    """A check that finds an evaluation under way on another thread waits for it and then decides."""
    entered, release, counts = threading.Event(), threading.Event(), list[int]()
    operation = RecordingOperation()
    purgatory.try_complete_else_watch(operation, ["k"])

    def block() -> None:
        entered.set()
        assert release.wait(DEADLINE_S)

    operation.when_evaluated = block
    first = threading.Thread(target=lambda: counts.append(purgatory.check_and_complete("k")))
    first.start()
    assert entered.wait(DEADLINE_S)
    second = threading.Thread(target=lambda: counts.append(purgatory.check_and_complete("k")))
    second.start()
    assert counts == []
    operation.is_met = True
    release.set()
    first.join(DEADLINE_S)
    second.join(DEADLINE_S)
    assert sorted(counts) == [0, 1]
    assert operation.effects == ["complete"]


def test_case_44_last_leaves_while_another_arrives(purgatory: EmbeddedPurgatory) -> None:
    """Keys are dropped and made anew by racing threads: an operation registered on a key is always found by a check."""

    def come_and_go() -> None:
        for _ in range(300):
            operation = RecordingOperation()
            assert not purgatory.try_complete_else_watch(operation, ["k"])
            operation.is_met = True
            purgatory.check_and_complete("k")
            assert operation.is_completed

    run_all(come_and_go, come_and_go, come_and_go)
    assert_empty(purgatory)


def test_case_45_effects_may_call_back_in(purgatory: EmbeddedPurgatory) -> None:
    """An effect that checks its own key gets the right count and no deadlock; what it ends is answered after it."""
    log: list[str] = []
    first, second = RecordingOperation(name="first", log=log), RecordingOperation(name="second", log=log)
    for operation in (first, second):
        purgatory.try_complete_else_watch(operation, ["k"])
    counts: list[int] = []

    def meet_second() -> None:
        second.is_met = True
        counts.append(purgatory.check_and_complete("k"))
        log.append("first is done")

    first.is_met = True
    first.when_completed = meet_second
    assert purgatory.check_and_complete("k") == 1
    assert counts == [1]
    assert log == ["first", "first is done", "second"]


def test_case_95_state_lock_and_check(purgatory: EmbeddedPurgatory) -> None:
    """Changing state under a lock that try_complete takes, releasing it, then checking: no deadlock, nothing missed."""
    state_lock, state = threading.Lock(), {"mark": 0}

    class MarkReached(GenericOperation):
        def __init__(self, threshold: int) -> None:
            super().__init__(60_000)
            self.threshold = threshold

        def try_complete(self) -> bool:
            with state_lock:
                return state["mark"] >= self.threshold and self.force_complete()

    operations = [MarkReached(threshold) for threshold in range(1, 301)]

    def register() -> None:
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["k"])

    def change() -> None:
        for _ in range(300):
            with state_lock:
                state["mark"] += 1
            purgatory.check_and_complete("k")

    run_all(register, change)
    assert all(operation.outcome == SATISFIED for operation in operations)
    assert_empty(purgatory)


@pytest.mark.parametrize("futures_finish", [True, False])
def test_case_96_waiting_for_futures(purgatory: EmbeddedPurgatory, futures_finish: bool) -> None:
    """Futures that finish complete the operation on their thread, and no entry stays; else expiry fails them, once."""
    futures: list[Future[str]] = [Future(), Future()]

    class FuturesDone(SignallingOperation):
        def try_complete(self) -> bool:
            return all(future.done() for future in futures) and self.force_complete()

        def on_complete(self) -> None:
            super().on_complete()
            for future in futures:
                if not future.done():
                    future.set_exception(TimeoutError("not done in time"))

    operation = FuturesDone(60_000 if futures_finish else 20)
    for future in futures:
        future.add_done_callback(lambda _: all(f.done() for f in futures) and operation.force_complete())
    assert not purgatory.try_complete_else_watch(operation, ["all futures"])
    if futures_finish:
        run_all(*(lambda future=future: future.set_result("done") for future in futures))
        assert operation.outcome == SATISFIED
    assert operation.answered.wait(DEADLINE_S)
    assert operation.effects == (["complete"] if futures_finish else ["complete", "expire"])
    assert all(isinstance(future.exception(), type(None) if futures_finish else TimeoutError) for future in futures)
    assert_empty(purgatory)
