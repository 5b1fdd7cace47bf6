"""The generic purgatory: effects, error handlers, re-entry and leaks; then bad arguments, keys and return values, and
interrupts. Histories are in test_histories.py.
"""

# ruff: noqa: ANN401 - values that are invalid on purpose have no type
import asyncio
import itertools
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purgatory import embedded
from purgatory.engine.codes import CANCELLED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import OperationEnded, PurgatoryFull, ReentrantCall
from purgatory.engine.generic.operation import GenericOperation
from tests.engine.generic.recording_operation import (
    Errors,
    ManualPurgatory,
    RecordingOperation,
    assert_empty,
    fail,
    register,
    threads_of,
)
from tests.kit.recorded import assert_values_recorded

ARGUMENTS = Path(__file__).with_name("arguments.txt")


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


def test_shut_down_ends_a_bounded_number_at_a_time() -> None:
    purgatory = ManualPurgatory()
    operations = register(purgatory, "a", "b", count=10) + register(purgatory, "c", timeout_ms=0)
    assert [purgatory.core.shut_down(4) for _ in range(4)] == [4, 4, 3, 0]
    assert {operation.outcome for operation in operations} == {SHUTTING_DOWN}


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


# Misuse.

interrupts = pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])


class Key:
    """A key whose hash depends on how often it was computed before."""

    def __init__(self, hashed: Callable[[int], int]) -> None:
        self.asked = 0
        self._hashed = hashed

    def __hash__(self) -> int:
        self.asked += 1
        return self._hashed(self.asked - 1)


def failing_at(time: int, error: BaseException) -> Key:
    def hashed(asked: int) -> int:
        if asked == time:
            raise error
        return 7

    return Key(hashed)


@pytest.mark.parametrize(
    ("make_keys", "error", "says"),
    [
        (lambda: ["a", ["b"]], TypeError, "keys: .*unhashable type: 'list'"),
        (lambda: ["a", failing_at(0, ArithmeticError("hash"))], ArithmeticError, "hash"),
        (lambda: ["a", failing_at(1, ArithmeticError("hash"))], ArithmeticError, "hash"),
        (lambda: "orders-3", TypeError, "keys: one string, 'orders-3'"),
        (lambda: b"orders-3", TypeError, "keys: one string"),
        (lambda: 7, TypeError, "keys: 'int' object is not iterable"),
        (lambda: iter(()), ValueError, "keys is empty"),
    ],
)
def test_case_25_a_bad_key_takes_no_slot(make_keys: Callable[[], Any], error: type[Exception], says: str) -> None:
    purgatory, operation = ManualPurgatory(), RecordingOperation()
    (other,) = register(purgatory, "a")
    with pytest.raises(error, match=says):
        purgatory.try_complete_else_watch(operation, make_keys())
    assert (purgatory.pending, purgatory.watched, purgatory.num_delayed) == (1, 1, 1)
    assert not purgatory.try_complete_else_watch(operation, ["a"])
    assert (purgatory.close(), purgatory.close()) == (2, 0)
    assert {operation.outcome, other.outcome} == {SHUTTING_DOWN}
    assert_empty(purgatory)


@pytest.mark.parametrize(
    "key",
    [Key(lambda asked: asked), failing_at(3, ArithmeticError("hash"))],
    ids=["changes its hash", "raises at last"],
)
def test_operation_of_a_key_that_cannot_be_found_again_ends(key: Key) -> None:
    errors, log = Errors(), list[str]()
    purgatory = ManualPurgatory(errors)
    operations = [RecordingOperation(name=name, log=log) for name in "abcd"]
    keys: list[Iterable[Any]] = [["k"], ["k", key, "l"], ["l"]]
    for operation, on in zip(operations, keys, strict=False):
        assert not purgatory.try_complete_else_watch(operation, on)
    assert operations[1].force_complete()
    assert errors.operations == [operations[1]]
    purgatory.try_complete_else_watch(operations[3], ["l"])
    for operation in operations:
        operation.is_met = True
    assert [purgatory.check_and_complete("k"), purgatory.check_and_complete("l")] == [1, 2]
    assert log == ["b", "a", "c", "d"]
    assert purgatory.watched == purgatory.num_delayed == purgatory.pending == 0
    assert not any(purgatory.core._operations)


@interrupts
@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_interrupt_at_registration_leaves_nothing(interrupt: type[BaseException], evaluation: int) -> None:
    purgatory, operation = ManualPurgatory(), RecordingOperation(5)

    def interrupt_once() -> None:
        if operation.evaluations == evaluation:
            raise interrupt

    operation.when_evaluated = interrupt_once
    with pytest.raises(interrupt):
        purgatory.try_complete_else_watch(operation, ["k"])
    assert_empty(purgatory)
    assert not purgatory.is_registered(operation)
    operation.when_evaluated = None
    assert not purgatory.try_complete_else_watch(operation, ["k"])
    assert purgatory.is_registered(operation)
    purgatory.clock.jump(5)
    assert purgatory.advance_clock() == 1
    assert operation.effects == ["complete", "expire"]


def test_an_interrupt_after_the_end_leaves_it_ended() -> None:
    purgatory, operation = ManualPurgatory(), RecordingOperation()

    def end_and_interrupt() -> None:
        operation.force_complete()
        raise KeyboardInterrupt

    operation.when_evaluated = end_and_interrupt
    with pytest.raises(KeyboardInterrupt):
        purgatory.try_complete_else_watch(operation, ["k"])
    assert operation.effects == ["complete"]
    assert_empty(purgatory)
    with pytest.raises(OperationEnded):
        purgatory.try_complete_else_watch(operation, ["k"])


@interrupts
def test_an_interrupt_in_a_check_skips_nobody(interrupt: type[BaseException]) -> None:
    purgatory = ManualPurgatory()
    operations = register(purgatory, "k", count=5, timeout_ms=5)

    def raise_it() -> None:
        raise interrupt

    for operation in operations:
        operation.is_met = True
    operations[1].when_evaluated = operations[3].when_evaluated = raise_it
    with pytest.raises(interrupt) as raised:
        purgatory.check_and_complete("k")
    assert isinstance(raised.value.__context__, interrupt)
    assert [operation.effects for operation in operations] == [["complete"], [], ["complete"], [], ["complete"]]
    purgatory.clock.jump(5)
    assert purgatory.advance_clock() == 2
    assert operations[1].effects == operations[3].effects == ["complete", "expire"]
    assert_empty(purgatory)


def test_an_interrupt_at_expiry_costs_the_others_nothing() -> None:
    purgatory = ManualPurgatory()
    operations = [RecordingOperation(5) for _ in range(3)]
    for operation, key in zip(operations, ["k", failing_at(3, KeyboardInterrupt()), "k"], strict=True):
        purgatory.try_complete_else_watch(operation, [key])
    purgatory.clock.jump(5)
    with pytest.raises(KeyboardInterrupt):
        purgatory.advance_clock()
    assert purgatory.next_expiration_ms() <= purgatory.clock.now_ms()
    assert purgatory.advance_clock() == 1
    assert [operation.effects for operation in operations] == [["complete", "expire"]] * 3
    assert (purgatory.pending, purgatory.num_delayed) == (0, 0)


class Answering(RecordingOperation):
    """Its `try_complete` returns the result of a function."""

    def __init__(self, answer: Callable[[], object]) -> None:
        super().__init__()
        self._answer = answer

    def try_complete(self) -> Any:
        return self._answer()


@pytest.mark.parametrize(
    ("answer", "is_met"),
    [(None, False), (0, False), ([], False), (np.False_, False), (1, True), (["x"], True), (np.True_, True)],
)
def test_answers_are_read_by_their_truth(answer: object, is_met: bool) -> None:
    operation = Answering(lambda: answer)
    assert ManualPurgatory().try_complete_else_watch(operation, ["k"]) is is_met
    assert operation.outcome == (SATISFIED if is_met else PENDING)


async def look() -> bool:
    return True


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [(look, TypeError, "try_complete is a coroutine function"), (lambda: np.zeros(2), ValueError, "ambiguous")],
)
def test_answers_without_a_truth_are_errors(answer: Callable[[], object], error: type[Exception], says: str) -> None:
    errors = Errors()
    assert not ManualPurgatory(errors).try_complete_else_watch(Answering(answer), ["k"])
    assert [type(one) for _, one in errors.reported] == [error, error]
    assert says in str(errors.reported[0][1])


def test_arguments_are_checked_by_name() -> None:
    """As in arguments.txt."""
    names = {**vars(embedded), "ManualPurgatory": ManualPurgatory, "RecordingOperation": RecordingOperation}
    assert_values_recorded(ARGUMENTS, names)
    assert threads_of("bad") == []
