"""Composites between wire and engine: numbers that are not given, and an index that stands for all items."""

import pytest
from google.protobuf import text_format

from purgatory.service.errors import BatchRejected
from purgatory.service.translate import batch_limits
from purgatory.service.translate.operations import parts_from_columns, parts_from_rows
from purgatory.v1 import operation_pb2

COMPOSITE = operation_pb2.OPERATION_KIND_COMPOSITE


def test_number_that_is_not_given_is_the_same_in_rows_and_columns() -> None:
    """-1, which the engine reads as 0 for a partition and 1 for a key."""
    mark, key = 'mark { topic_partition { topic: "a" } }', 'signal { key: "a" }'
    row = text_format.Parse(
        f"operation_id: 1 timeout_ms: 50 composite {{ terms {{ {mark} }} terms {{ {key} }} unless {{ {key} }} }}",
        operation_pb2.Operation(),
    )
    columns = operation_pb2.OperationColumns(
        kind=COMPOSITE, partitions=[operation_pb2.TopicPartition(topic="a")], keys=["a"], operation_id=[1],
        timeout_ms=[50], item_count=[3], item_index=[0, 1, 1], offset=[-1, -1, -1], unless_count=[1],
    )  # fmt: skip
    [([by_row], refused, _)] = parts_from_rows([row], 30_000)
    [([by_column], _, _)] = parts_from_columns(columns)
    assert refused == []
    for batch in (by_row.batch, by_column.batch):
        assert (batch.partitions, batch.keys, batch.item_indexes) == ([("a", 0)], ["a"], [0, 1, 1])
        assert (batch.item_counts, batch.unless_counts) == ([3], [1])
        assert [max(offset, least) for offset, least in zip(batch.offsets, [0, 1, 1], strict=True)] == [0, 1, 1]


def test_one_index_may_stand_for_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine and its listeners get an index for each item, and the batch is split by the number of its items."""
    columns = operation_pb2.OperationColumns(
        kind=COMPOSITE, keys=["k"], operation_id=[1, 2, 3], item_count=[1_500], offset=[4]
    )
    parts = list(parts_from_columns(columns))
    assert [run.batch.item_indexes for runs, _, _ in parts for run in runs] == [[0] * 1_500] * 3
    monkeypatch.setattr(batch_limits, "ITEMS_MAX", 4_000)
    with pytest.raises(BatchRejected, match="4500 items; at most 4000 are allowed") as raised:
        parts_from_columns(columns)
    assert raised.value.refusal.field == "columns.item_count"
