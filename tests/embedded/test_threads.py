"""The purgatory with several threads: cases 21, 22, 32 to 34, 41, 95, 96 of docs/semantics.md, and close."""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from purgatory.clock import OFFSET_MS_MAX, SystemClock
from purgatory.embedded import EmbeddedPurgatory
from purgatory.engine.codes import EXPIRED, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import PurgatoryClosed
from purgatory.engine.generic.operation import GenericOperation
from purgatory.testing import ManualClock
from tests.engine.generic.recording_operation import (
    DEADLINE_S,
    Gate,
    ManualPurgatory,
    RecordingOperation,
    assert_empty,
    fail,
    never_called,
    register,
    run_all,
    threads_of,
)
from tests.kit.eventually import wait_until


def test_case_21_effects_of_expiries_run_one_after_the_other(purgatory: EmbeddedPurgatory) -> None:
    log: list[str] = []
    slow, fast, gate = RecordingOperation(5, "slow", log), RecordingOperation(5, "fast", log), Gate()
    slow.when_expired = gate
    purgatory.try_complete_else_watch(slow, ["k"])
    purgatory.try_complete_else_watch(fast, ["k"])
    gate.wait_until_reached()
    assert not fast.effects
    gate.is_open.set()
    assert fast.answered.wait(DEADLINE_S)
    assert log == ["slow", "fast"]
    assert slow.answered_on == fast.answered_on == "ExpirationReaper-test"


def test_threads_close_at_the_same_time(purgatory: EmbeddedPurgatory) -> None:
    """Case 22: all calls return, each operation is answered once, no thread remains, and registrations are refused."""
    operations = register(purgatory, "k", count=2500)
    ended: list[int] = []
    run_all(*(lambda: ended.append(purgatory.close()) for _ in range(4)))
    assert sum(ended) == 2500
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}
    assert all(operation.effects == ["complete"] for operation in operations)
    assert threads_of("test") == []
    assert_empty(purgatory)
    assert purgatory.close() == 0
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(RecordingOperation(), ["k"])


@pytest.mark.slow
def test_case_32_expiry_and_check_race() -> None:
    purgatory = ManualPurgatory()
    for _ in range(300):
        (operation,) = register(purgatory, "k", timeout_ms=10)
        operation.is_met = True
        purgatory.clock.jump(10)
        bodies = [lambda: purgatory.check_and_complete("k"), purgatory.advance_clock, operation.force_complete]
        random.shuffle(bodies)
        run_all(*bodies)
        assert operation.outcome in {SATISFIED, EXPIRED}
        assert operation.effects == (["complete", "expire"] if operation.outcome == EXPIRED else ["complete"])
        assert_empty(purgatory)


def test_case_33_check_returns_while_the_timer_is_inside_on_complete(purgatory: EmbeddedPurgatory) -> None:
    operation, gate = RecordingOperation(5), Gate()
    operation.when_completed = gate
    purgatory.try_complete_else_watch(operation, ["k"])
    gate.wait_until_reached()
    evaluations = operation.evaluations
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 0
    assert not operation.force_complete()
    assert operation.is_completed
    assert operation.evaluations == evaluations
    assert_empty(purgatory)
    gate.is_open.set()
    assert operation.answered.wait(DEADLINE_S)


def test_case_34_completed_while_being_registered() -> None:
    purgatory, operation = ManualPurgatory(), RecordingOperation()
    with ThreadPoolExecutor(1) as pool:
        forced: list[Future[bool]] = []

        def force_from_another_thread() -> None:
            if operation.evaluations == 2:
                forced.append(pool.submit(operation.force_complete))

        operation.when_evaluated = force_from_another_thread
        assert not purgatory.try_complete_else_watch(operation, ["k"])
        assert forced[0].result(DEADLINE_S)
    assert operation.effects == ["complete"]
    assert_empty(purgatory)


def test_case_41_check_waits_for_an_evaluation_elsewhere(purgatory: EmbeddedPurgatory) -> None:
    (operation,) = register(purgatory, "k")
    operation.when_evaluated = gate = Gate()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(purgatory.check_and_complete, "k")
        gate.wait_until_reached()
        second = pool.submit(purgatory.check_and_complete, "k")
        assert not second.done()
        operation.is_met = True
        gate.is_open.set()
        assert sorted([first.result(DEADLINE_S), second.result(DEADLINE_S)]) == [0, 1]
    assert operation.effects == ["complete"]


def test_case_95_change_under_a_lock_then_a_check_misses_nothing(purgatory: EmbeddedPurgatory) -> None:
    state_lock, state = threading.Lock(), {"mark": 0}

    class MarkReached(GenericOperation):
        def __init__(self, threshold: int) -> None:
            super().__init__(60_000)
            self.threshold = threshold

        def try_complete(self) -> bool:
            with state_lock:
                return state["mark"] >= self.threshold and self.force_complete()

    operations = [MarkReached(threshold) for threshold in range(1, 301)]

    def register_all() -> None:
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["k"])

    def change() -> None:
        for _ in range(300):
            with state_lock:
                state["mark"] += 1
            purgatory.check_and_complete("k")

    run_all(register_all, change)
    assert all(operation.outcome == SATISFIED for operation in operations)
    assert_empty(purgatory)


@pytest.mark.parametrize("futures_finish", [True, False])
def test_case_96_waiting_for_futures(purgatory: EmbeddedPurgatory, futures_finish: bool) -> None:
    futures: list[Future[str]] = [Future(), Future()]

    def fail_those_not_done() -> None:
        for future in futures:
            if not future.done():
                future.set_exception(TimeoutError("not done in time"))

    operation = RecordingOperation(60_000 if futures_finish else 20)
    operation.when_completed = fail_those_not_done
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


def test_effects_of_a_torn_thread_still_run(purgatory: EmbeddedPurgatory) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    first, second = register(purgatory, "k", count=2)
    first.is_met = second.is_met = True
    first.when_completed = interrupt
    with pytest.raises(KeyboardInterrupt):
        purgatory.check_and_complete("k")
    assert (first.effects, second.effects) == (["complete"], ["complete"])


def test_on_error_is_called_outside_the_lock() -> None:
    counts: list[int] = []

    def on_error(_operation: GenericOperation, _error: Exception) -> None:
        run_all(lambda: counts.append(embedded.check_and_complete("other")))

    with EmbeddedPurgatory("errors", on_error) as embedded:
        operation = RecordingOperation()
        operation.when_evaluated = fail
        embedded.try_complete_else_watch(operation, ["k"])
        assert counts == [0, 0]


def test_close_from_an_effect_on_the_callers_thread() -> None:
    purgatory = EmbeddedPurgatory("closing", never_called)
    first, *leftovers = register(purgatory, "k", count=11)
    closed: list[int] = []
    first.when_completed = lambda: closed.append(purgatory.close())
    assert first.force_complete()
    assert closed == [10]
    assert {operation.outcome for operation in leftovers} == {SHUTTING_DOWN}
    assert all(operation.effects == ["complete"] for operation in leftovers)
    wait_until(lambda: threads_of("closing") == [])


@pytest.mark.parametrize("at_evaluation", [1, 2])
def test_state_that_changes_while_it_is_looked_at(at_evaluation: int) -> None:
    """A change and check by another thread right after an evaluation read "not yet" completes the operation."""
    with EmbeddedPurgatory("missed-wakeups", never_called) as purgatory:
        others: list[threading.Thread] = []

        def change_and_check(operation: RecordingOperation) -> None:
            operation.is_met = True
            purgatory.check_and_complete("k")

        class LookedAt(RecordingOperation):
            def try_complete(self) -> bool:
                self.evaluations += 1
                if self.evaluations == at_evaluation:
                    # The state was read as "not met"; the event happens before that result is used.
                    others.append(threading.Thread(target=change_and_check, args=(self,)))
                    others[0].start()
                    return False
                return self.force_complete() if self.is_met else False

        operation = LookedAt()
        purgatory.try_complete_else_watch(operation, ["k"])
        others[0].join(DEADLINE_S)
        assert operation.outcome == SATISFIED
        assert operation.effects == ["complete"]
        assert purgatory.pending == purgatory.watched == 0


# Clocks.


def test_manual_clock_moves_only_forward() -> None:
    clock = ManualClock(5)
    assert clock.now_ms() == clock.now_ms() == 5
    assert clock.jump(10) == clock.now_ms() == 15
    assert clock.jump(0) == 15
    with pytest.raises(ValueError, match=r"jump\(-1\)"):
        clock.jump(-1)


def test_system_clock_is_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.now_ms()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now_ms() <= before + DEADLINE_S * 1000
    assert abs(clock.now_ms() - time.monotonic_ns() // 1_000_000) <= DEADLINE_S * 1000


def test_debug_clocks_have_offsets_of_their_own() -> None:
    clocks = [SystemClock(debug=True) for _ in range(3)]
    offsets = {clock.now_ms() // 1000 for clock in clocks}
    assert len(offsets) == 3
    assert all(0 <= clock._offset_ms < OFFSET_MS_MAX for clock in clocks)
