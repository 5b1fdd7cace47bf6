"""The generic purgatory: the cases 24 to 46 and 93 to 98 of docs/semantics.md that need one thread only."""

from collections.abc import Callable

import pytest

from purgatory.engine.codes import CANCELLED, EXPIRED, PENDING, SATISFIED
from purgatory.engine.generic.operation import ActionQueue
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import Errors, RecordingOperation, fail, never_told


def make() -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory(0, never_told)


def register(
    purgatory: DelayedOperationPurgatory, keys: list[str], count: int = 1, timeout_ms: int = 60_000
) -> list[RecordingOperation]:
    operations = [RecordingOperation(timeout_ms) for _ in range(count)]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, keys, purgatory.now_ms)
    return operations


def assert_empty(purgatory: DelayedOperationPurgatory) -> None:
    assert purgatory.watched == purgatory.num_delayed == purgatory.pending == purgatory.key_count == 0
    assert purgatory.next_expiration_ms() == -1
    assert not any(purgatory._operations)


def test_case_24_completed_at_registration() -> None:
    """A condition that holds already completes the operation at once: never watched, never timed, answered once."""
    purgatory, operation = make(), RecordingOperation()
    operation.is_met = True
    assert purgatory.try_complete_else_watch(operation, ["k"], 0)
    assert (operation.outcome, operation.effects, operation.evaluations) == (SATISFIED, ["complete"], 1)
    assert_empty(purgatory)


def test_case_25_no_keys() -> None:
    """No keys: an error before anything else; try_complete is not called and nothing registered."""
    purgatory, operation = make(), RecordingOperation()
    with pytest.raises(ValueError, match="keys is empty"):
        purgatory.try_complete_else_watch(operation, [], 0)
    assert operation.evaluations == 0
    assert_empty(purgatory)


def test_case_26_condition_turns_true_while_registering() -> None:
    """Found by the second evaluation: True, and no leftovers stay behind in the lists."""
    purgatory, operation = make(), RecordingOperation()

    def meet_at_second() -> None:
        operation.is_met = operation.evaluations == 2

    operation.when_evaluated = meet_at_second
    assert purgatory.try_complete_else_watch(operation, ["a", "b", "c"], 0)
    assert operation.effects == ["complete"]
    assert_empty(purgatory)


def test_case_27_unknown_key() -> None:
    """Checking a key that nobody watches completes nothing."""
    purgatory = make()
    assert purgatory.check_and_complete("unknown") == 0
    assert_empty(purgatory)


def test_case_28_two_keys() -> None:
    """Completed through one key, an operation is gone from the other at once: watched 2, then 0."""
    purgatory = make()
    (operation,) = register(purgatory, ["k1", "k2"])
    assert (purgatory.watched, purgatory.key_count) == (2, 2)
    operation.is_met = True
    assert purgatory.check_and_complete("k1") == 1
    assert_empty(purgatory)
    assert purgatory.check_and_complete("k2") == 0
    assert operation.effects == ["complete"]


def test_case_29_completed_directly() -> None:
    """Operations forced from outside leave every list and the timer: watched falls with them, no leftovers."""
    purgatory = make()
    (r1,) = register(purgatory, ["a"])
    (r2,) = register(purgatory, ["a", "b"])
    (r3,) = register(purgatory, ["a", "b", "c"])
    assert (purgatory.num_delayed, purgatory.watched) == (3, 6)
    assert r2.force_complete()
    assert (purgatory.num_delayed, purgatory.watched) == (2, 4)
    assert r3.force_complete()
    assert (purgatory.num_delayed, purgatory.watched) == (1, 1)
    assert not r3.force_complete()
    assert [purgatory.check_and_complete(key) for key in "abc"] == [0, 0, 0]
    assert purgatory.watched == 1
    assert [operation.effects for operation in (r1, r2, r3)] == [[], ["complete"], ["complete"]]


def test_case_31_completed_by_the_timer() -> None:
    """At its deadline, not before, an operation expires: on_complete and then on_expiration; others are untouched."""
    purgatory = make()
    (other,) = register(purgatory, ["k"])
    (operation,) = register(purgatory, ["k"], timeout_ms=20)
    assert purgatory.advance_clock(19, 100) == 0
    assert operation.effects == []
    assert purgatory.advance_clock(20, 100) == 1
    assert (operation.outcome, operation.effects) == (EXPIRED, ["complete", "expire"])
    assert (other.outcome, other.effects, other.evaluations) == (PENDING, [], 2)


@pytest.mark.parametrize("event_first", [True, False])
def test_case_32_event_and_expiry_in_the_same_tick(event_first: bool) -> None:
    """Whichever comes first wins; on_complete runs once, on_expiration only if the timer won."""
    purgatory = make()
    (operation,) = register(purgatory, ["k"], timeout_ms=20)
    operation.is_met = True
    steps: list[Callable[[], int]] = [
        lambda: purgatory.check_and_complete("k"),
        lambda: purgatory.advance_clock(20, 10),
    ]
    assert [step() for step in (steps if event_first else reversed(steps))] == [1, 0]
    assert operation.effects == (["complete"] if event_first else ["complete", "expire"])
    assert_empty(purgatory)


def test_case_35_no_expiry_after_completion() -> None:
    """Completed by a check: its deadline passes without on_expiration."""
    purgatory = make()
    (operation,) = register(purgatory, ["k"], timeout_ms=20)
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert purgatory.advance_clock(1000, 10) == 0
    assert operation.effects == ["complete"]


def test_case_36_cancel_for_key_answers() -> None:
    """Cancel by key ends the operation as CANCELLED, tells it, and unlinks it from its other keys too."""
    purgatory = make()
    (operation,) = register(purgatory, ["k1", "k2"], timeout_ms=20)
    (other,) = register(purgatory, ["k2"])
    assert purgatory.cancel_for_key("k1") == [operation]
    assert (operation.outcome, operation.effects) == (CANCELLED, ["complete"])
    operation.is_met = True
    assert purgatory.check_and_complete("k2") == 0
    assert purgatory.advance_clock(1000, 10) == 0
    assert (operation.effects, other.outcome, purgatory.watched) == (["complete"], PENDING, 1)


def test_case_37_cancel_for_unknown_key() -> None:
    """Nothing to cancel: an empty list."""
    assert make().cancel_for_key("unknown") == []


def test_case_38_nothing_to_purge() -> None:
    """A quiet key keeps nothing of operations completed through another key, however many."""
    purgatory = make()
    operations = register(purgatory, ["busy", "quiet"], count=4)
    for left, operation in zip((3, 2, 1, 0), operations, strict=True):
        operation.is_met = True
        assert purgatory.check_and_complete("busy") == 1
        assert purgatory.watched == 2 * left
    assert_empty(purgatory)


def test_case_39_timers_disabled() -> None:
    """Without timers nothing expires and nothing is delayed; checks still work."""
    purgatory = DelayedOperationPurgatory(0, never_told, timer_enabled=False)
    (operation,) = register(purgatory, ["k"], timeout_ms=1)
    assert purgatory.num_delayed == 0
    assert purgatory.advance_clock(10_000, 10) == 0
    assert purgatory.next_expiration_ms() == -1
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert_empty(purgatory)


def test_case_40_duplicate_keys_count_once() -> None:
    """The same key twice is one watch."""
    purgatory = make()
    (operation,) = register(purgatory, ["k", "k"])
    assert purgatory.watched == 1
    operation.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert_empty(purgatory)


def test_case_42_try_complete_raises() -> None:
    """What one operation's check raises is handed over; the next is visited; the failed one stays watched and timed."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    first, second = register(purgatory, ["k"], count=2)
    first.when_evaluated = fail
    second.is_met = True
    assert purgatory.check_and_complete("k") == 1
    assert [(operation, str(error)) for operation, error in errors.told] == [(first, "planted")]
    assert (first.outcome, second.outcome) == (PENDING, SATISFIED)
    assert (purgatory.watched, purgatory.num_delayed) == (1, 1)
    assert purgatory.advance_clock(60_000, 10) == 1
    assert first.effects == ["complete", "expire"]


def test_case_42_try_complete_raises_at_registration() -> None:
    """A check that fails at registration counts as not yet: the operation is watched, and expires."""
    errors = Errors()
    purgatory, operation = DelayedOperationPurgatory(0, errors), RecordingOperation(5)
    operation.when_evaluated = fail
    assert not purgatory.try_complete_else_watch(operation, ["k"], 0)
    assert len(errors.told) == 2
    assert purgatory.advance_clock(5, 10) == 1
    assert operation.effects == ["complete", "expire"]
    assert_empty(purgatory)


def test_case_43_on_complete_raises() -> None:
    """Completed all the same: counted, never called again, no timer left; on_error is told."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    first, second = register(purgatory, ["k"], count=2, timeout_ms=20)
    first.is_met = second.is_met = True
    first.when_completed = fail
    assert purgatory.check_and_complete("k") == 2
    assert first.is_completed
    assert [operation for operation, _ in errors.told] == [first]
    assert purgatory.advance_clock(100, 10) == 0
    assert (first.effects, second.effects) == (["complete"], ["complete"])
    assert_empty(purgatory)


def test_case_43_on_complete_raises_at_expiry() -> None:
    """When on_complete raises, on_expiration is skipped; the next expired one is served."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    first, second = register(purgatory, ["k"], count=2, timeout_ms=20)
    first.when_completed = fail
    assert purgatory.advance_clock(20, 10) == 2
    assert (first.effects, second.effects) == (["complete"], ["complete", "expire"])
    assert len(errors.told) == 1


def test_case_45_on_complete_checks_its_own_key() -> None:
    """An effect may check its own key: itself is gone, the others are visited, every count is right."""
    purgatory = make()
    first, second = register(purgatory, ["k"], count=2)
    first.is_met = True
    counts: list[int] = []

    def meet_second() -> None:
        second.is_met = True
        counts.append(purgatory.check_and_complete("k"))

    first.when_completed = meet_second
    assert purgatory.check_and_complete("k") == 1
    assert counts == [1]
    assert second.effects == ["complete"]
    assert_empty(purgatory)


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_case_46_no_time_to_wait(timeout_ms: int) -> None:
    """A timeout of 0 or less: registered, False, shown as due at once, expired by the next advance at the same time."""
    purgatory = DelayedOperationPurgatory(1000, never_told)
    (operation,) = register(purgatory, ["k"], timeout_ms=timeout_ms)
    assert operation.outcome == PENDING
    assert (purgatory.watched, purgatory.num_delayed) == (1, 1)
    assert purgatory.next_expiration_ms() <= 1000
    assert purgatory.advance_clock(1000, 10) == 1
    assert operation.effects == ["complete", "expire"]
    assert_empty(purgatory)


def test_case_46_due_at_once_can_still_be_completed() -> None:
    """An operation with no time left that is completed before the clock turns does not expire as well."""
    purgatory = make()
    (operation,) = register(purgatory, ["k"], timeout_ms=0)
    assert operation.force_complete()
    assert_empty(purgatory)
    assert purgatory.advance_clock(10, 10) == 0
    assert operation.effects == ["complete"]


def test_case_93_effects_run_in_order_and_one_failing_does_not_stop_the_next() -> None:
    """Purgatories that share an action queue answer in the order they were checked, whatever one of them raises."""
    errors, log, actions = Errors(), list[str](), ActionQueue()
    purgatories = {name: DelayedOperationPurgatory(0, errors, actions=actions) for name in "PFDS"}
    for name, purgatory in purgatories.items():
        operation = RecordingOperation(name=name, log=log)
        purgatory.try_complete_else_watch(operation, ["k"], 0)
        operation.is_met = True
        if name == "F":
            operation.when_completed = fail
    assert [purgatory.check_and_complete("k") for purgatory in purgatories.values()] == [1, 1, 1, 1]
    assert log == []
    assert actions.drain(errors) == 4
    assert log == ["P", "F", "D", "S"]
    assert [str(error) for _, error in errors.told] == ["planted"]


def test_case_94_action_queue() -> None:
    """A drain runs what was queued when it began: the failing one is reported, the one added meanwhile waits."""
    errors, log, actions = Errors(), list[str](), ActionQueue()
    purgatory = DelayedOperationPurgatory(0, errors, actions=actions)
    operations = [RecordingOperation(name=name, log=log) for name in "1234"]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"], 0)
    operations[0].when_completed = operations[3].force_complete
    operations[1].when_completed = fail
    for operation in operations[:3]:
        assert operation.force_complete()
    assert actions.drain(errors) == 3
    assert log == ["1", "2", "3"]
    assert [operation for operation, _ in errors.told] == [operations[1]]
    assert len(actions) == 1
    assert actions.drain(errors) == 1
    assert log == ["1", "2", "3", "4"]


def test_case_97_successor_registered_by_an_expiring_operation() -> None:
    """An expiring operation registers a successor on its key: watched and timed; the first counted once."""
    purgatory = make()
    (first,) = register(purgatory, ["k"], timeout_ms=20)
    successor = RecordingOperation(30)
    first.when_completed = lambda: purgatory.try_complete_else_watch(successor, ["k"], purgatory.now_ms)
    assert purgatory.advance_clock(20, 10) == 1
    assert (purgatory.watched, purgatory.num_delayed) == (1, 1)
    assert purgatory.advance_clock(49, 10) == 0
    assert purgatory.advance_clock(50, 10) == 1
    assert successor.effects == ["complete", "expire"]


def test_case_98_heartbeats() -> None:
    """Complete the old, register the new, 10,000 times on one key: one watch, one timer, all along."""
    purgatory = make()
    operation = register(purgatory, ["member"], timeout_ms=30)[0]
    for now in range(1, 10_001):
        operation.is_met = True
        assert purgatory.check_and_complete("member") == 1
        operation = RecordingOperation(30)
        assert not purgatory.try_complete_else_watch(operation, ["member"], now)
        assert purgatory.watched == purgatory.num_delayed == 1
    assert len(purgatory._operations) == 1
