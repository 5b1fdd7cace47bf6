"""Registrations from wire to engine: columns are copied, rows are gathered into runs of one kind. Pure functions.

The engine checks operations one by one, names, values and ids. Only what rows can get wrong before there is a column of
it is refused here: a row without a condition, and ids that do not rise from one run to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import OperationBatch, PartitionName, Refusal
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, default_of
from purgatory.service.rpc.refusals import unreadable_batch
from purgatory.v1 import operation_pb2

CONDITION_KINDS: Final = {name: kind for kind, name in codes.KIND_NAMES.items()}
MIN_BYTES_DEFAULT: Final = default_of("min_bytes", codes.FETCH)
PARTITION_MAX_BYTES_DEFAULT: Final = default_of("partition_max_bytes", codes.FETCH)
REQUIRED_COUNT_DEFAULT: Final = default_of("offset", codes.SIGNAL)
KINDS_SAID: Final = ", ".join(f"{kind} ({name})" for kind, name in codes.KIND_NAMES.items())
NO_CONDITION: Final = f"is not set: set one of {', '.join(CONDITION_KINDS)}"


class OperationRun:
    """Operations of one kind that follow each other in a batch, as the engine takes them.

    `indexes` holds the place of each in the batch as it came (None: the same place).
    """

    def __init__(self, kind: int, batch: OperationBatch, indexes: list[int] | None = None) -> None:
        self.kind: Final = kind
        self.batch: Final = batch
        self._indexes: Final = indexes

    def index_of(self, place: int) -> int:
        """The place in the batch as it came of the run's operation at `place`."""
        return place if self._indexes is None else self._indexes[place]


def runs_from_columns(columns: operation_pb2.OperationColumns) -> list[OperationRun]:
    """A batch of columns as one run. Raises `BatchRefused` for an unknown kind."""
    kind = int(columns.kind)
    if kind not in codes.KINDS:
        raise unreadable_batch("columns.kind", f"must be one of {KINDS_SAID}, not {kind}")
    batch = OperationBatch(
        columns.operation_id[:],
        partitions=[(name.topic, name.partition) for name in columns.partitions],
        keys=columns.keys[:],
        timeouts_ms=columns.timeout_ms[:],
        item_counts=columns.item_count[:],
        item_indexes=columns.item_index[:],
        **{column.batch_name: getattr(columns, column.wire_name)[:] for column in COLUMNS_BY_NAME.values()},
    )
    return [OperationRun(kind, batch)]


def run_from_row(operation: operation_pb2.Operation, operation_id: int, timeout_ms_default: int) -> OperationRun | None:
    """One row by itself, whose own id is passed over. None: it has no condition."""
    condition = operation.WhichOneof("condition")
    if condition is None:
        return None
    gathering = _Gathering(CONDITION_KINDS[condition], timeout_ms_default)
    gathering.add(0, operation_id, operation)
    return gathering.finish()


def runs_from_rows(
    operations: Sequence[operation_pb2.Operation], timeout_ms_default: int
) -> tuple[list[OperationRun], list[tuple[Refusal, int]]]:
    """Rows gathered into runs of one kind, in order, and the rows that are refused here, each with its operation id."""
    runs: list[OperationRun] = []
    refused: list[tuple[Refusal, int]] = []
    gathering: _Gathering | None = None
    highest = 0
    for index, operation in enumerate(operations):
        operation_id = operation.operation_id
        condition = operation.WhichOneof("condition")
        if condition is None:
            refused.append((Refusal(index, codes.INVALID_ARGUMENT, "condition", NO_CONDITION), operation_id))
        elif 0 < operation_id <= highest:
            message = f"{operation_id} does not rise; the highest before it was {highest}"
            refused.append((Refusal(index, codes.INVALID_ARGUMENT, "operation_id", message), operation_id))
        else:
            kind = CONDITION_KINDS[condition]
            if gathering is None or gathering.kind != kind:
                if gathering is not None:
                    runs.append(gathering.finish())
                gathering = _Gathering(kind, timeout_ms_default)
            gathering.add(index, operation_id, operation)
        highest = max(highest, operation_id)
    if gathering is not None:
        runs.append(gathering.finish())
    return runs, refused


class _Gathering:
    """The columns of the run being gathered. Every column is full: rows say each value or have its default."""

    def __init__(self, kind: int, timeout_ms_default: int) -> None:
        self.kind: Final = kind
        self._timeout_ms_default: Final = timeout_ms_default
        self._indexes: Final[list[int]] = []
        self._names: Final[dict[PartitionName, int]] = {}
        """Dictionary of partitions, or of keys as (key, -1)."""
        self._batch: Final = OperationBatch.to_fill()

    def add(self, index: int, operation_id: int, operation: operation_pb2.Operation) -> None:
        """Appends one row."""
        timeout_ms = operation.timeout_ms if operation.HasField("timeout_ms") else self._timeout_ms_default
        self._indexes.append(index)
        self._batch.operation_ids.append(operation_id)
        self._batch.timeouts_ms.append(timeout_ms)
        if self.kind == codes.PRODUCE:
            self._add_produce(operation.produce)
        elif self.kind == codes.FETCH:
            self._add_fetch(operation.fetch)
        elif self.kind == codes.DELETE_RECORDS:
            self._add_delete_records(operation.delete_records)
        else:
            self._add_signal(operation.signal)

    def finish(self) -> OperationRun:
        """The run that was gathered."""
        if self.kind == codes.SIGNAL:
            self._batch.keys.extend(key for key, _ in self._names)
        else:
            self._batch.partitions.extend(self._names)
        return OperationRun(self.kind, self._batch, self._indexes)

    def _add_item(self, name: PartitionName) -> None:
        self._batch.item_indexes.append(self._names.setdefault(name, len(self._names)))

    def _add_produce(self, produce: operation_pb2.Produce) -> None:
        batch = self._batch
        batch.item_counts.append(len(produce.partitions))
        for item in produce.partitions:
            name = item.topic_partition
            self._add_item((name.topic, name.partition))
            batch.offsets.append(item.required_offset)
            batch.local_error_codes.append(item.local_error_code)
            batch.leader_epochs.append(item.leader_epoch if item.HasField("leader_epoch") else codes.UNKNOWN)

    def _add_fetch(self, fetch: operation_pb2.Fetch) -> None:
        batch = self._batch
        batch.item_counts.append(len(fetch.partitions))
        batch.min_bytes.append(fetch.min_bytes if fetch.HasField("min_bytes") else MIN_BYTES_DEFAULT)
        batch.replica_ids.append(fetch.replica_id if fetch.HasField("replica_id") else codes.UNKNOWN)
        batch.isolation_levels.append(fetch.isolation_level)
        batch.follower_reads.append(fetch.follower_reads)
        for item in fetch.partitions:
            self._add_item((item.topic_partition.topic, item.topic_partition.partition))
            batch.offsets.append(item.fetch_offset)
            batch.leader_epochs.append(
                item.current_leader_epoch if item.HasField("current_leader_epoch") else codes.UNKNOWN
            )
            batch.partition_max_bytes.append(
                item.partition_max_bytes if item.HasField("partition_max_bytes") else PARTITION_MAX_BYTES_DEFAULT
            )
            batch.last_fetched_epochs.append(
                item.last_fetched_epoch if item.HasField("last_fetched_epoch") else codes.UNKNOWN
            )
            batch.throttled.append(item.throttled)

    def _add_delete_records(self, delete_records: operation_pb2.DeleteRecords) -> None:
        batch = self._batch
        batch.item_counts.append(len(delete_records.partitions))
        for item in delete_records.partitions:
            self._add_item((item.topic_partition.topic, item.topic_partition.partition))
            batch.offsets.append(item.offset)
            batch.local_error_codes.append(item.local_error_code)

    def _add_signal(self, signal: operation_pb2.Signal) -> None:
        batch = self._batch
        batch.item_counts.append(len(signal.keys))
        batch.any_key.append(signal.any)
        batch.from_now.append(signal.from_now)
        for item in signal.keys:
            self._add_item((item.key, codes.UNKNOWN))
            batch.offsets.append(item.required_count if item.HasField("required_count") else REQUIRED_COUNT_DEFAULT)
