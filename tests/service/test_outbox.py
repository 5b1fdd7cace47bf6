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


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_loses_and_repeats_nothing(seed: int) -> None:
    """Against a plain list as the model: result n is always the n-th that was appended."""
    draw = random.Random(seed)
    outbox = Outbox()
    model: list[int] = []
    kind_of: dict[int, int] = {}
    written = 0
    for _ in range(300):
        action = draw.randrange(5)
        if action == 0:
            ids = [len(model) + 1 + place for place in range(draw.randrange(1, 8))]
            kind_of |= {one: draw.choice([codes.PRODUCE, codes.PRODUCE, codes.SIGNAL]) for one in ids}
            outbox.append(slices_of(completions_of(ids, [kind_of[one] for one in ids])))
            model += ids
        elif action in {1, 2}:
            most = draw.randrange(1, 6)
            first, slices = outbox.take(most)
            ids = ids_of(slices)
            assert first == written + 1
            assert ids == model[written : written + len(ids)]
            kinds = {part.kind for part in slices}
            assert len(kinds) <= 1, "a message has results of one kind"
            assert len(ids) <= most
            end = written + len(ids)
            is_cut_short = len(ids) < most and end < len(model)
            assert not is_cut_short or kind_of[model[end]] not in kinds, "more would have fitted"
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
        assert outbox.unacknowledged == len(model) - outbox.acknowledged_sequence
