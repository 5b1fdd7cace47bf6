"""Calls that stop after an amount of work and are repeated: together they do what one unlimited call does."""

import pytest

from purgatory.engine.batches import EventBatch, OperationBatch, ReplicaSets
from purgatory.engine.calls import Apply, Call, Cancel, CancelAll, CancelName, PassTime, Register, ShutDown
from purgatory.engine.codes import (
    CANCELLED,
    COMPOSITE,
    EXPIRED,
    HIGH_WATERMARK,
    IN_SYNC_REPLICAS,
    KEY_SIGNALLED,
    PRODUCE,
    SHUTTING_DOWN,
    SIGNAL,
)
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.engine.waiting.tables import Owner

OPERATIONS = 20
ITEMS = 10
WORK_MAX = 3 * (1 + ITEMS) - 5
"""Less than three operations of work, so that a call ends with the third."""


def filled(kind: int) -> tuple[Engine, Owner]:
    """Operations that each wait on the same ten partitions or keys; composites on keys."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch(
        list(range(1, OPERATIONS + 1)),
        partitions=[("orders", place) for place in range(ITEMS)],
        keys=[f"key-{place}" for place in range(ITEMS)],
        item_counts=[ITEMS],
        item_indexes=[place + (ITEMS if kind == COMPOSITE else 0) for _ in range(OPERATIONS) for place in range(ITEMS)],
        offsets=[9],
        timeouts_ms=[100],
    )
    assert engine.perform(owner, Register(kind, batch), 0).accepted == OPERATIONS
    return engine, owner


def ended(engine: Engine) -> list[tuple[int, int]]:
    """(operation id, outcome) of the operations that ended since the last call."""
    return [
        pair
        for completions in engine.take_completions()
        for pair in zip(completions.operation_ids, completions.outcomes, strict=True)
    ]


SLICED: dict[str, tuple[int, int, bool, Call]] = {
    "cancel all": (PRODUCE, CANCELLED, True, CancelAll()),
    "cancel a partition": (PRODUCE, CANCELLED, False, CancelName(("orders", 3))),
    "cancel a key": (SIGNAL, CANCELLED, False, CancelName(("key-3", -1))),
    "cancel a key of composites": (COMPOSITE, CANCELLED, False, CancelName(("key-3", -1))),
    "shut an owner down": (PRODUCE, SHUTTING_DOWN, True, ShutDown(100)),
    "shut all down": (PRODUCE, SHUTTING_DOWN, False, ShutDown(100)),
}
"""Kind, outcome, whether the call is for one owner, and the call."""


@pytest.mark.parametrize("name", SLICED)
def test_a_call_ends_with_the_operation_that_reaches_its_work(name: str) -> None:
    kind, outcome, has_owner, call = SLICED[name]
    engine, owner = filled(kind)
    receipts = [engine.perform(owner if has_owner else None, call, 1, WORK_MAX)]
    ends = ended(engine)
    while receipts[-1].has_more:
        receipts.append(engine.perform(owner if has_owner else None, call, 1, WORK_MAX))
        ends += ended(engine)
    assert [receipt.ended for receipt in receipts] == [3, 3, 3, 3, 3, 3, 2]
    assert ends == [(number, outcome) for number in range(1, OPERATIONS + 1)]
    whole, other = filled(kind)
    assert whole.perform(other if has_owner else None, call, 1).ended == OPERATIONS
    assert ended(whole) == ends
    assert not engine.perform(owner, CancelAll(OPERATIONS), 1).has_more
    assert not engine.inspection.has_waits(("orders", 3))
    assert not engine.inspection.has_waits(("key-3", -1))


def test_expiry_counts_items_in_groups_of_sixteen() -> None:
    engine, _ = filled(PRODUCE)
    assert [engine.perform(None, PassTime(100), 200, WORK_MAX).ended for _ in range(3)] == [16, 4, 0]
    assert ended(engine) == [(number, EXPIRED) for number in range(1, OPERATIONS + 1)]


def test_cancel_by_id_answers_for_as_many_as_it_looked_at() -> None:
    engine, owner = filled(PRODUCE)
    ids = [99, *range(1, OPERATIONS + 1)]
    answers: list[bool] = []
    calls = 0
    while len(answers) < len(ids):
        answers += engine.perform(owner, Cancel(ids[len(answers) :]), 1, WORK_MAX).were_pending
        calls += 1
    assert answers == [False] + [True] * OPERATIONS
    assert calls == 7


def test_what_is_registered_meanwhile_is_not_cancelled() -> None:
    """`up_to_id` excludes later registrations: a session that keeps registering cannot make a cancellation endless."""
    engine, owner = filled(PRODUCE)
    assert engine.perform(owner, CancelAll(OPERATIONS), 1, WORK_MAX).ended == 3
    newcomer = OperationBatch([50], partitions=[("orders", 0)], offsets=[9])
    assert engine.perform(owner, Register(PRODUCE, newcomer), 1).accepted == 1
    rest = engine.perform(owner, CancelAll(OPERATIONS), 1)
    assert (rest.ended, rest.has_more) == (OPERATIONS - 3, False)
    assert engine.inspection.describe(owner, 50) is not None


def test_ids_known_before_are_as_the_caller_says() -> None:
    """With `known_up_to`, an id that does not rise between two slices of a batch is refused instead of known."""
    engine, owner = filled(PRODUCE)
    batch = OperationBatch([10, 15, 21], partitions=[("orders", 0)], offsets=[9])
    receipt = engine.perform(owner, Register(PRODUCE, batch, 10), 1)
    assert (receipt.already_known, receipt.accepted) == (1, 1)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(1, "operation_id")]


def test_an_event_counts_its_replicas() -> None:
    """The first event of 300 ids creates as many replicas, and is a slice of 500 by itself; then two fit."""
    engine = Engine(EngineLimits(), 0)
    sets = ReplicaSets(in_sync=list(range(300)), leader_id=0)
    batch = EventBatch([IN_SYNC_REPLICAS] * 4, partitions=[("orders", 0)], replica_sets=[sets] * 4)
    assert engine.perform(None, Apply(batch), 0, 500).next_index == 1
    assert engine.perform(None, Apply(batch, 1), 0, 500).next_index == 3


def test_failures_of_a_wait_for_any_key_take_one_unit_of_work_each() -> None:
    """The work of a failed key does not grow with the other keys of the wait: their number would count squared."""
    engine, keys = Engine(EngineLimits(), 0), [f"key-{place}" for place in range(1_000)]
    places = list(range(1_000))
    wait = OperationBatch([1], keys=keys, item_indexes=places, item_counts=[1_000], any_key=[True], timeouts_ms=[100])
    assert engine.perform(engine.add_owner(), Register(SIGNAL, wait), 0).accepted == 1
    failures = EventBatch([KEY_SIGNALLED] * 1_000, keys=keys, item_indexes=places, flags=[1])
    assert engine.perform(None, Apply(failures), 0, 1_000).next_index == 500
    assert engine.perform(None, Apply(failures, 500), 0).ended == 1


def test_events_are_applied_in_slices() -> None:
    engine = Engine(EngineLimits(), 0)
    names = [("orders", 0), ("orders", 1), ("orders", 2)]
    waits = OperationBatch(list(range(1, 7)), partitions=names, item_indexes=[0, 0, 1, 1, 2, 2], offsets=[5])
    engine.perform(engine.add_owner(), Register(PRODUCE, waits), 0)
    batch = EventBatch([HIGH_WATERMARK] * 3, partitions=names, item_indexes=[0, 1, 2], offsets=[5])
    first = engine.perform(None, Apply(batch), 0, 14)
    assert (first.next_index, first.ended_by_event) == (2, [2, 2])
    second = engine.perform(None, Apply(batch, first.next_index), 0, 6)
    assert (second.next_index, second.ended_by_event) == (3, [2])
    assert engine.perform(None, Apply(batch), 0, 14).unchanged == 3
