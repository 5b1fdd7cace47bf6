"""The generic purgatory: effects, error handlers, re-entry, slices and leaks. Histories are in test_histories.py."""

import itertools
import weakref
from collections.abc import Callable

import pytest

from purgatory.engine.codes import CANCELLED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import PurgatoryFull, ReentrantCall
from purgatory.engine.generic.operation import GenericOperation
from tests.engine.generic.recording_operation import (
    Errors,
    ManualPurgatory,
    RecordingOperation,
    assert_empty,
    fail,
    register,
)


def test_case_39_without_timers_nothing_expires() -> None:
    purgatory = ManualPurgatory(timer_enabled=False)
    (operation,) = register(purgatory, "k", timeout_ms=1)
    assert (purgatory.num_delayed, purgatory.next_expiration_ms()) == (0, -1)
    purgatory.clock.jump(10_000)
    assert purgatory.advance_clock() == 0
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert_empty(purgatory)


def test_case_45_effects_may_call_back_in() -> None:
    purgatory, log, counts = ManualPurgatory(), list[str](), list[int]()
    first, second = register(purgatory, "k", count=2)
    first.log = second.log = log
    first.name, second.name = "first", "second"

    def meet_second() -> None:
        second.is_met = True
        counts.append(purgatory.check_and_complete("k"))
        log.append("first is done")

    first.is_met = True
    first.when_completed = meet_second
    assert purgatory.check_and_complete("k") == 1
    assert counts == [1]
    assert log == ["first", "first is done", "second"]
    assert_empty(purgatory)


def test_cases_93_94_effects_run_in_order_and_a_failing_one_stops_no_other() -> None:
    errors, log = Errors(), list[str]()
    purgatory = ManualPurgatory(errors)
    operations = [RecordingOperation(name=name, log=log) for name in "PFDSX"]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"])
        operation.is_met = operation.name != "X"
    operations[0].when_completed = operations[-1].force_complete
    operations[1].when_completed = fail
    assert purgatory.check_and_complete("k") == 4
    assert "".join(log) == "PFDSX"
    assert errors.operations == [operations[1]]


def test_case_97_successor_registered_by_an_expiring_operation() -> None:
    purgatory, successor = ManualPurgatory(), RecordingOperation(30)
    (first,) = register(purgatory, "k", timeout_ms=20)
    first.when_completed = lambda: purgatory.try_complete_else_watch(successor, ["k"])
    purgatory.clock.jump(20)
    assert purgatory.advance_clock() == 1
    assert (purgatory.watched, purgatory.num_delayed) == (1, 1)
    purgatory.clock.jump(29)
    assert purgatory.advance_clock() == 0
    purgatory.clock.jump(1)
    assert purgatory.advance_clock() == 1
    assert successor.effects == ["complete", "expire"]


def test_slice_of_expiries_is_bounded_and_begins_with_overdue_ones() -> None:
    purgatory, log = ManualPurgatory(), list[str]()
    for name, timeout_ms in (("a", 5), ("b", 0), ("c", 7), ("d", -1)):
        assert not purgatory.try_complete_else_watch(RecordingOperation(timeout_ms, name, log), ["k"])
    purgatory.clock.jump(10)
    assert (purgatory.advance_clock(3), log) == (3, ["b", "d", "a"])
    assert purgatory.next_expiration_ms() <= purgatory.clock.now_ms()
    assert (purgatory.advance_clock(3), log) == (1, ["b", "d", "a", "c"])
    assert_empty(purgatory)


def test_shut_down_ends_a_bounded_number_at_a_time() -> None:
    purgatory = ManualPurgatory()
    operations = register(purgatory, "a", "b", count=10) + register(purgatory, "c", timeout_ms=0)
    assert [purgatory.core.shut_down(4) for _ in range(4)] == [4, 4, 3, 0]
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}


def test_an_operation_of_another_purgatory_is_not_cancelled() -> None:
    purgatory, other = ManualPurgatory(), ManualPurgatory()
    (operation,) = register(purgatory, "k")
    assert not other.cancel(operation)
    assert operation.outcome == PENDING
    with pytest.raises(ValueError, match="pending in a purgatory already"):
        other.try_complete_else_watch(operation, ["k"])


def test_operation_over_pending_max_is_refused_until_there_is_room() -> None:
    purgatory, late, met = ManualPurgatory(pending_max=2), RecordingOperation(), RecordingOperation()
    first, _ = register(purgatory, "k", count=2)
    with pytest.raises(PurgatoryFull, match="2 operations are pending"):
        purgatory.try_complete_else_watch(late, ["k"])
    met.is_met = True
    assert purgatory.try_complete_else_watch(met, ["k"])
    assert (late.outcome, late.effects, purgatory.pending, purgatory.watched) == (PENDING, [], 2, 2)
    assert purgatory.cancel(first)
    assert not purgatory.try_complete_else_watch(late, ["k"])
    late.is_met = True
    assert purgatory.check_and_complete("k") == 1


def test_shut_down_by_on_error_while_registering_answers_the_operation() -> None:
    operation = RecordingOperation()

    def shut_down(_operation: GenericOperation, _error: Exception) -> None:
        operation.when_evaluated = None
        purgatory.close()

    purgatory = ManualPurgatory(shut_down)
    operation.when_evaluated = fail
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert (operation.outcome, operation.effects) == (SHUTTING_DOWN, ["complete"])
    assert_empty(purgatory)


def test_the_error_handler_may_end_the_failed_operation() -> None:
    purgatory = ManualPurgatory(lambda operation, error: cancelled.append(purgatory.cancel(operation)))
    cancelled: list[bool] = []
    (operation,) = register(purgatory, "k")
    operation.when_evaluated = fail
    assert purgatory.check_and_complete("k") == 0
    assert cancelled == [True]
    assert (operation.outcome, operation.effects) == (CANCELLED, ["complete"])
    assert_empty(purgatory)


def test_an_error_handler_that_raises_reaches_the_caller() -> None:
    handlers: list[Callable[[str], object]] = [fail]

    def on_error(_operation: GenericOperation, _error: Exception) -> None:
        handlers.pop()("handler")

    purgatory = ManualPurgatory(on_error)
    first, second = register(purgatory, "k", count=2)
    first.is_met = second.is_met = True
    first.when_completed = fail
    with pytest.raises(ArithmeticError, match="handler"):
        purgatory.check_and_complete("k")
    assert (first.outcome, second.outcome, second.effects) == (SATISFIED, SATISFIED, ["complete"])


def test_try_complete_must_not_call_back() -> None:
    errors = Errors()
    purgatory = ManualPurgatory(errors)
    (operation,) = register(purgatory, "k")
    operation.when_evaluated = lambda: purgatory.check_and_complete("k")
    assert purgatory.check_and_complete("k") == 0
    assert [type(error) for _, error in errors.reported] == [ReentrantCall]
    operation.when_evaluated = None
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1


def test_try_complete_may_force_another() -> None:
    purgatory, log = ManualPurgatory(), list[str]()
    first, second = register(purgatory, "k", count=2)
    first.name, second.name, first.log, second.log = "first", "second", log, log
    first.is_met = True
    first.when_evaluated = second.force_complete
    assert purgatory.check_and_complete("k") == 1
    assert log == ["second", "first"]
    assert second.evaluations == 2
    assert_empty(purgatory)


def test_operations_without_try_complete_are_refused() -> None:
    errors = Errors()
    purgatory = ManualPurgatory(errors)
    purgatory.try_complete_else_watch(GenericOperation(10), ["k"])
    assert {type(error) for _, error in errors.reported} == {NotImplementedError}
    assert purgatory.cancel_for_key("k") == errors.operations[:1]


def test_the_clock_must_not_go_back() -> None:
    purgatory, operation = ManualPurgatory().core, RecordingOperation()
    assert not purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    with pytest.raises(AssertionError, match="now_ms=999 purgatory=1000"):
        purgatory.advance_clock(999, 10)
    with pytest.raises(AssertionError, match="now_ms=999 purgatory=1000"):
        purgatory.try_complete_else_watch(RecordingOperation(), ["k"], 999)
    assert purgatory.cancel(operation)


class Payload:
    """A large object that an operation holds."""


ENDS: dict[str, Callable[[ManualPurgatory], object]] = {
    "check": lambda purgatory: purgatory.check_and_complete("k"),
    "force": lambda purgatory: purgatory.force_complete_for_key("k"),
    "cancel": lambda purgatory: purgatory.cancel_for_key("k"),
    "expire": lambda purgatory: purgatory.clock.jump(10) and purgatory.advance_clock(),
    "shut down": lambda purgatory: purgatory.close(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("keys", [["k"], ["k", "a", "b", "c", "d"]], ids=["one key", "five keys"])
def test_payloads_die_with_their_operation(end: Callable[[object], object], keys: list[str]) -> None:
    purgatory = ManualPurgatory()
    operations = register(purgatory, *keys, timeout_ms=10)
    operations[0].is_met = True
    operations[0].payload = payload = Payload()  # type: ignore[attr-defined]
    dead = weakref.ref(payload)
    del payload
    operations.clear()
    assert dead() is not None
    end(purgatory)
    assert dead() is None


@pytest.mark.slow
def test_completions_do_not_recurse() -> None:
    purgatory, log = ManualPurgatory(), list[str]()
    chain = register(purgatory, "k", count=2_000)
    for number, operation in enumerate(chain):
        operation.name, operation.log = str(number), log
    for operation, successor in itertools.pairwise(chain):
        operation.when_completed = successor.force_complete
    assert chain[0].force_complete()
    assert log == [str(number) for number in range(2_000)]
    assert purgatory.pending == 0


@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_operation_forced_while_it_is_registered_leaves_nothing(evaluation: int) -> None:
    purgatory, operation = ManualPurgatory(), RecordingOperation(1_000)

    def force_as_another_thread() -> None:
        """The other thread saw the operation unregistered, and continues only now."""
        if operation.evaluations == evaluation:
            claim, operation.purgatory_claim = operation.purgatory_claim, None
            operation.force_complete()
            operation.purgatory_claim = claim

    operation.when_evaluated = force_as_another_thread
    purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.check_and_complete("key")
    purgatory.clock.jump(5_000)
    purgatory.advance_clock()
    assert operation.effects == ["complete"]
    assert (purgatory.watched, purgatory.num_delayed, purgatory.next_expiration_ms()) == (0, 0, -1)
