"""The generic purgatory against hostile use: arguments, keys, answers and interrupts that nobody should send."""

# ruff: noqa: ANN401 - what is wrong on purpose has no type
import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED, SHUTTING_DOWN
from purgatory.engine.errors import PurgatoryFull
from purgatory.engine.generic.operation import GenericOperation
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import Errors, RecordingOperation, fail, never_told

INTERRUPTS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]


class Key:
    """A key whose hash is computed by a function of how often it was asked for before."""

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


def make(on_error: Any = never_told, **settings: Any) -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory(1_000, on_error, **settings)


def assert_empty(purgatory: DelayedOperationPurgatory) -> None:
    assert purgatory.watched == purgatory.num_delayed == purgatory.pending == 0
    assert purgatory.next_expiration_ms() == -1
    assert not any(purgatory._operations)


@pytest.mark.parametrize("timeout_ms", [2**62, sys.maxsize, 2**63, 10**30, np.int64(2**62)])
def test_timeouts_of_any_size_are_clamped(timeout_ms: int) -> None:
    """A timeout beyond all clocks is taken as 2**62 ms: registered with a timer like any other, and not yet due."""
    purgatory, operation = make(), RecordingOperation(timeout_ms)
    assert not purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert (purgatory.pending, purgatory.num_delayed) == (1, 1)
    assert 0 <= purgatory.next_expiration_ms() <= 2**62
    assert purgatory.advance_clock(2**61, 10) == 0
    assert purgatory.cancel(operation)
    assert_empty(purgatory)


def test_the_longest_past_and_no_end_at_all() -> None:
    """A hugely negative timeout is due at once; None never is, and can still be completed."""
    purgatory, late, endless = make(), RecordingOperation(-(10**30)), RecordingOperation(None)
    for operation in (late, endless):
        assert not purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert (purgatory.pending, purgatory.num_delayed) == (2, 1)
    assert purgatory.advance_clock(1_000, 10) == 1
    assert (late.outcome, purgatory.next_expiration_ms()) == (EXPIRED, -1)
    assert purgatory.advance_clock(2**62, 10) == 0
    endless.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert_empty(purgatory)


@pytest.mark.parametrize(
    ("keys", "error", "says"),
    [
        (["a", ["b"]], TypeError, "keys: unhashable type: 'list'"),
        (["a", failing_at(0, ArithmeticError("hash"))], ArithmeticError, "hash"),
        (["a", failing_at(1, ArithmeticError("hash"))], ArithmeticError, "hash"),
        ("orders-3", TypeError, "keys: one string, 'orders-3'"),
        (b"orders-3", TypeError, "keys: one string"),
        (7, TypeError, "keys: 'int' object is not iterable"),
        (iter(()), ValueError, "keys is empty"),
    ],
)
def test_keys_are_looked_at_before_anything_changes(keys: Any, error: type[Exception], says: str) -> None:
    """A registration with a bad key raises, and leaves nothing: the operation can be registered, all can be ended."""
    purgatory, operation, other = make(), RecordingOperation(), RecordingOperation()
    purgatory.try_complete_else_watch(other, ["a"], 1_000)
    with pytest.raises(error, match=says):
        purgatory.try_complete_else_watch(operation, keys, 1_000)
    assert (purgatory.pending, purgatory.watched, purgatory.num_delayed) == (1, 1, 1)
    assert not purgatory.try_complete_else_watch(operation, ["a"], 1_000)
    assert [purgatory.shut_down(10), purgatory.shut_down(10)] == [2, 0]
    assert {operation.outcome, other.outcome} == {SHUTTING_DOWN}
    assert_empty(purgatory)


@pytest.mark.parametrize(
    "key",
    [Key(lambda asked: asked), failing_at(3, ArithmeticError("hash"))],
    ids=["changes its hash", "raises at last"],
)
def test_a_key_that_can_not_be_found_again(key: Key) -> None:
    """Its operation ends all the same, on_error is told why, and no other is hurt, whoever gets the slot next."""
    errors = Errors()
    purgatory, log = make(errors), list[str]()
    operations = [RecordingOperation(name=name, log=log) for name in "abc"]
    keys: list[Iterable[Any]] = [["k"], ["k", key, "l"], ["l"]]
    for operation, on in zip(operations, keys, strict=True):
        assert not purgatory.try_complete_else_watch(operation, on, 1_000)
    assert operations[1].force_complete()
    assert [operation for operation, _ in errors.told] == [operations[1]]
    successor = RecordingOperation(name="d", log=log)
    purgatory.try_complete_else_watch(successor, ["l"], 1_000)
    for operation in (*operations, successor):
        operation.is_met = True
    assert [purgatory.check_and_complete("k"), purgatory.check_and_complete("l")] == [1, 2]
    assert log == ["b", "a", "c", "d"]
    assert_empty(purgatory)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("evaluation", [1, 2])
def test_an_interrupt_at_registration_leaves_nothing(interrupt: type[BaseException], evaluation: int) -> None:
    """Ctrl-C in the first or second look: the caller hears of it, nothing is watched, and it may be registered anew."""
    purgatory, operation = make(), RecordingOperation(5)

    def interrupt_once() -> None:
        if operation.evaluations == evaluation:
            raise interrupt

    operation.when_evaluated = interrupt_once
    with pytest.raises(interrupt):
        purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert_empty(purgatory)
    assert not purgatory.is_registered(operation)
    operation.when_evaluated = None
    assert not purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert purgatory.is_registered(operation)
    assert purgatory.advance_clock(1_005, 10) == 1
    assert operation.effects == ["complete", "expire"]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_an_interrupt_in_a_check_skips_nobody(interrupt: type[BaseException]) -> None:
    """The others on the key are looked at and answered before it is raised; the interrupted one stays, and expires."""
    purgatory = make()
    operations = [RecordingOperation(5) for _ in range(5)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"], 1_000)
        operation.is_met = True

    def raise_it() -> None:
        raise interrupt

    operations[1].when_evaluated = operations[3].when_evaluated = raise_it
    with pytest.raises(interrupt) as raised:
        purgatory.check_and_complete("k")
    assert isinstance(raised.value.__context__, interrupt)
    assert [operation.effects for operation in operations] == [["complete"], [], ["complete"], [], ["complete"]]
    assert purgatory.advance_clock(1_005, 10) == 2
    assert operations[1].effects == operations[3].effects == ["complete", "expire"]
    assert_empty(purgatory)


def test_an_error_handler_that_raises_at_registration_leaves_nothing() -> None:
    """What on_error raises in the midst of a registration or a check reaches the caller, and nothing is half done."""

    def on_error(operation: GenericOperation, error: Exception) -> None:
        raise LookupError("handler")

    purgatory, operation, other = make(on_error), RecordingOperation(5), RecordingOperation(5)
    operation.when_evaluated = lambda: fail() if operation.evaluations == 2 else None
    with pytest.raises(LookupError):
        purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert_empty(purgatory)
    for one in (operation, other):
        purgatory.try_complete_else_watch(one, ["k"], 1_000)
    operation.when_evaluated, other.is_met = fail, True
    with pytest.raises(LookupError):
        purgatory.check_and_complete("k")
    assert (operation.outcome, other.effects) == (PENDING, ["complete"])


def test_an_interrupt_at_expiry_costs_the_others_nothing() -> None:
    """A key that is interrupted while its operation expires: that one is answered, and those behind it stay due."""
    purgatory = make()
    operations = [RecordingOperation(5) for _ in range(3)]
    for operation, key in zip(operations, ["k", failing_at(3, KeyboardInterrupt()), "k"], strict=True):
        purgatory.try_complete_else_watch(operation, [key], 1_000)
    with pytest.raises(KeyboardInterrupt):
        purgatory.advance_clock(1_005, 10)
    assert purgatory.next_expiration_ms() <= 1_005
    assert purgatory.advance_clock(1_005, 10) == 1
    assert [operation.effects for operation in operations] == [["complete", "expire"]] * 3
    assert (purgatory.pending, purgatory.num_delayed) == (0, 0)


@pytest.mark.parametrize(
    ("answer", "is_met"),
    [(None, False), (0, False), ([], False), (np.False_, False), (1, True), (["x"], True), (np.True_, True)],
)
def test_answers_are_read_by_their_truth(answer: object, is_met: bool) -> None:
    """try_complete may answer with anything: it counts as `if` would read it, in both builds, and is no error."""

    class Answering(RecordingOperation):
        def try_complete(self) -> Any:
            return answer

    purgatory, operation = make(), Answering()
    assert purgatory.try_complete_else_watch(operation, ["k"], 1_000) is is_met
    assert operation.outcome == (SATISFIED if is_met else PENDING)


def test_answers_without_a_truth_are_errors() -> None:
    """A coroutine would be true before it has looked, an array has no truth: on_error is told, the operation waits."""

    class Looking(RecordingOperation):
        async def try_complete(self) -> bool:  # type: ignore[override]
            return True

    class Array(RecordingOperation):
        def try_complete(self) -> Any:
            return np.zeros(2)

    errors = Errors()
    purgatory = make(errors)
    for operation in (Looking(), Array()):
        assert not purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    assert [type(error) for _, error in errors.told] == [TypeError, TypeError, ValueError, ValueError]
    assert "try_complete is a coroutine function" in str(errors.told[0][1])


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"tick_ms": 0}, ValueError, r"tick_ms: 0 is not in 1\.\."),
        ({"tick_ms": 10**30}, ValueError, "tick_ms"),
        ({"tick_ms": "1"}, TypeError, "tick_ms: a whole number is expected, not '1'"),
        ({"tick_ms": 1.5}, TypeError, "tick_ms"),
        ({"wheel_size": 1}, ValueError, r"wheel_size: 1 is not in 2\.\."),
        ({"wheel_size": None}, TypeError, "wheel_size"),
        ({"pending_max": 0}, ValueError, "pending_max: 0"),
        ({"pending_max": "many"}, TypeError, "pending_max"),
    ],
)
def test_settings_are_checked_by_name(settings: dict[str, Any], error: type[Exception], says: str) -> None:
    """A setting of the wrong type or out of range is refused by an error that names it."""
    with pytest.raises(error, match=says):
        make(**settings)


@pytest.mark.parametrize("timeout_ms", ["5", 1.5, [5]])
def test_timeouts_are_whole_numbers(timeout_ms: Any) -> None:
    """An operation with a timeout that is no whole number is refused when it is made."""
    with pytest.raises(TypeError, match="timeout_ms: a whole number is expected"):
        RecordingOperation(timeout_ms)


def test_no_more_than_pending_max() -> None:
    """The one too many is refused, unless it completes at once, and may come again when there is room."""
    purgatory, late, met = make(pending_max=2), RecordingOperation(), RecordingOperation()
    first, second = RecordingOperation(), RecordingOperation()
    for operation in (first, second):
        purgatory.try_complete_else_watch(operation, ["k"], 1_000)
    with pytest.raises(PurgatoryFull, match="2 operations are pending"):
        purgatory.try_complete_else_watch(late, ["k"], 1_000)
    met.is_met = True
    assert purgatory.try_complete_else_watch(met, ["k"], 1_000)
    assert (late.outcome, late.effects, purgatory.pending, purgatory.watched) == (PENDING, [], 2, 2)
    assert purgatory.cancel(first)
    assert not purgatory.try_complete_else_watch(late, ["k"], 1_000)
    assert purgatory.check_and_complete("k") == 0
    late.is_met = True
    assert purgatory.check_and_complete("k") == 1


def test_force_complete_for_key() -> None:
    """Ends all on the key as SATISFIED, met or not, and returns them in order; other keys keep theirs."""
    purgatory = make()
    operations = [RecordingOperation() for _ in range(3)]
    for operation, keys in zip(operations, (["a", "b"], ["b"], ["a"]), strict=True):
        purgatory.try_complete_else_watch(operation, keys, 1_000)
    assert [purgatory.is_registered(operation) for operation in operations] == [True] * 3
    assert purgatory.force_complete_for_key("a") == [operations[0], operations[2]]
    assert [operation.outcome for operation in operations] == [SATISFIED, PENDING, SATISFIED]
    assert [purgatory.is_registered(operation) for operation in operations] == [False, True, False]
    assert (purgatory.watched, purgatory.key_count) == (1, 1)
    assert purgatory.force_complete_for_key("a") == []
