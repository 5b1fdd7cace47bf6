"""Composites between wire and engine: both shapes give the same batch, whatever is repeated and however it is split."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory import sizes
from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch
from purgatory.engine.completions import Completions
from purgatory.service.errors import BatchRejected
from purgatory.service.translate.operations import parts_from_columns, parts_from_rows
from purgatory.service.translate.result_slices import slices_of
from purgatory.service.translate.results import fill_columns, fill_rows
from purgatory.v1 import operation_pb2, purgatory_service_pb2, result_pb2

COMPOSITE = operation_pb2.OPERATION_KIND_COMPOSITE
Given = tuple[str, int, int]
"""A term: its topic or key, its partition (-1: a key), and its offset or count (-1: not given)."""
TERMS = st.tuples(st.sampled_from("abc"), st.sampled_from([-1, 0, 1]), st.integers(-1, 3))
OPERATIONS = st.lists(
    st.tuples(st.lists(TERMS, min_size=1, max_size=4), st.lists(TERMS, max_size=3), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)


def term_of(name: str, partition: int, required: int) -> operation_pb2.Term:
    if partition < 0:
        return operation_pb2.Term(
            signal=operation_pb2.SignalKey(key=name, required_count=None if required < 0 else required)
        )
    topic_partition = operation_pb2.TopicPartition(topic=name, partition=partition)
    return operation_pb2.Term(
        mark=operation_pb2.MarkTerm(topic_partition=topic_partition, required_offset=max(0, required))
    )


def row_of(terms: list[Given], unless: list[Given] = [], required_terms: int = 0, operation_id: int = 1) -> Any:  # noqa: ANN401, B006
    composite = operation_pb2.Composite(
        terms=[term_of(*one) for one in terms],
        unless=[term_of(*one) for one in unless],
        required_terms=required_terms,
    )
    return operation_pb2.Operation(operation_id=operation_id, timeout_ms=50, composite=composite)


def columns_of(operations: list[tuple[list[Given], list[Given], int]]) -> operation_pb2.OperationColumns:
    items = [term for terms, unless, _ in operations for term in (*terms, *unless)]
    partitions = sorted({(name, number) for name, number, _ in items if number >= 0})
    keys = sorted({name for name, number, _ in items if number < 0})
    names = [*partitions, *((key, -1) for key in keys)]
    return operation_pb2.OperationColumns(
        kind=COMPOSITE,
        partitions=[operation_pb2.TopicPartition(topic=name, partition=number) for name, number in partitions],
        keys=keys,
        operation_id=range(1, len(operations) + 1),
        timeout_ms=[50],
        item_count=[len(terms) + len(unless) for terms, unless, _ in operations],
        item_index=[names.index((name, number)) for name, number, _ in items],
        offset=[required for _, _, required in items],
        required_terms=[required for _, _, required in operations],
        unless_count=[len(unless) for _, unless, _ in operations],
    )


def meaning(batch: OperationBatch) -> list[Any]:
    """Each operation of a batch: its id, both counts, and for each item its name and number."""
    names = [*batch.partitions, *((key, -1) for key in batch.keys)]
    found: list[Any] = []
    item = 0
    for place, operation_id in enumerate(batch.operation_ids):
        stop = item + batch.item_counts[place % len(batch.item_counts)]
        numbers = batch.offsets or [-1]
        items = []
        for one in range(item, stop):
            name, number = names[batch.item_indexes[one]], numbers[one % len(numbers)]
            items.append((name, number if number >= 0 else int(name[1] < 0)))
        required, unless = batch.required_terms or [0], batch.unless_counts or [0]
        found.append((operation_id, required[place % len(required)], unless[place % len(unless)], items))
        item = stop
    return found


@given(OPERATIONS)
def test_rows_and_columns_mean_the_same(operations: list[tuple[list[Given], list[Given], int]]) -> None:
    """Names may be repeated within an arm, in both, and as a topic and a key. A number that is not given is 0 for a
    partition and 1 for a key.
    """
    expected = [
        (place, required, len(unless), [((name, part), number if number >= 0 else int(part < 0))
         for name, part, number in (*terms, *unless)])
        for place, (terms, unless, required) in enumerate(operations, 1)
    ]  # fmt: skip
    rows = [row_of(terms, unless, required, place) for place, (terms, unless, required) in enumerate(operations, 1)]
    [([by_row], refused, _)] = parts_from_rows(rows, 30_000)
    [([by_column], _, _)] = parts_from_columns(columns_of(operations), 1_000)
    assert refused == []
    assert meaning(by_row.batch) == meaning(by_column.batch) == expected


def test_long_batches_are_split_between_operations() -> None:
    """A part has at most so many items, and its own dictionary; together the parts mean what the batch means."""
    operations = [
        ([(f"t{number}", 0, number), (f"k{number}", -1, 2)], [(f"k{number + 1}", -1, -1)], 1)
        for number in range(sizes.VALUES_PER_PART)
    ]
    columns = columns_of(operations)
    parts = list(parts_from_columns(columns, 10_000))
    assert len(parts) > 1
    assert all(len(run.batch.item_indexes) <= sizes.VALUES_PER_PART for runs, _, _ in parts for run in runs)
    found = [one for runs, _, _ in parts for run in runs for one in meaning(run.batch)]
    assert [(place, len(items)) for place, _, _, items in found] == [(place, 3) for place in columns.operation_id]
    assert found[7] == (8, 1, 1, [(("t7", 0), 7), (("k7", -1), 2), (("k8", -1), 1)])


def test_one_index_may_stand_for_all_items() -> None:
    """The engine and its listeners get an index for each item, and the batch is split by the number of its items."""
    columns = operation_pb2.OperationColumns(
        kind=COMPOSITE, keys=["k"], operation_id=[1, 2, 3], item_count=[1_500], offset=[4]
    )
    parts = list(parts_from_columns(columns, 10_000))
    assert [run.batch.item_indexes for runs, _, _ in parts for run in runs] == [[0] * 1_500] * 3
    with pytest.raises(BatchRejected, match="4500 items; at most 4000 are allowed") as raised:
        parts_from_columns(columns, 4_000)
    assert raised.value.refusal.field == "columns.item_count"


def test_results_name_partitions_and_keys_in_both_shapes() -> None:
    """Items keep the order of the request; in columns the dictionary has partitions first, then keys."""
    completions = Completions(1)
    names = [("k", -1), ("a", 3), ("k", -1), ("b", 0), ("b", -1)]
    for place, name in enumerate(names):
        completions.add_item(name, 1_002 if place == 4 else 7, place, place + 1, 0, -1, -1.0)
    completions.add_operation(9, codes.COMPOSITE, codes.FAILED, 5, 0, len(names))
    completions.finish()
    [part] = slices_of(completions)
    rows, columns = purgatory_service_pb2.ResultRows(), result_pb2.ResultColumns()
    fill_rows(rows.results, part)
    fill_columns(columns, [part])
    [row] = rows.results
    shown = [(one.key, -1) if one.key else (one.topic_partition.topic, one.topic_partition.partition)
             for one in row.partitions]  # fmt: skip
    dictionary = [*((one.topic, one.partition) for one in columns.partitions), *((key, -1) for key in columns.keys)]
    assert shown == [dictionary[index] for index in columns.item_index] == names
    assert [one.error_code for one in row.partitions] == list(columns.error_code) == [7, 7, 7, 7, 1_002]
