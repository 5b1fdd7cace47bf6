"""The generic purgatory against bugs that others had (docs/lessons.md): missed wake-ups, leaks, re-entry, hot keys."""

import itertools
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.codes import EXPIRED, PENDING, SATISFIED
from purgatory.engine.generic.purgatory import DelayedOperationPurgatory
from tests.engine.generic.recording_operation import Errors, RecordingOperation, fail, never_told

KEYS = ["a", "b", "c", "d"]
STEPS = st.one_of(
    st.tuples(st.just("register"), st.integers(-5, 60), st.sets(st.sampled_from(KEYS), min_size=1)),
    st.tuples(st.just("meet"), st.integers(0, 100), st.just(set[str]())),
    st.tuples(st.just("force"), st.integers(0, 100), st.just(set[str]())),
    st.tuples(st.just("cancel"), st.integers(0, 100), st.just(set[str]())),
    st.tuples(st.just("check"), st.just(0), st.sets(st.sampled_from(KEYS), min_size=1)),
    st.tuples(st.just("cancel_key"), st.just(0), st.sets(st.sampled_from(KEYS), min_size=1, max_size=1)),
    st.tuples(st.just("advance"), st.integers(0, 30), st.just(set[str]())),
)


class Payload:
    """Something large that an operation holds."""


def make() -> DelayedOperationPurgatory:
    return DelayedOperationPurgatory(0, never_told)


def recount(purgatory: DelayedOperationPurgatory) -> None:
    """Every counter equals what a count of the state gives (lessons 22, 34 and 68)."""
    watchers = purgatory._watchers
    assert all(watchers.values())
    assert purgatory.watched == sum(len(by_slot) for by_slot in watchers.values())
    pending = [operation for operation in purgatory._operations if operation is not None]
    assert purgatory.pending == purgatory.num_delayed == len(pending)
    for operation in pending:
        assert operation.outcome == PENDING
        assert all(operation.purgatory_slot in watchers[key] for key in operation.purgatory_keys)


@given(st.lists(STEPS, max_size=60))
def test_lesson_05_any_history_against_a_model(steps: list[tuple[str, int, set[str]]]) -> None:
    """After any history the map holds every pending operation, each ended one was told once, and counters are right."""
    purgatory, operations, now = make(), list[tuple[RecordingOperation, set[str], int]](), 0
    for step, number, keys in steps:
        if step == "register":
            operation = RecordingOperation(number)
            purgatory.try_complete_else_watch(operation, sorted(keys), now)
            operations.append((operation, keys, now + number))
        elif step in {"meet", "force", "cancel"} and operations:
            operation = operations[number % len(operations)][0]
            was_pending = operation.outcome == PENDING
            if step == "meet":
                operation.is_met = True
            else:
                ended = operation.force_complete() if step == "force" else purgatory.cancel(operation)
                assert ended == was_pending
        elif step == "check":
            for key in sorted(keys):
                completable = [o for o, on, _ in operations if o.outcome == PENDING and o.is_met and key in on]
                assert purgatory.check_and_complete(key) == len(completable)
        elif step == "cancel_key":
            (key,) = keys
            watching = [o for o, on, _ in operations if o.outcome == PENDING and key in on]
            assert purgatory.cancel_for_key(key) == watching
        elif step == "advance":
            now += number
            due = [o for o, _, deadline in operations if o.outcome == PENDING and deadline <= now]
            assert purgatory.advance_clock(now, 1000) == len(due)
            assert all(o.outcome == EXPIRED for o in due)
        recount(purgatory)
        for operation, _, _ in operations:
            told = {PENDING: [], EXPIRED: ["complete", "expire"]}.get(operation.outcome, ["complete"])
            assert operation.effects == told


def test_lesson_03_no_satisfied_operation_stays_pending() -> None:
    """After the last event has checked its key, no operation whose condition holds is still pending."""
    purgatory, rng = make(), random.Random(3)
    marks = dict.fromkeys(KEYS, 0)
    waiting: list[tuple[RecordingOperation, str, int]] = []

    def is_met(operation: RecordingOperation, key: str, threshold: int) -> None:
        operation.is_met = marks[key] >= threshold

    for _ in range(2000):
        key = rng.choice(KEYS)
        if rng.random() < 0.5:
            operation, threshold = RecordingOperation(), marks[key] + rng.randrange(1, 20)
            operation.when_evaluated = lambda o=operation, k=key, t=threshold: is_met(o, k, t)
            purgatory.try_complete_else_watch(operation, [key], 0)
            waiting.append((operation, key, threshold))
        else:
            marks[key] += rng.randrange(3)
            purgatory.check_and_complete(key)
        assert all((o.outcome == SATISFIED) == (marks[k] >= t) for o, k, t in waiting[-50:])


def test_lesson_04_registration_evaluates_twice_whatever_the_keys() -> None:
    """An operation on 2,000 keys is evaluated twice at registration, not once a key."""
    purgatory, operation = make(), RecordingOperation()
    assert not purgatory.try_complete_else_watch(operation, [f"key-{n}" for n in range(2000)], 0)
    assert operation.evaluations == purgatory.evaluations == 2
    assert purgatory.watched == 2000


def test_lesson_19_event_and_expiry_in_one_tick_give_one_outcome() -> None:
    """Whatever the order of check, force, cancel and expiry in one tick, each operation is told exactly once."""
    rng = random.Random(19)
    for _ in range(300):
        purgatory = make()
        operations = [RecordingOperation(10) for _ in range(3)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["k"], 0)
            operation.is_met = rng.random() < 0.5
        for step in rng.sample(("check", "advance", "force", "cancel"), 4):
            if step == "check":
                purgatory.check_and_complete("k")
            elif step == "advance":
                purgatory.advance_clock(10, 2)
            elif step == "force":
                operations[0].force_complete()
            else:
                purgatory.cancel(operations[1])
        purgatory.advance_clock(10, 100)
        assert all(operation.effects.count("complete") == 1 for operation in operations)
        assert all(("expire" in o.effects) == (o.outcome == EXPIRED) for o in operations)


def test_lesson_27_a_poisoned_operation_among_a_thousand() -> None:
    """One failing check in the middle of a key: 999 complete, one is reported."""
    errors = Errors()
    purgatory = DelayedOperationPurgatory(0, errors)
    operations = [RecordingOperation() for _ in range(1000)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["k"], 0)
        operation.is_met = True
    operations[500].when_evaluated = fail
    assert purgatory.check_and_complete("k") == 999
    assert [operation for operation, _ in errors.told] == [operations[500]]
    assert purgatory.watched == 1


@pytest.mark.slow
def test_lesson_28_a_cold_key_keeps_nothing() -> None:
    """Operations on a hot and a cold key, completed through the hot one, never pile up in the cold one's list."""
    purgatory = make()
    for _ in range(5000):
        operation = RecordingOperation()
        purgatory.try_complete_else_watch(operation, ["hot", "cold"], 0)
        operation.is_met = True
        assert purgatory.check_and_complete("hot") == 1
        assert purgatory.watched == 0
    assert purgatory.key_count == 0


@pytest.mark.slow
def test_lesson_29_keys_vanish_with_their_last_watcher() -> None:
    """Many distinct keys used once each leave no key behind, however their operations end."""
    purgatory = make()
    for number in range(10_000):
        purgatory.try_complete_else_watch(RecordingOperation(number % 100), [number], 0)
        if number % 3 == 0:
            purgatory.cancel_for_key(number)
    purgatory.advance_clock(100, 100_000)
    assert purgatory.key_count == len(purgatory._watchers) == purgatory.watched == 0


@pytest.mark.parametrize("end", ["check", "force", "cancel", "expire", "shut_down"])
@pytest.mark.parametrize("keys", [["k"], ["k", "a", "b", "c", "d"]])
def test_lesson_30_31_payloads_die_with_their_operation(end: str, keys: list[str]) -> None:
    """The purgatory lets go of an operation and its payload in the very call that ends it, on however many keys."""
    purgatory = make()
    operation = RecordingOperation(10)
    payload = Payload()
    operation.payload = payload  # type: ignore[attr-defined]
    dead = weakref.ref(payload)
    del payload
    purgatory.try_complete_else_watch(operation, keys, 0)
    if end == "force":
        operation.force_complete()
    elif end == "cancel":
        purgatory.cancel(operation)
    operation.is_met = end == "check"
    del operation
    if end == "check":
        purgatory.check_and_complete("k")
    elif end == "expire":
        purgatory.advance_clock(10, 10)
    elif end == "shut_down":
        purgatory.shut_down(10)
    assert dead() is None


def test_lesson_32_timer_entries_equal_pending_operations() -> None:
    """Timers of ended operations do not linger: at every moment as many as operations are pending."""
    purgatory, rng = make(), random.Random(32)
    pending: list[RecordingOperation] = []
    for now in range(3000):
        operation = RecordingOperation(15_000)
        purgatory.try_complete_else_watch(operation, ["k"], now)
        pending.append(operation)
        while len(pending) > 20:
            pending.pop(rng.randrange(len(pending))).force_complete()
        assert purgatory.num_delayed == purgatory.pending == len(pending)
    assert len(purgatory._operations) <= 21


@pytest.mark.slow
def test_lesson_57_completions_do_not_recurse() -> None:
    """A chain of 10,000 operations, each completing the next in its effect, runs flat and in order."""
    purgatory, log = make(), list[str]()
    chain = [RecordingOperation(name=str(number), log=log) for number in range(10_000)]
    for operation, successor in itertools.pairwise(chain):
        operation.when_completed = successor.force_complete
    for operation in chain:
        purgatory.try_complete_else_watch(operation, ["k"], 0)
    assert chain[0].force_complete()
    assert log == [str(number) for number in range(10_000)]
    assert purgatory.pending == 0


@pytest.mark.slow
def test_lesson_60_61_many_waiters_on_one_key_leave_one_by_one() -> None:
    """20,000 waiters on one key are cancelled, and as many expire, without any other waiter being looked at."""
    purgatory = make()
    operations = [RecordingOperation(100) for _ in range(20_000)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, ["hot"], 0)
    evaluations = purgatory.evaluations
    random.Random(60).shuffle(operations)
    for operation in operations[:10_000]:
        assert purgatory.cancel(operation)
    expired = 0
    while more := purgatory.advance_clock(100, 1000):
        assert more <= 1000
        expired += more
    assert expired == 10_000
    assert purgatory.evaluations == evaluations
    assert purgatory.key_count == 0


def test_lesson_64_other_keys_are_not_evaluated() -> None:
    """A check evaluates the watchers of its own key only."""
    purgatory = make()
    for number in range(100):
        purgatory.try_complete_else_watch(RecordingOperation(), [f"key-{number % 10}"], 0)
    before = purgatory.evaluations
    purgatory.check_and_complete("key-3")
    assert purgatory.evaluations - before == 10
