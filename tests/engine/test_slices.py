"""Calls that stop after an amount of work and are repeated: together they have the effect of one unlimited call."""

import pytest

from purgatory.engine.calls import Apply, Call, Cancel, CancelAll, CancelName, FailStale, PassTime, Register, ShutDown
from purgatory.engine.codes import CANCELLED, EXPIRED, SHUTTING_DOWN
from purgatory.engine.engine import Engine
from purgatory.engine.waiting.tables import Owner
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, event_batch, operation_batch
from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import events_of, operations_of, parts_of

OPERATIONS = 20
ITEMS = 10
WORK_MAX = 3 * (1 + ITEMS) - 5
"""Less than three operations of work, so that a call ends with the third."""
PRODUCE, SIGNAL = "produce {} k*10@9", "await {} key*10@9"
COMPOSITE = f"composite {{}} {' '.join(f'{letter}@9' for letter in 'abcdefghij')}"


def filled(wait: str) -> tuple[EngineUnderTest, Engine, Owner]:
    """Operations that each wait on the same ten partitions or keys."""
    level = EngineLevel.played(f"{wait.format('1..20')} timeout=100")
    return level.pair, level.engine, level.engine_owner()


def ended(world: EngineUnderTest) -> list[tuple[int, int]]:
    return [(row.operation_id, row.outcome) for row in world.take_ended()]


def events(line: str) -> Apply:
    return Apply(event_batch([event for part in parts_of(line) for event in events_of(part)]))


SLICED: dict[str, tuple[str, int, bool, Call]] = {
    "cancel all": (PRODUCE, CANCELLED, True, CancelAll()),
    "cancel a partition": (PRODUCE, CANCELLED, False, CancelName(("k", 3))),
    "cancel a key": (SIGNAL, CANCELLED, False, CancelName(("key-3", -1))),
    "cancel a key of composites": (COMPOSITE, CANCELLED, False, CancelName(("d", -1))),
    "shut an owner down": (PRODUCE, SHUTTING_DOWN, True, ShutDown(100)),
    "shut all down": (PRODUCE, SHUTTING_DOWN, False, ShutDown(100)),
}
"""Kind, outcome, whether the call is for one owner, and the call."""


@pytest.mark.parametrize("name", SLICED)
def test_a_call_ends_with_the_operation_that_reaches_its_work(name: str) -> None:
    wait, outcome, has_owner, call = SLICED[name]
    world, engine, owner = filled(wait)
    receipts = [engine.perform(owner if has_owner else None, call, 1, WORK_MAX)]
    ends = ended(world)
    while receipts[-1].has_more:
        receipts.append(engine.perform(owner if has_owner else None, call, 1, WORK_MAX))
        ends += ended(world)
    assert [receipt.ended for receipt in receipts] == [3, 3, 3, 3, 3, 3, 2]
    assert ends == [(number, outcome) for number in range(1, OPERATIONS + 1)]
    other, whole, its_owner = filled(wait)
    assert whole.perform(its_owner if has_owner else None, call, 1).ended == OPERATIONS
    assert ended(other) == ends
    assert not engine.perform(owner, CancelAll(OPERATIONS), 1).has_more
    assert not engine.inspection.has_waits(("k", 3))
    assert not engine.inspection.has_waits(("key-3", -1))


def test_expiry_counts_items_in_groups_of_sixteen() -> None:
    world, engine, _ = filled(PRODUCE)
    assert [engine.perform(None, PassTime(100), 200, WORK_MAX).ended for _ in range(3)] == [16, 4, 0]
    assert ended(world) == [(number, EXPIRED) for number in range(1, OPERATIONS + 1)]


def test_cancel_by_id_answers_for_as_many_as_it_looked_at() -> None:
    _, engine, owner = filled(PRODUCE)
    ids = [99, *range(1, OPERATIONS + 1)]
    answers: list[bool] = []
    calls = 0
    while len(answers) < len(ids):
        answers += engine.perform(owner, Cancel(ids[len(answers) :]), 1, WORK_MAX).were_pending
        calls += 1
    assert answers == [False] + [True] * OPERATIONS
    assert calls == 7


@pytest.mark.parametrize("has_owner", [True, False])
def test_shutdown_has_more_while_a_single_operation_is_pending(has_owner: bool) -> None:
    _, engine, owner = filled(PRODUCE)
    receipts = [engine.perform(owner if has_owner else None, ShutDown(limit), 1) for limit in (OPERATIONS - 1, 1)]
    assert [(receipt.ended, receipt.has_more) for receipt in receipts] == [(OPERATIONS - 1, True), (1, False)]


def test_stale_waits_fail_until_the_work_is_reached() -> None:
    level = EngineLevel.played("produce 1..3 k*2@9 stale_timeout_ms=5 timeout=100")
    call = FailStale([1, 2, 3], {("k", 0)})
    receipt = level.engine.perform(level.engine_owner(), call, 50, 2 * (1 + 2))
    assert (receipt.were_pending, receipt.has_more) == ([True, True], True)


def test_resolving_an_item_takes_one_unit_of_work() -> None:
    engine = EngineLevel.played("produce 1 k*3@5").engine
    before = engine._pending.work_total
    engine.perform(None, events("high-watermark k-0 5"), 0)
    assert engine._pending.work_total - before == 1


def batch_of(line: str) -> Register:
    _, operations = operations_of(*parts_of(line))
    return Register(plain.PRODUCE, operation_batch(operations))


def test_what_is_registered_meanwhile_is_not_cancelled() -> None:
    """`up_to_id` excludes later registrations: a session that keeps registering cannot make a cancellation endless."""
    _, engine, owner = filled(PRODUCE)
    assert engine.perform(owner, CancelAll(OPERATIONS), 1, WORK_MAX).ended == 3
    assert engine.perform(owner, batch_of("produce 50 k-0@9"), 1).accepted == 1
    rest = engine.perform(owner, CancelAll(OPERATIONS), 1)
    assert (rest.ended, rest.has_more) == (OPERATIONS - 3, False)
    assert engine.inspection.describe(owner, 50) is not None


def test_ids_known_before_are_as_the_caller_says() -> None:
    """With `known_up_to`, an id that does not rise between two slices of a batch is refused instead of known."""
    _, engine, owner = filled(PRODUCE)
    receipt = engine.perform(owner, Register(plain.PRODUCE, batch_of("produce 10..21 k-0@9").batch, 10), 1)
    assert (receipt.already_known, receipt.accepted) == (1, 1)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [
        (place, "operation_id") for place in range(1, 11)
    ]


def test_an_event_counts_its_replicas() -> None:
    """The first event of 300 ids creates as many replicas, and is a slice of 500 by itself; then two fit."""
    engine = EngineLevel().engine
    call = events(" & ".join(["in-sync orders-0 0..299 leader_id=0"] * 4))
    assert engine.perform(None, call, 0, 500).next_index == 1
    assert engine.perform(None, Apply(call.batch, 1), 0, 500).next_index == 3


def test_failures_of_a_wait_for_any_key_take_one_unit_of_work_each() -> None:
    """The work of a failed key does not grow with the other keys of the wait: their number would count squared."""
    engine, call = EngineLevel.played("await 1 key*1000 any timeout=100").engine, events("signal key*1000 failed")
    assert engine.perform(None, call, 0, 1_000).next_index == 500
    assert engine.perform(None, Apply(call.batch, 500), 0).ended == 1


def test_plain_wait_that_an_event_ends_takes_three_units_of_work() -> None:
    """Each event takes one."""
    engine = EngineLevel.played(*[f"produce {2 * place + 1}..{2 * place + 2} k-{place}@5" for place in range(3)]).engine
    call = events("high-watermark k*3 5")
    first = engine.perform(None, call, 0, 14)
    assert (first.next_index, first.ended_by_event) == (2, [2, 2])
    second = engine.perform(None, Apply(call.batch, first.next_index), 0, 6)
    assert (second.next_index, second.ended_by_event) == (3, [2])
    assert engine.perform(None, call, 0, 14).unchanged == 3
