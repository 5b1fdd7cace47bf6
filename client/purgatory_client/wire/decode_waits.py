"""Decodes waits: from columns of an outbox file back to the wait or batch that `encode_waits` encoded."""

from collections.abc import Iterable
from typing import Any

from purgatory.v1 import operation_pb2 as wire
from purgatory_client.batches import WaitBatch
from purgatory_client.partition_names import PartitionName
from purgatory_client.results import OperationKind
from purgatory_client.waits import ITEM_DEFAULTS, Wait

OPERATION_COLUMNS = (
    "min_bytes", "replica_id", "isolation_level", "follower_reads", "any", "from_now", "heartbeat_timeout_ms",
    "required_terms", "unless_count",
)  # fmt: skip


def wait_of(columns: wire.OperationColumns) -> Wait:
    names = _names(columns)
    count = columns.item_count[0] if columns.item_count else 1
    indexes = list(columns.item_index) or [0] * count
    options = {name: column[0] for name, column in _present(columns, OPERATION_COLUMNS).items()}
    if OperationKind(columns.kind) == OperationKind.SIGNAL:
        # Outboxes of older versions do not have it, and all waits of one kind must have the same columns.
        options.setdefault("heartbeat_timeout_ms", -1)
    return Wait(
        OperationKind(columns.kind),
        [names[index] for index in indexes],
        _filled(columns.offset, count),
        columns.timeout_ms[0] if columns.timeout_ms else None,
        options,
        {name: _filled(column, count) for name, column in _present(columns, ITEM_DEFAULTS).items()},
        columns.stale_timeout_ms[0] if columns.stale_timeout_ms else None,
        operation_id=columns.operation_id[0],
    )


def batch_of(columns: wire.OperationColumns) -> WaitBatch:
    batch = WaitBatch(
        OperationKind(columns.kind),
        _names(columns),
        indexes=list(columns.item_index),
        offsets=list(columns.offset),
        timeouts_ms=list(columns.timeout_ms),
        item_counts=list(columns.item_count) or None,
    )
    assert batch.count == len(columns.operation_id), f"{len(columns.operation_id)} ids for {batch.count} operations"
    batch.set_columns(_present(columns, (*OPERATION_COLUMNS, "stale_timeout_ms", *ITEM_DEFAULTS)))
    batch.operation_id = columns.operation_id[0]
    return batch


def _names(columns: wire.OperationColumns) -> list[PartitionName | str]:
    return [*((one.topic, one.partition) for one in columns.partitions), *columns.keys]


def _present(columns: wire.OperationColumns, fields: Iterable[str]) -> dict[str, Any]:
    return {field: list(column) for field in fields if (column := getattr(columns, field))}


def _filled(column: Iterable[int], count: int) -> list[int]:
    values = list(column)
    return values * count if len(values) == 1 else values
