"""The embedded purgatory: two threads that meet at a certain point (cases 21, 33, 41 of docs/semantics.md), clocks,
interrupts, signals, forks, two owners; and waiting for an operation.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import new_class

import pytest

from purgatory.clock import OFFSET_MS_MAX, SystemClock
from purgatory.embedded import DelayedOperation, EmbeddedPurgatory, PurgatoryClosed, ReentrantCall
from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.generic.operation import GenericOperation
from purgatory.testing import ManualClock
from tests.engine.generic.recording_operation import (
    DEADLINE_S,
    FineClock,
    Gate,
    RecordingOperation,
    assert_empty,
    fail,
    never_called,
    register,
    run_all,
    threads_of,
)
from tests.timer.test_clock_threads import run_forking


@pytest.fixture
def purgatory() -> Iterator[EmbeddedPurgatory]:
    with EmbeddedPurgatory("test", never_called) as embedded:
        yield embedded


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


def test_on_error_is_called_outside_the_lock() -> None:
    counts: list[int] = []

    def on_error(_operation: GenericOperation, _error: Exception) -> None:
        run_all(lambda: counts.append(embedded.check_and_complete("other")))

    with EmbeddedPurgatory("errors", on_error) as embedded:
        operation = RecordingOperation()
        operation.when_evaluated = fail
        embedded.try_complete_else_watch(operation, ["k"])
        assert counts == [0, 0]


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


@pytest.mark.parametrize("reaper_enabled", [True, False])
@pytest.mark.parametrize("failure", [SystemExit, ArithmeticError])
def test_effects_that_raise_at_close_cost_the_others_nothing(
    reaper_enabled: bool, failure: type[BaseException]
) -> None:
    def tear() -> None:
        raise failure("torn")

    def on_error(_operation: GenericOperation, error: Exception) -> None:
        raise error

    purgatory = EmbeddedPurgatory("torn", on_error, reaper_enabled=reaper_enabled)
    operations = register(purgatory, "k", count=2_500)
    for number in (0, 700, 2_400):
        operations[number].when_completed = tear
    with pytest.raises(failure, match="torn") as raised:
        purgatory.close()
    assert isinstance(raised.value.__context__, failure), "the one before is shown too"
    assert all(operation.effects == ["complete"] for operation in operations)
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}
    assert (purgatory.pending, purgatory.close()) == (0, 0)


@pytest.mark.parametrize("looks_before", [0, 1])
def test_operation_in_two_purgatories_ends_once_in_the_first(looks_before: int) -> None:
    operation, gate = RecordingOperation(0), Gate()
    operation.when_evaluated = lambda: gate() if operation.evaluations == looks_before + 1 else None
    with EmbeddedPurgatory("first", never_called) as first, EmbeddedPurgatory("second", never_called) as second:
        registering = threading.Thread(target=first.try_complete_else_watch, args=(operation, ["k"]))
        registering.start()
        gate.wait_until_reached()
        with pytest.raises(ValueError, match="pending in a purgatory already"):
            second.try_complete_else_watch(operation, ["k"])
        assert not second.cancel(operation)
        gate.is_open.set()
        registering.join(DEADLINE_S)
        assert operation.answered.wait(DEADLINE_S)
        assert (operation.outcome, operation.effects) == (EXPIRED, ["complete", "expire"])
        assert (first.pending, second.pending, second.watched) == (0, 0, 0)


@pytest.mark.parametrize("during", ["registration", "check"])
def test_a_signal_handler_may_close(during: str) -> None:
    purgatory = EmbeddedPurgatory("signalled", never_called)
    first, second = RecordingOperation(), RecordingOperation()
    closed: list[int] = []

    def raise_signal() -> None:
        first.when_evaluated = None
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: closed.append(purgatory.close()))
    try:
        (other,) = register(purgatory, "other")
        if during == "registration":
            first.when_evaluated = raise_signal
        purgatory.try_complete_else_watch(first, ["k"])
        if during == "check":
            purgatory.try_complete_else_watch(second, ["k"])
            first.when_evaluated, second.is_met = raise_signal, True
            assert purgatory.check_and_complete("k") == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed == [0]
    assert (first.outcome, other.outcome, purgatory.pending) == (SHUTTING_DOWN, SHUTTING_DOWN, 0)
    assert (first.effects, other.effects) == (["complete"], ["complete"])
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(RecordingOperation(), ["k"])
    assert threads_of("signalled") == []


FORKING = """
import os, sys, threading, time
from purgatory.embedded import DelayedOperation, EmbeddedPurgatory, UsedAfterFork

WHERE = sys.argv[1]

class Operation(DelayedOperation):
    ended_in = 0
    forks_at = ""
    def try_complete(self):
        if self.forks_at == "evaluation":
            fork()
        return False
    def on_complete(self):
        self.ended_in = os.getpid()
        if self.forks_at == "effect":
            fork()

child = -1
def fork():
    global child
    if child < 0:
        child = os.fork()

purgatory = EmbeddedPurgatory("forked")
operations = [Operation(None) for _ in range(3)]
for operation in operations:
    purgatory.try_complete_else_watch(operation, ["k"])
parent = os.getpid()
if WHERE == "lock held":
    inside, release = threading.Event(), threading.Event()
    operations[0].try_complete = lambda: inside.set() or release.wait(60) or False
    checking = threading.Thread(target=purgatory.check_and_complete, args=("k",))
    checking.start()
    inside.wait(60)
    fork()
elif WHERE == "idle":
    fork()
else:
    operations[0].forks_at = WHERE
    try:
        if WHERE == "effect":
            purgatory.cancel_for_key("k")
        else:
            purgatory.check_and_complete("k")
    except UsedAfterFork:
        assert child == 0
if child == 0:
    code = 0
    calls = [lambda: purgatory.pending, lambda: purgatory.check_and_complete("k"), purgatory.close,
             purgatory.advance_clock, lambda: purgatory.try_complete_else_watch(Operation(1), ["k"]),
             lambda: purgatory.wait(operations[1], 1), lambda: purgatory.cancel(operations[1])]
    if WHERE != "effect":
        calls.append(operations[2].force_complete)
    for number, call in enumerate(calls):
        try:
            call()
            code = 10 + number
        except UsedAfterFork as error:
            assert "create a new one after the fork" in str(error), error
    if any(operation.ended_in == os.getpid() for operation in operations):
        code = 3
    with EmbeddedPurgatory("the child's own") as own:
        mine = Operation(1)
        own.try_complete_else_watch(mine, ["k"])
        if not own.wait(mine, 20_000):
            code = 4
    os._exit(code)
if WHERE == "lock held":
    release.set()
    checking.join()
_, status = os.waitpid(child, 0)
purgatory.close()
assert all(operation.ended_in == parent for operation in operations)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["idle", "lock held", "evaluation", "effect"])
def test_a_forked_child_is_told(where: str) -> None:
    """Every call in the child raises UsedAfterFork, even if the lock was held; no operation is answered there."""
    run_forking(FORKING, where)


@pytest.mark.parametrize("bases", [(DelayedOperation, asyncio.Future), (asyncio.Future, DelayedOperation)])
def test_an_operation_is_no_future(bases: tuple[type, ...]) -> None:
    """In both builds the class is refused, with a message that names the alternative."""
    with pytest.raises(TypeError, match="await the operation itself"):
        new_class("Both", bases)


def test_errors_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "purgatory.embedded"), EmbeddedPurgatory("logged") as purgatory:
        (operation,) = register(purgatory, "k")
        operation.when_completed = fail
        assert operation.force_complete()
    assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == [("ERROR", True)]


def test_never_early_by_a_fraction_of_a_millisecond() -> None:
    clock = FineClock(10)
    with EmbeddedPurgatory("fine", never_called, clock=clock, reaper_enabled=False) as purgatory:
        register(purgatory, "k", timeout_ms=5)
        clock.jump(5)
        assert purgatory.advance_clock() == 0
        clock.jump(1)
        assert purgatory.advance_clock() == 1


def test_wait_blocks_until_the_effects_have_run() -> None:
    with EmbeddedPurgatory("waited", never_called) as purgatory:
        (operation,), (short,) = register(purgatory, "k", timeout_ms=None), register(purgatory, "k", timeout_ms=20)
        assert not purgatory.wait(operation, 1)
        assert (operation.outcome, operation.purgatory_listeners) == (PENDING, [])
        assert purgatory.wait(short)
        assert short.effects == ["complete", "expire"]
        operation.when_completed = gate = Gate()
        forcing = threading.Thread(target=operation.force_complete)
        forcing.start()
        gate.wait_until_reached()
        assert operation.is_completed
        assert not purgatory.wait(operation, 1), "on_complete is still running"
        gate.is_open.set()
        assert purgatory.wait(operation, 10**30)
        assert purgatory.wait(operation, 0)
        forcing.join(DEADLINE_S)


@pytest.mark.parametrize("hook", ["when_evaluated", "when_completed"])
def test_wait_in_a_hook_is_refused(hook: str) -> None:
    reported: list[Exception] = []
    with EmbeddedPurgatory("held up", lambda _, error: reported.append(error)) as purgatory:
        operation = RecordingOperation()
        setattr(operation, hook, lambda: purgatory.wait(operation))
        purgatory.try_complete_else_watch(operation, ["k"])
        operation.force_complete()
    assert {type(error) for error in reported} == {ReentrantCall}


async def test_operations_are_awaited_by_tasks() -> None:
    with EmbeddedPurgatory("awaited", never_called) as purgatory:
        (forced,), (expired,) = register(purgatory, "k", timeout_ms=None), register(purgatory, "k", timeout_ms=5)
        ended = RecordingOperation()
        ended.force_complete()
        tasks = [asyncio.ensure_future(_await(one)) for one in (forced, forced, expired, ended)]
        impatient = asyncio.ensure_future(_await(forced))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        assert forced.outcome == PENDING, "to cancel a task that waits leaves the operation alone"
        threading.Thread(target=forced.force_complete).start()
        assert await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S) == [SATISFIED, SATISFIED, EXPIRED, SATISFIED]
        assert forced.purgatory_listeners == []


async def _await(operation: DelayedOperation) -> int:
    return await operation


def test_an_operation_outlives_the_loop_that_awaits_it() -> None:
    with EmbeddedPurgatory("outlived", never_called) as purgatory:
        (operation,) = register(purgatory, "k")
        loop = asyncio.new_event_loop()
        waiting = _await(operation)
        task = loop.create_task(waiting)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        operation.is_met = True
        assert purgatory.check_and_complete("k") == 1
        assert operation.outcome == SATISFIED
        assert operation.purgatory_is_answered
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        waiting.close()


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
