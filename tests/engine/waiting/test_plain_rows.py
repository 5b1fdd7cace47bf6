"""Rows of a batch that need no individual check take a fast path, which must have the effect of the full one."""

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import PRODUCE
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits

NAMES = [("orders", 0), ("orders", 1), ("payments", 0), ("orders", 1), ("unknown", 7)]
"""A dictionary in which one name is repeated, and one names a partition that no event has named."""


def test_an_operation_with_an_error_of_its_own_does_not_wait() -> None:
    """An operation with only a local error ends immediately; its neighbours wait."""
    engine = Engine(EngineLimits(), 0)
    owner = engine.add_owner()
    batch = OperationBatch([1, 2, 3], partitions=NAMES[:1], offsets=[1], local_error_codes=[0, 20, 0])
    assert engine.register(owner, PRODUCE, batch, 0).accepted == 3
    [completions] = engine.take_completions()
    assert (list(completions.operation_ids), list(completions.error_codes), engine.pending) == ([2], [20], 2)


def test_a_batch_without_names_is_refused_row_by_row() -> None:
    """Each operation without a name to wait on is refused."""
    engine = Engine(EngineLimits(), 0)
    receipt = engine.register(engine.add_owner(), PRODUCE, OperationBatch([1, 2], offsets=[7]), 0)
    assert [(refusal.index, refusal.field) for refusal in receipt.refusals] == [(0, "item_index"), (1, "item_index")]


def test_a_place_stands_for_the_name_that_is_there_now() -> None:
    """Batches with the same or an equal dictionary find the same partitions; a changed name finds another partition."""
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
