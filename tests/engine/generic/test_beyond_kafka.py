"""The generic purgatory: what it does beyond Kafka's cases: cancel, shutdown, error handlers, re-entry, limits."""

import pytest

from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryClosed, ReentrantCall
from purgatory.engine.generic.operation import GenericOperation
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import Errors, RecordingOperation, fail, never_told
from tests.engine.generic.test_purgatory import assert_empty, make, register


def test_cancel_one() -> None:
    """An operation is cancelled once, with its effect, registered or not; an ended or foreign one is not."""
    purgatory = make()
    first, second = register(purgatory, ["k"], count=2)
    assert purgatory.cancel(first)
    assert not purgatory.cancel(first)
    assert (first.outcome, first.effects) == (CANCELLED, ["complete"])
    assert not make().cancel(second)
    assert second.outcome == PENDING
    never_registered = RecordingOperation()
    assert purgatory.cancel(never_registered)
    assert (never_registered.outcome, never_registered.effects) == (CANCELLED, ["complete"])
    with pytest.raises(OperationEnded, match="cancelled"):
        purgatory.try_complete_else_watch(never_registered, ["k"], 0)
    forced = RecordingOperation()
    forced.force_complete()
    assert not purgatory.cancel(forced)
    assert forced.effects == ["complete"]


def test_shut_down_answers_everyone_in_slices() -> None:
    """Shutdown ends all that is pending as SHUTTING_DOWN, a bounded number at a time, and refuses registrations."""
    purgatory = make()
    operations = register(purgatory, ["a", "b"], count=10) + register(purgatory, ["c"], count=1, timeout_ms=0)
    assert [purgatory.shut_down(4) for _ in range(4)] == [4, 4, 3, 0]
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}
    assert all(operation.effects == ["complete"] for operation in operations)
    assert_empty(purgatory)
    late = RecordingOperation()
    with pytest.raises(PurgatoryClosed):
        purgatory.try_complete_else_watch(late, ["k"], 0)
    assert (late.outcome, late.evaluations) == (PENDING, 0)


def test_shut_down_by_on_error_while_registering() -> None:
    """Even when the error handler shuts the purgatory down under a registration, that operation is answered."""
    purgatory = DelayedOperationPurgatory(0, lambda operation, error: shut_down_all())

    def shut_down_all() -> None:
        operation.when_evaluated = None
        while purgatory.shut_down(10):
            pass

    operation = RecordingOperation()
    operation.when_evaluated = fail
    assert not purgatory.try_complete_else_watch(operation, ["k"], 0)
    assert (operation.outcome, operation.effects) == (SHUTTING_DOWN, ["complete"])
    assert_empty(purgatory)


def test_error_handler_may_end_the_failed_operation() -> None:
    """on_error may cancel the operation it is told about; the check does not count that as completed."""
    purgatory = DelayedOperationPurgatory(0, lambda operation, error: cancelled.append(purgatory.cancel(operation)))
    cancelled: list[bool] = []
    (operation,) = register(purgatory, ["k"])
    operation.when_evaluated = fail
    assert purgatory.check_and_complete("k") == 0
    assert cancelled == [True]
    assert (operation.outcome, operation.effects) == (CANCELLED, ["complete"])
    assert_empty(purgatory)


def test_an_error_handler_that_raises_reaches_the_caller() -> None:
    """What on_error itself raises is not swallowed; nothing is lost and the next call goes on with the effects."""
    errors = Errors()
    handlers = [fail]

    def on_error(operation: GenericOperation, error: Exception) -> None:
        if handlers:
            handlers.pop()("handler")
        errors(operation, error)

    purgatory = DelayedOperationPurgatory(0, on_error)
    first, second = register(purgatory, ["k"], count=2)
    first.is_met = second.is_met = True
    first.when_completed = fail
    with pytest.raises(ArithmeticError, match="handler"):
        purgatory.check_and_complete("k")
    assert (first.outcome, second.outcome) == (SATISFIED, SATISFIED)
    assert second.effects == []
    assert purgatory.check_and_complete("other") == 0
    assert second.effects == ["complete"]


def test_try_complete_must_not_call_back() -> None:
    """A try_complete that calls its purgatory is told so; the purgatory stays whole."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    (operation,) = register(purgatory, ["k"])
    operation.when_evaluated = lambda: purgatory.check_and_complete("k")
    assert purgatory.check_and_complete("k") == 0
    assert [type(error) for _, error in errors.told] == [ReentrantCall]
    operation.when_evaluated = None
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1


def test_try_complete_may_force_another() -> None:
    """One operation's check may force another one; both are answered after the visit, neither is counted twice."""
    purgatory, log = make(), list[str]()
    first, second = register(purgatory, ["k"], count=2)
    first.name, second.name, first.log, second.log = "first", "second", log, log
    first.is_met = True
    first.when_evaluated = second.force_complete
    assert purgatory.check_and_complete("k") == 1
    assert log == ["second", "first"]
    assert second.evaluations == 2
    assert_empty(purgatory)


def test_operations_are_registered_once() -> None:
    """Registering a pending operation again is an error, and so is an ended one: it must not look as if watched."""
    purgatory = make()
    (operation,) = register(purgatory, ["k"])
    with pytest.raises(ValueError, match="pending"):
        purgatory.try_complete_else_watch(operation, ["other"], 0)
    operation.force_complete()
    with pytest.raises(OperationEnded, match="satisfied"):
        purgatory.try_complete_else_watch(operation, ["k"], 0)
    assert operation.effects == ["complete"]
    assert_empty(purgatory)


def test_force_complete_before_registration() -> None:
    """An operation nobody registered runs its effects on the caller, once."""
    operation = RecordingOperation()
    assert operation.force_complete()
    assert not operation.force_complete()
    assert operation.effects == ["complete"]


def test_operations_without_try_complete_are_refused() -> None:
    """The base class says what is missing, through on_error."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    purgatory.try_complete_else_watch(GenericOperation(10), ["k"], 0)
    assert {type(error) for _, error in errors.told} == {NotImplementedError}
    assert purgatory.advance_clock(10, 10) == 1


def test_clock_must_not_go_back() -> None:
    """An earlier now is a broken invariant, reported with both times; what was pending still is."""
    purgatory = DelayedOperationPurgatory(100, never_told)
    (operation,) = register(purgatory, ["k"])
    with pytest.raises(AssertionError, match="now_ms=99 purgatory=100"):
        purgatory.advance_clock(99, 10)
    with pytest.raises(AssertionError, match="now_ms=99 purgatory=100"):
        purgatory.try_complete_else_watch(RecordingOperation(), ["k"], 99)
    assert purgatory.cancel(operation)
    assert_empty(purgatory)


def test_coarse_tick_is_never_early() -> None:
    """With a tick of 20 ms an operation expires at the first tick at or after its deadline."""
    purgatory = DelayedOperationPurgatory(7, never_told, tick_ms=20)
    (operation,) = register(purgatory, ["k"], timeout_ms=430)
    assert purgatory.advance_clock(439, 10) == 0
    assert purgatory.advance_clock(440, 10) == 1
    assert operation.outcome == EXPIRED


def test_what_was_due_at_once_counts_against_the_limit() -> None:
    """Of two that had no time and two that have run out of theirs, a slice of three expires three."""
    errors, log = Errors(), list[str]()
    purgatory = DelayedOperationPurgatory(0, errors)
    for name, timeout_ms in (("a", 5), ("b", 0), ("c", 7), ("d", -1)):
        assert not purgatory.try_complete_else_watch(RecordingOperation(timeout_ms, name, log), ["k"], 0)
    assert purgatory.advance_clock(10, 3) == 3
    assert log == ["b", "d", "a"]
    assert purgatory.next_expiration_ms() <= 10
    assert purgatory.advance_clock(10, 3) == 1
    assert log == ["b", "d", "a", "c"]
    assert purgatory.next_expiration_ms() == -1
    assert errors.told == []
