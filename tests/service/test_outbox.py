"""The outbox: no gaps, nothing lost and nothing twice, whatever is taken, put back or acknowledged."""

import random

import pytest

from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.sessions.outbox import Outbox, ResultSlice, slices_of


def completions_of(operation_ids: list[int], kinds: list[int]) -> Completions:
    """Completions with as many items as the id's last digit says."""
    completions = Completions(1)
    for operation_id, kind in zip(operation_ids, kinds, strict=True):
        completions.add_operation(operation_id, kind, codes.SATISFIED, 0, 0, operation_id % 10)
        for _ in range(operation_id % 10):
            completions.add_item(("t", operation_id), codes.NONE, 0, 0, -1, -1, -1.0)
    completions.finish()
    return completions


def ids_of(slices: list[ResultSlice]) -> list[int]:
    """Operation ids in slices, after checking that each slice holds exactly its own items."""
    ids: list[int] = []
    for part in slices:
        own = part.completions.operation_ids[part.start : part.stop]
        items = [name[1] for name in part.completions.item_partitions[part.item_start : part.item_stop]]
        assert items == [operation_id for operation_id in own for _ in range(operation_id % 10)]
        ids.extend(own)
    return ids


def test_results_are_taken_in_order_and_bounded() -> None:
    """A message has consecutive results of one kind, at most so many."""
    outbox = Outbox()
    outbox.append(slices_of(completions_of([1, 2, 3, 4], [codes.PRODUCE] * 3 + [codes.SIGNAL])))
    outbox.append(slices_of(completions_of([5, 6], [codes.SIGNAL] * 2)))
    assert (outbox.last_sequence, outbox.unacknowledged, outbox.unwritten) == (6, 6, 6)
    taken = [outbox.take(2) for _ in range(4)]
    assert [(first, ids_of(slices)) for first, slices in taken] == [(1, [1, 2]), (3, [3]), (4, [4, 5]), (6, [6])]
    assert outbox.take(2) == (7, [])
    assert outbox.unwritten == 0
    assert outbox.unacknowledged == 6


def test_partial_acknowledgement_drops_part_of_a_slice() -> None:
    """After a new stream begins, exactly the unacknowledged ones are written again."""
    outbox = Outbox()
    outbox.append(slices_of(completions_of([1, 2, 3, 4, 5], [codes.PRODUCE] * 5)))
    outbox.take(4)
    outbox.acknowledge(3)
    outbox.acknowledge(2)
    assert outbox.unacknowledged == 2
    outbox.rewind()
    first, slices = outbox.take(10)
    assert (first, ids_of(slices)) == (4, [4, 5])


def test_what_was_put_back_is_taken_again() -> None:
    """Sequence numbers stay with their results."""
    outbox = Outbox()
    outbox.append(slices_of(completions_of([1, 2, 3], [codes.PRODUCE] * 3)))
    first, slices = outbox.take(3)
    outbox.put_back(slices)
    assert outbox.unwritten == 3
    first, slices = outbox.take(1)
    assert (first, ids_of(slices)) == (1, [1])
    first, slices = outbox.take(5)
    assert (first, ids_of(slices)) == (2, [2, 3])


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_loses_and_repeats_nothing(seed: int) -> None:
    """Against a plain list as the model: result n is always the n-th that was appended."""
    draw = random.Random(seed)
    outbox = Outbox()
    model: list[int] = []
    written = 0
    for _ in range(300):
        action = draw.randrange(5)
        if action == 0:
            ids = [len(model) + 1 + place for place in range(draw.randrange(1, 8))]
            outbox.append(slices_of(completions_of(ids, [draw.choice([1, 1, 4]) for _ in ids])))
            model += ids
        elif action in {1, 2}:
            first, slices = outbox.take(draw.randrange(1, 6))
            ids = ids_of(slices)
            assert first == written + 1
            assert ids == model[written : written + len(ids)]
            if draw.random() < 0.2:
                outbox.put_back(slices)
            else:
                written += len(ids)
        elif action == 3:
            sequence = draw.randint(0, len(model))
            outbox.acknowledge(sequence)
            written = max(written, outbox.acknowledged_sequence)
        elif draw.random() < 0.3:
            outbox.rewind()
            written = outbox.acknowledged_sequence
        assert outbox.last_sequence == len(model)
        assert outbox.unwritten == len(model) - written
