"""How waits are stored and evaluated: fetches, rows on the fast path, and rows that are used again."""

import tracemalloc

import pytest

from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import CancelName, Register
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from tests.engine import plain
from tests.scripts.engine_level import EngineLevel

NAMES = [("orders", 0), ("orders", 1), ("payments", 0), ("orders", 1), ("unknown", 7)]
"""A dictionary in which one name is repeated, and one names a partition that no event has named."""


def test_a_batch_without_names_is_refused_row_by_row() -> None:
    engine = Engine(EngineLimits(), 0)
    receipt = engine.perform(engine.add_owner(), Register(PRODUCE, OperationBatch([1, 2], offsets=[7])), 0)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(0, "item_index"), (1, "item_index")]


def test_a_place_stands_for_the_name_that_is_there_now() -> None:
    """Batches with the same or an equal dictionary find the same partitions; a changed name finds another partition."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    names = [("orders", 0), ("orders", 1)]
    for first in (1, 3):
        engine.perform(
            owner, Register(PRODUCE, OperationBatch([first, first + 1], partitions=names, item_indexes=[0, 1])), 0
        )
    names.reverse()
    engine.perform(owner, Register(PRODUCE, OperationBatch([5, 6], partitions=names, item_indexes=[0, 1])), 0)
    alike = [(topic, partition) for topic, partition in names]
    engine.perform(owner, Register(PRODUCE, OperationBatch([7, 8], partitions=alike, item_indexes=[0, 1])), 0)
    assert engine.perform(None, CancelName(("orders", 0)), 0).ended == 4
    [completions] = engine.take_completions()
    assert list(completions.operation_ids) == [1, 3, 6, 8]


ROUNDS = 150


def expired_one_by_one(wait: str, *first: str) -> EngineLevel:
    """An engine in which equal waits have expired one after another; `N` stands for their ids."""
    rounds = [line for number in range(2, ROUNDS + 2) for line in (wait.replace("N", str(number)), "jump 1000")]
    return EngineLevel.played(*first, *rounds)


def test_rows_of_ended_waits_are_used_again() -> None:
    engine = expired_one_by_one("produce N orders-0@10 orders-1@10 timeout=1000").engine
    assert engine.inspection.counts(PRODUCE).expired == ROUNDS
    assert (engine._pending.operations.size, engine._pending.items.size) == (1, 2)


def test_an_owner_forgets_what_has_ended() -> None:
    first = "produce 1 orders-0@10 timeout=10000000"
    level = expired_one_by_one("produce N orders-0@10 timeout=1000", first)
    assert len(level.engine_owner().ids) < 100
    assert level.answer("cancel 1") == [f"1 cancelled after {ROUNDS}000 ms: orders-0@10 at -1 error 7"]


def test_places_of_partitions_and_keys_are_used_again() -> None:
    engine = expired_one_by_one("composite N orders-N@10 key/N timeout=1000").engine
    assert len(engine._partitions.by_index) == 1
    assert len(engine._keys.by_index) == 1
    assert (engine.partition_count, engine.inspection.signal_key_count) == (0, 0)


def test_places_of_owners_are_used_again() -> None:
    engine = Engine(EngineLimits(), 0)
    engine.add_owner()
    for _ in range(ROUNDS):
        engine.remove_owner(engine.add_owner(), 0)
    assert len(engine._pending.owners) == 2


def test_an_owner_is_removed_only_when_its_results_were_taken() -> None:
    """Otherwise the next owner, which has the same id, would get them."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1], partitions=[("orders", 0)], offsets=[5], timeouts_ms=[0])
    assert engine.perform(owner, Register(PRODUCE, batch), 0).accepted == 1
    with pytest.raises(AssertionError, match=f"owner {owner.owner_id} has results that were not taken: 1"):
        engine.remove_owner(owner, 0)
    assert [completions.owner_id for completions in engine.take_completions()] == [owner.owner_id]
    engine.remove_owner(owner, 0)
    assert engine.add_owner().owner_id == owner.owner_id
    assert engine.take_completions() == []


STEP = 200


def test_no_registration_makes_room_in_all_columns() -> None:
    """At any row, a small batch allocates less than 48 bytes per pending operation: a column of 16 bytes per row, twice
    as long as before. All columns together have 110 bytes per row.
    """
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    engine.perform(
        owner, Register(PRODUCE, OperationBatch([1], partitions=[("orders", 0)], offsets=[1_000])), 0
    )  # imports
    tracemalloc.start()
    try:
        for first in range(2, 12_000, STEP):
            batch = OperationBatch(
                list(range(first, first + STEP)), partitions=[("orders", 0)], offsets=[1_000], timeouts_ms=[60_000]
            )
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            engine.perform(owner, Register(PRODUCE, batch), 0)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 48 * first + 50_000, f"at {first} operations"
    finally:
        tracemalloc.stop()
    assert engine.pending == 12_001


def test_fetch_is_not_woken_by_every_append() -> None:
    level = EngineLevel.played("append orders-0 0", "fetch 1 orders-0@0 replica_id=2 min_bytes=10000")
    before = level.engine.inspection.counts(plain.FETCH).evaluations
    level.apply([plain.Event(plain.LEADER_APPEND, ("orders", 0), offset) for offset in range(1, 10_001)])
    assert [row.outcome for _, row in level.ended()] == [plain.SATISFIED]
    assert level.engine.inspection.counts(plain.FETCH).evaluations - before <= 40
