"""Columns that calls are packed in: what is read from a chunk is what was written, however it was compacted."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.archive.pieces import Pieces, pieces_in
from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch
from purgatory.engine.completions import Completions
from purgatory.engine.snapshot.packed_columns import (
    EVENT_COLUMNS,
    NO_EXTRA,
    REGISTRATION_COLUMNS,
    ColumnWriter,
)

LEAST, MOST = -(2**63), 2**63 - 1
OFFSET = 1 + EVENT_COLUMNS.of_rows.index("offset")
IDS = 1 + REGISTRATION_COLUMNS.of_operations.index("operation_id")


def flat(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


runs = st.builds(
    lambda first, step, count: [min(max(first + step * place, LEAST), MOST) for place in range(count)],
    st.integers(LEAST, MOST) | st.integers(-3, 3),
    st.integers(-(2**62), 2**62) | st.integers(-2, 2),
    st.integers(1, 40),
)
columns = st.lists(runs | st.lists(st.integers(LEAST, MOST), max_size=8), max_size=6).map(flat)
"""Of runs, and of values that have nothing in common."""


def write_offsets(writer: ColumnWriter, offsets: list[int], rows: int) -> None:
    """A piece of so many events on one partition."""
    receipt = EventsReceipt()
    receipt.next_index = rows
    batch = EventBatch([], partitions=[("orders", 0)], offsets=offsets)
    writer.add_events([codes.HIGH_WATERMARK] * rows, [0], batch, 0, receipt, NO_EXTRA)


def read(writer: ColumnWriter, table: int) -> Pieces:
    """The pieces of a table."""
    numbers = np.frombuffer(writer.written(), np.int64)
    layout = (REGISTRATION_COLUMNS, None, EVENT_COLUMNS)[table]
    assert layout is not None, "not read here"
    return Pieces(numbers, pieces_in(numbers)[table], layout)


@given(st.lists(columns.filter(bool), min_size=1, max_size=5))
def test_columns_come_back_as_they_went(pieces: list[list[int]]) -> None:
    """Runs, single values and all others, up to the ends of 64 bits, of several pieces of several lengths."""
    writer = ColumnWriter()
    for offsets in pieces:
        write_offsets(writer, offsets, len(offsets))
    found = read(writer, 2)
    part = found.part(OFFSET, found.rows)
    assert part.given is None
    assert part.values is not None
    values = part.values if part.whole else np.repeat(part.values, found.rows)
    assert values.tolist() == flat(pieces)


@given(st.lists(st.sampled_from([[], [7], [3, 4, 5, 6, 7, 8, 9, 10], [5, 5, 5, 5, 1, 2, 3, 9]]), min_size=1))
def test_a_column_may_be_absent_from_some_pieces(pieces: list[list[int]]) -> None:
    """One value for all, one for each, and none, side by side."""
    writer = ColumnWriter()
    for offsets in pieces:
        write_offsets(writer, offsets, 8)
    found = read(writer, 2)
    part = found.part(OFFSET, found.rows)
    given = [True] * len(pieces) if part.given is None else part.given.tolist()
    if part.values is None:
        assert not any(pieces)
        return
    assert given == [bool(offsets) for offsets in pieces]
    values = (part.values if part.whole else np.repeat(part.values, found.rows)).reshape(len(pieces), 8).tolist()
    for offsets, value in zip(pieces, values, strict=True):
        if offsets:
            assert value == (offsets if len(offsets) == 8 else offsets * 8)


@pytest.mark.parametrize(
    ("offsets", "numbers"),
    [
        ([5] * 500, 1),
        (list(range(500)), 3),
        (list(range(250)) + [9] * 250, 6),
        ([place * place for place in range(500)], 500),
        ([1, 2], 2),
    ],
)
def test_few_runs_take_few_numbers(offsets: list[int], numbers: int) -> None:
    """One value for all, three numbers for each run; where there are too many runs, the values as they are."""
    writer, shortest = ColumnWriter(), ColumnWriter()
    write_offsets(writer, offsets, len(offsets))
    write_offsets(shortest, [], len(offsets))
    assert writer.length - shortest.length == numbers


def batch_of(ids: list[int]) -> OperationBatch:
    return OperationBatch(ids, partitions=[("orders", 0)], offsets=[1])


def ids_in(writer: ColumnWriter) -> list[int]:
    found = read(writer, 0)
    values = found.part(IDS, found.operations).values
    return [] if values is None else values.tolist()


def test_what_is_too_large_is_refused_and_spoils_nothing() -> None:
    """A number of more than 64 bits is an error; what was written before and is written next is whole."""
    writer = ColumnWriter()
    writer.add_operations(0, codes.PRODUCE, batch_of([5, 9]), [], 1, bare=False)
    with pytest.raises((OverflowError, ValueError)):
        writer.add_operations(0, codes.PRODUCE, batch_of([1, 2**70]), [], 1, bare=False)
    writer.add_operations(0, codes.PRODUCE, batch_of([7, 8]), [], 1, bare=False)
    assert ids_in(writer) == [5, 9, 7, 8]


def test_it_grows_with_what_is_written_and_begins_anew() -> None:
    """More than there was room for, several times over; what is cleared is gone, names too."""
    writer = ColumnWriter()
    for _ in range(2):
        ids = [place * place for place in range(1, 300_000)]
        writer.add_operations(0, codes.PRODUCE, batch_of(ids), [], 1, bare=False)
        writer.add_operations(0, codes.PRODUCE, batch_of([1, 4]), [], 1, bare=False)
        assert ids_in(writer) == [*ids, 1, 4]
        assert writer.names == {("orders", 0): 0}
        writer.clear()
        assert (writer.length, writer.names) == (0, {})


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
            writer.add_completions(0, completions_of(8), NO_EXTRA)
            writer.clear()
        return sys.getallocatedblocks()

    before = pack(100)
    assert pack(2_000) - before < 1_000
