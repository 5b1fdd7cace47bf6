"""The table of operation columns agrees with the batch and the wire."""

import pytest

from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import KINDS
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, OPERATION_COLUMNS, OperationColumn, columns_of
from purgatory.v1 import operation_pb2

WITHOUT_ROWS = {"operation_ids", "timeouts_ms", "item_counts", "item_indexes", "partitions", "keys"}
"""Part of every batch, so not in the table."""


def test_the_table_has_every_column_of_a_batch() -> None:
    batch = OperationBatch([])
    attributes = {name for name in dir(batch) if not name.startswith("_") and not callable(getattr(batch, name))}
    assert {column.batch_name for column in OPERATION_COLUMNS} == attributes - WITHOUT_ROWS


def test_the_table_has_every_column_of_the_wire() -> None:
    fields = {field.name for field in operation_pb2.OperationColumns.DESCRIPTOR.fields}
    others = {"kind", "operation_id", "timeout_ms", "item_count", "item_index", "partitions", "keys"}
    assert {column.wire_name for column in OPERATION_COLUMNS} == fields - others


@pytest.mark.parametrize("column", OPERATION_COLUMNS, ids=lambda column: f"{column.name}-{column.kinds}")
def test_uses_of_a_column_agree(column: OperationColumn) -> None:
    first = COLUMNS_BY_NAME[column.name]
    assert (column.batch_name, column.wire_name, column.level, column.type_name) == (
        first.batch_name,
        first.wire_name,
        first.level,
        first.type_name,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_column_once(kind: int) -> None:
    names = [column.name for column in columns_of(kind)]
    assert len(set(names)) == len(names)
    assert "offset" in names
