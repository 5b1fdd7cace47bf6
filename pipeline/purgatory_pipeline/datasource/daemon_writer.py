"""Spark as a client: rows of a stream become a daemon's events and registrations.

Tasks only hand their rows over; all are sent when the micro-batch is committed, by one process and in order, since the
ids of a session must rise. A batch that is done again, after a kill, says the same again, which changes nothing: ids
that are known are not registered twice, and marks only rise. Signals would be counted twice, so they are refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import grpc
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_pipeline.datasource.daemon_options import DaemonConnection, DaemonOptions
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream.shard.shard_bytes import table_bytes
from purgatory_pipeline.stream.wire_records import CONDITION_FIELDS, EVENT_FIELDS, ITEM_FIELDS, REPLICA_FIELDS

AT_A_TIME: Final = 1_000
CALL_S: Final = 30.0
RETRY_S: Final = 60.0
"""For so long a daemon that is away, or full, is asked again."""
STALE_EPOCH: Final = 74
_FULL: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_FLAGS: Final = {"leadership": ("is_leader",), "partition_removed": ("moved",), "replica_state": ("dead", "fenced")}

Row = dict[str, Any]


class RowsUnusable(PipelineError):
    """Rows that cannot be told to a daemon, or that it refuses."""


@dataclass
class RowsToSend(WriterCommitMessage):
    """The rows of one task, as an Arrow stream."""

    octets: bytes


class DaemonWriter(DataSourceStreamArrowWriter):
    """`columns`: those of the frame. With `type` its rows are events, with `kind` registrations, each with the columns
    of the archive's table; `session_id` says in which session.
    """

    def __init__(self, options: DaemonOptions, columns: Sequence[str]) -> None:
        if ("type" in columns) == ("kind" in columns):
            raise RowsUnusable("rows are events with a column `type`, or registrations with a column `kind`")
        self._options: Final = options
        self._are_events: Final = "type" in columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Hands over the rows of a task."""
        batches = list(iterator)
        return RowsToSend(table_bytes(pa.Table.from_batches(batches)) if batches else b"")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Sends all rows of a micro-batch."""
        del batchId
        octets = [message.octets for message in messages if isinstance(message, RowsToSend) and message.octets]
        rows = [row for part in octets for row in pa.ipc.open_stream(part).read_all().to_pylist()]
        connection = self._options.connect()
        try:
            if self._are_events:
                send_events(connection, [event_of(row) for row in rows])
            else:
                register(connection, rows)
        finally:
            connection.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing was sent."""


def send_events(connection: DaemonConnection, events: Sequence[event_pb2.Event]) -> None:
    """Raises `RowsUnusable` for one that the daemon refuses, but for those of a leader epoch that has gone."""
    for start in range(0, len(events), AT_A_TIME):
        rows = event_pb2.EventRows(events=events[start : start + AT_A_TIME])
        receipt = retried(connection, "Advance", wire.AdvanceRequest(rows=rows)).receipt
        wrong = [refusal for refusal in receipt.refusals if refusal.error_code != STALE_EPOCH]
        if wrong:
            raise RowsUnusable(f"{len(wrong)} events are refused, the first: {wrong[0].field}: {wrong[0].message}")


def register(connection: DaemonConnection, rows: Sequence[Row]) -> None:
    """Registers the operations of each session, by rising ids. What the daemon refuses one by one has a result that
    says so.
    """
    ordered = sorted(rows, key=lambda row: (row.get("session_id") or "", row["operation_id"], row.get("item") or 0))
    for session, of_session in groupby(ordered, key=lambda row: row.get("session_id") or ""):
        if not session:
            raise RowsUnusable("session_id: is not given: say in which session the operations are")
        operations = [
            operation_of(list(items)) for _, items in groupby(of_session, key=lambda row: row["operation_id"])
        ]
        for start in range(0, len(operations), AT_A_TIME):
            batch = wire.RegisterBatch(
                rows=operation_pb2.OperationRows(operations=operations[start : start + AT_A_TIME])
            )
            request = wire.RegisterRequest(session_id=session, batch=batch)
            receipt = retried(connection, "Register", request).receipt
            if receipt.HasField("batch_refusal"):
                raise RowsUnusable(f"session {session}: {receipt.batch_refusal.message}")


def retried(connection: DaemonConnection, call: str, request: Any) -> Any:  # noqa: ANN401 - messages of either call
    """The answer, as soon as the daemon has room. Raises `RowsUnusable` where it has refused the call."""
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return getattr(connection.stub, call)(request, timeout=CALL_S, metadata=connection.metadata)
        except grpc.RpcError as error:
            if error.code() not in _FULL or time.monotonic() > deadline:
                raise RowsUnusable(f"{call}: {error.code().name}: {error.details()}") from error
        time.sleep(0.5)


def event_of(row: Row) -> event_pb2.Event:
    """An event, from the archive's columns. Raises `RowsUnusable`."""
    name = row["type"]
    event = event_pb2.Event()
    if name == "key_signalled":
        raise RowsUnusable(
            "key_signalled: a signal would be counted twice after a kill: call the daemon from foreachBatch"
        )
    if name not in event.DESCRIPTOR.fields_by_name or name in ("topic_partition", "leader_epoch"):
        raise RowsUnusable(f"type: {name!r} is no type of event")
    message = getattr(event, name)
    message.SetInParent()
    event.topic_partition.topic, event.topic_partition.partition = row["topic"], row.get("partition") or 0
    if row.get("leader_epoch") is not None:
        event.leader_epoch = row["leader_epoch"]
    fill(message, row, EVENT_FIELDS)
    for place, flag in enumerate(_FLAGS.get(name, ())):
        setattr(message, flag, bool((row.get("flags") or 0) >> place & 1))
    if name in REPLICA_FIELDS:
        message.replica_ids.extend(row.get(REPLICA_FIELDS[name]) or ())
    return event


def operation_of(rows: Sequence[Row]) -> operation_pb2.Operation:
    """An operation, from the rows of its items. Raises `RowsUnusable`."""
    first = rows[0]
    kind = first["kind"]
    if kind not in ITEM_FIELDS:
        raise RowsUnusable(f"kind: {kind!r} is none of {', '.join(ITEM_FIELDS)}")
    operation = operation_pb2.Operation(operation_id=first["operation_id"])
    for name in ("timeout_ms", "blind_timeout_ms"):
        if first.get(name) is not None:
            setattr(operation, name, first[name])
    condition = getattr(operation, kind)
    fill(condition, first, CONDITION_FIELDS.get(kind, {}))
    for row in rows:
        if kind == "signal":
            item = condition.keys.add(key=row["topic"])
        else:
            item = condition.partitions.add()
            item.topic_partition.topic, item.topic_partition.partition = row["topic"], row.get("partition") or 0
        fill(item, row, ITEM_FIELDS[kind])
    return operation


def fill(message: Any, row: Row, columns: dict[str, str]) -> None:  # noqa: ANN401 - of any type
    """Sets the fields of a message that the row has values for."""
    for name, column in columns.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        value = row.get(column)
        if field is None or value is None:
            continue
        if field.is_repeated:
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
