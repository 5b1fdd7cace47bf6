"""Rows that need no second look, and each way in which one that looks like them needs it after all."""

from __future__ import annotations

from typing import TypedDict

import pytest

from purgatory.engine.batches import OperationBatch, RegisterReceipt
from purgatory.engine.codes import OFFSET_MAX, PRODUCE
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
