"""Rows that need no second look, and each way in which one that looks like them needs it after all."""

from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.batches import EventBatch, OperationBatch, RegisterReceipt
from purgatory.engine.codes import HIGH_WATERMARK, OFFSET_MAX, PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.limits import EngineLimits

PARTITION = ("orders", 0)
TIMEOUT_MS_MAX = 60_000


class Values(TypedDict, total=False):
    """What the second of three operations says, where it is not as usual."""

    timeout_ms: int
    offset: int
    epoch: int
    place: int


def register(
    *,
    ids: tuple[int, ...] = (11, 12, 13),
    timeout_ms: int = 1_000,
    offset: int = 7,
    epoch: int = -1,
    place: int = 0,
) -> tuple[Engine, RegisterReceipt]:
    """Three waits on a partition that is known but has told no mark; the second one is as given."""
    engine = Engine(EngineLimits(timeout_ms_max=TIMEOUT_MS_MAX, timeout_ms_default=1_000), 0)
    owner = engine.add_owner()
    engine.register(owner, PRODUCE, OperationBatch([10], partitions=[PARTITION], offsets=[1]), 0)
    batch = OperationBatch(
        list(ids),
        partitions=[PARTITION],
        timeouts_ms=[1_000, timeout_ms, 1_000],
        offsets=[7, offset, 7],
        leader_epochs=[-1, epoch, -1],
        item_indexes=[0, place, 0],
    )
    return engine, engine.register(owner, PRODUCE, batch, 0)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"timeout_ms": 1},
        {"timeout_ms": TIMEOUT_MS_MAX},
        {"offset": 0},
        {"offset": OFFSET_MAX - 1},
        {"epoch": 0},
        {"epoch": 2**31 - 1},
    ],
    ids=str,
)
def test_what_is_plain_waits(values: Values) -> None:
    """Each value at the edge of what is allowed is taken."""
    engine, receipt = register(**values)
    assert (receipt.accepted, receipt.refusals, receipt.highest_operation_id) == (3, [], 13)
    assert engine.pending == 4


def test_the_highest_id_is_plain() -> None:
    """The last id there is, is taken; the one after it is refused."""
    engine, receipt = register(ids=(11, OPERATION_ID_MAX, OPERATION_ID_MAX + 1))
    assert receipt.highest_operation_id == OPERATION_ID_MAX
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(2, "operation_id")]
    assert engine.pending == 3


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"timeout_ms": TIMEOUT_MS_MAX + 1}, "timeout_ms"),
        ({"offset": -1}, "produce.partitions[0].required_offset"),
        ({"offset": OFFSET_MAX}, "produce.partitions[0].required_offset"),
        ({"epoch": -2}, "produce.partitions[0].leader_epoch"),
        ({"epoch": 2**31}, "produce.partitions[0].leader_epoch"),
        ({"place": 1}, "item_index"),
        ({"place": -1}, "item_index"),
    ],
    ids=str,
)
def test_what_is_not_plain_is_refused_between_plain_ones(values: Values, field: str) -> None:
    """Its fault is told as ever, and its neighbours wait."""
    engine, receipt = register(**values)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(1, field)]
    assert (receipt.accepted, engine.pending) == (2, 3)


def test_a_batch_without_names_is_refused_row_by_row() -> None:
    """There is nothing to wait on, and each operation is told so."""
    engine = Engine(EngineLimits(), 0)
    receipt = engine.register(engine.add_owner(), PRODUCE, OperationBatch([1, 2], offsets=[7]), 0)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(0, "item_index"), (1, "item_index")]


def test_a_place_stands_for_the_name_that_is_there_now() -> None:
    """Batches with one dictionary, or one like it, find the same partitions; another name at a place is another."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    names = [("orders", 0), ("orders", 1)]
    for first in (1, 3):
        engine.register(owner, PRODUCE, OperationBatch([first, first + 1], partitions=names, item_indexes=[0, 1]), 0)
    names.reverse()
    engine.register(owner, PRODUCE, OperationBatch([5, 6], partitions=names, item_indexes=[0, 1]), 0)
    alike = [(topic, partition) for topic, partition in names]
    engine.register(owner, PRODUCE, OperationBatch([7, 8], partitions=alike, item_indexes=[0, 1]), 0)
    assert engine.cancel_partition(("orders", 0), 0) == 4
    [completions] = engine.take_completions()
    assert list(completions.operation_ids) == [1, 3, 6, 8]


def test_an_id_that_repeats_is_refused_between_plain_ones() -> None:
    """The second use of an id in one batch is no re-sent registration."""
    engine, receipt = register(ids=(11, 11, 12))
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(1, "operation_id")]
    assert (receipt.accepted, receipt.already_known, engine.pending) == (2, 0, 3)


def test_known_ids_are_passed_over_between_plain_ones() -> None:
    """What an earlier batch has brought is counted, not taken again."""
    engine, receipt = register(ids=(9, 10, 11))
    assert (receipt.accepted, receipt.already_known, engine.pending) == (1, 2, 2)


def test_plain_ones_stop_at_the_limit() -> None:
    """As many as fit are taken, the one after them is refused."""
    engine = Engine(EngineLimits(pending_operations_max=2), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1, 2, 3], partitions=[PARTITION], offsets=[1])
    receipt = engine.register(owner, PRODUCE, batch, 0)
    assert [refusal.index for refusal in receipt.refusals] == [2]
    assert (receipt.accepted, engine.pending) == (2, 2)


def test_what_comes_with_an_error_of_its_own_does_not_wait() -> None:
    """It ends at once, its neighbours wait."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1, 2, 3], partitions=[PARTITION], offsets=[1], local_error_codes=[0, 20, 0])
    assert engine.register(owner, PRODUCE, batch, 0).accepted == 3
    [completions] = engine.take_completions()
    assert (list(completions.operation_ids), list(completions.error_codes), engine.pending) == ([2], [20], 2)


NAMES = [("orders", 0), ("orders", 1), ("payments", 0), ("orders", 1), ("unknown", 7)]
"""A dictionary in which one name stands twice, and which names a partition that nobody has spoken of."""


@st.composite
def rows_of_items(draw: st.DrawFn) -> list[list[tuple[int, int, int]]]:
    """Operations, each a list of (place in the dictionary, required offset, leader epoch)."""
    item = st.tuples(st.integers(0, len(NAMES) - 1), st.integers(0, 6), st.sampled_from([-1, -1, 3, 4]))
    return draw(st.lists(st.lists(item, max_size=4), min_size=1, max_size=6))


def registered_and_ended(
    rows: list[list[tuple[int, int, int]]], timeout_ms: int, local_error_codes: list[int]
) -> list[object]:
    """Everything that can be seen of a batch, registered where some marks are known, until a mark ends more of it."""
    engine = Engine(EngineLimits(items_per_operation_max=3), 0)
    owner = engine.add_owner()
    known = EventBatch([HIGH_WATERMARK] * 3, partitions=NAMES, item_indexes=[0, 1, 2], offsets=[3, 0, 6])
    engine.apply(known, 0)
    items = [item for row in rows for item in row]
    batch = OperationBatch(
        list(range(1, len(rows) + 1)),
        partitions=NAMES,
        timeouts_ms=[timeout_ms],
        item_counts=[len(row) for row in rows],
        item_indexes=[place for place, _, _ in items],
        offsets=[offset for _, offset, _ in items],
        leader_epochs=[epoch for _, _, epoch in items],
        local_error_codes=local_error_codes,
    )
    receipt = engine.register(owner, PRODUCE, batch, 1)
    seen: list[object] = [
        receipt.accepted,
        receipt.highest_operation_id,
        [(refusal.index, refusal.code, refusal.field, refusal.message) for refusal in receipt.refusals],
        engine.partition_names(),
    ]
    engine.apply(EventBatch([HIGH_WATERMARK], partitions=[NAMES[1]], offsets=[4]), 2)
    engine.advance_clock(200, 100)
    for ended in engine.take_completions():
        seen += [list(ended.operation_ids), list(ended.outcomes), list(ended.item_counts), ended.item_partitions]
        seen += [list(ended.error_codes), list(ended.required_offsets), list(ended.reached_offsets)]
    return [*seen, engine.pending, engine.partition_names()]


@given(rows_of_items(), st.sampled_from([100, 100, 0]))
def test_several_items_fare_as_on_the_long_way(rows: list[list[tuple[int, int, int]]], timeout_ms: int) -> None:
    """Waiting, reached, half reached, refused: the same as with an explicit "no error", which takes every row the long
    way.
    """
    assert registered_and_ended(rows, timeout_ms, []) == registered_and_ended(rows, timeout_ms, [0])
