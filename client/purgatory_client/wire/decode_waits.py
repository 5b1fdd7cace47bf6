"""Decodes waits: from columns of an outbox file to the wait or batch that `encode_waits` made them of."""

from typing import Any

from purgatory.v1 import operation_pb2 as wire
from purgatory_client.many import WaitColumns
from purgatory_client.partition_names import PartitionName
from purgatory_client.results import OperationKind
from purgatory_client.waits import PARTITION_MAX_BYTES_DEFAULT, FetchOptions, Wait

OPERATION_COLUMNS = ("min_bytes", "replica_id", "isolation_level", "follower_reads", "any", "from_now")
ITEM_COLUMNS = ("leader_epoch", "local_error_code", "partition_max_bytes", "last_fetched_epoch", "throttled")


def wait_of(columns: wire.OperationColumns) -> Wait:
    kind = OperationKind(columns.kind)
    names = _names(columns)
    count = columns.item_count[0] if columns.item_count else 1
    indexes = list(columns.item_index) or [0] * count
    used: Any = [names[index] for index in indexes]
    return Wait(
        kind,
        used,
        _filled(columns.offset, count, 0),
        columns.timeout_ms[0] if columns.timeout_ms else None,
        local_error_codes=_filled(columns.local_error_code, count, 0) if columns.local_error_code else None,
        leader_epochs=_filled(columns.leader_epoch, count, -1) if columns.leader_epoch else None,
        fetch=_fetch(columns, count) if kind == OperationKind.FETCH else None,
        any_key=any(columns.any),
        from_now=any(columns.from_now),
        operation_id=columns.operation_id[0],
    )


def batch_of(columns: wire.OperationColumns) -> WaitColumns:
    batch = WaitColumns(
        OperationKind(columns.kind),
        _names(columns),
        indexes=list(columns.item_index),
        offsets=list(columns.offset),
        timeouts_ms=list(columns.timeout_ms),
        item_counts=list(columns.item_count) or None,
    )
    assert batch.count == len(columns.operation_id), f"{len(columns.operation_id)} ids for {batch.count} operations"
    batch.operation_columns = {name: list(column) for name in OPERATION_COLUMNS if (column := getattr(columns, name))}
    batch.item_columns = {name: list(column) for name in ITEM_COLUMNS if (column := getattr(columns, name))}
    batch.first_id = columns.operation_id[0]
    return batch


def _names(columns: wire.OperationColumns) -> Any:  # noqa: ANN401 - pairs or strings, as the kind has them
    pairs: list[PartitionName] = [(one.topic, one.partition) for one in columns.partitions]
    return pairs or list(columns.keys)


def _fetch(columns: wire.OperationColumns, count: int) -> FetchOptions:
    return FetchOptions(
        columns.min_bytes[0] if columns.min_bytes else 1,
        columns.replica_id[0] if columns.replica_id else -1,
        columns.isolation_level[0] if columns.isolation_level else 1,
        any(columns.follower_reads),
        _filled(columns.partition_max_bytes, count, PARTITION_MAX_BYTES_DEFAULT),
        _filled(columns.last_fetched_epoch, count, -1),
        _filled(columns.throttled, count, False),
    )


def _filled(column: Any, count: int, default: Any) -> list[Any]:  # noqa: ANN401 - of whatever the column is of
    values = list(column) or [default]
    return values * count if len(values) == 1 else values
