"""The ring that calls are packed in: what was taken is what was written, however it goes round."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.archive.gathering import columns_in
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch
from purgatory.engine.completions import Completions
from purgatory.engine.packed_columns import EVENT_COLUMNS, REGISTRATION_COLUMNS, ColumnWriter


def batch_of(ids: list[int]) -> OperationBatch:
    return OperationBatch(ids, partitions=[("orders", 0)], offsets=[number * 2 for number in ids])


def ids_in(columns: memoryview | bytes) -> list[int]:
    """The ids of a batch of registrations that was packed."""
    return [int(number) for number in columns_in(columns, REGISTRATION_COLUMNS.columns)[1]]


@given(st.integers(0, 2**32), st.sampled_from([1, 50, 64, 200, 1_000]))
def test_what_is_taken_stays_as_it_was_written_until_it_is_given_back(seed: int, ring: int) -> None:
    """In a ring of any size, with batches of any size, some forgotten, and given back late or never."""
    draw = random.Random(seed)
    writer = ColumnWriter(ring)
    held: list[tuple[list[int], memoryview, int]] = []
    for first in range(1, 4_000, 100):
        batch = batch_of(list(range(first, first + draw.choice((1, 2, 7, 40, 90)))))
        writer.add_operations(codes.PRODUCE, batch, [], 1_000, bare=False)
        if draw.random() < 0.2:
            continue  # forgotten
        held.append((batch.operation_ids, writer.take(), writer.taken))
        if draw.random() < 0.5:
            done = draw.randrange(len(held))
            writer.give_back(held[done][2])
            del held[: done + 1]
        for ids, columns, _ in held:
            assert ids_in(columns) == ids


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_columns_come_back_as_they_went(offsets: list[int]) -> None:
    """A value for each, one for all, or none, up to the ends of 64 bits."""
    writer = ColumnWriter(1)
    receipt = EventsReceipt()
    receipt.next_index = len(offsets)
    writer.add_events([], [3] * len(offsets), [0], EventBatch([], offsets=offsets), 0, receipt)
    columns = [np.asarray(column, np.int64).tolist() for column in columns_in(writer.take(), EVENT_COLUMNS.columns)]
    assert columns[4] == offsets
    assert columns[1] == [3] * len(offsets)
    assert (columns[0], columns[2], columns[-1]) == ([], [0], [])


def test_what_is_too_large_is_refused_and_spoils_nothing() -> None:
    """A number of more than 64 bits is an error, and what is written next is whole."""
    writer = ColumnWriter(64)
    with pytest.raises((OverflowError, ValueError)):
        writer.add_operations(codes.PRODUCE, batch_of([1, 2**70]), [], 1, bare=False)
    writer.add_operations(codes.PRODUCE, batch_of([7, 8]), [], 1, bare=False)
    assert ids_in(writer.take()) == [7, 8]


def completions_of(count: int) -> Completions:
    completions = Completions(0, count)
    for number in range(count):
        completions.add_operation(number, codes.PRODUCE, 1, 5, 0, 1)
        completions.add_item(("orders", number % 2), 0, number, number, -1, -1, -1.0)
    completions.finish()
    return completions


def test_packing_leaves_nothing_behind() -> None:
    """Columns of completions are let go of: a compiled function that is handed one by other code would keep it."""
    writer = ColumnWriter()

    def pack(times: int) -> int:
        for _ in range(times):
            writer.add_completions(completions_of(8))
            writer.take()
            writer.give_back(writer.taken)
        return sys.getallocatedblocks()

    before = pack(100)
    assert pack(2_000) - before < 1_000
