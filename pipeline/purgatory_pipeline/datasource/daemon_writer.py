"""Writes the rows of a stream to a daemon, as events or registrations.

Tasks only collect their rows. All rows of a micro-batch are sent in `commit`, by one process, because events must be
applied in the order of their time and operation ids must rise.

Spark repeats a micro-batch if it was killed before it recorded the commit, so a repetition must change nothing.
Operation ids that the session already knows are not registered twice, and events are limited to `RISING_MARKS`.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import grpc
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import LongType, StructType, TimestampNTZType, TimestampType

from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_pipeline import sizes
from purgatory_pipeline.datasource.daemon_options import DaemonConnection, DaemonOptions
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream.shard_state import table_bytes
from purgatory_pipeline.stream.wire_records import Row, event_of, operation_of

CALL_S: Final = 30.0
RETRY_S: Final = 60.0
"""Calls that fail because the daemon is full or unavailable are repeated for this long."""
STALE_EPOCH: Final = 74
_FULL: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


@dataclass
class RowsToSend(WriterCommitMessage):
    """The rows of one task, as an Arrow stream."""

    octets: bytes


class DaemonWriter(DataSourceStreamArrowWriter, DataSourceArrowWriter):
    """Sends each micro-batch, or a whole frame, to the daemon when it is committed.

    Args:
        schema: The columns of the frame, as in the archive's tables. With a column `type` its rows are events and need
            the column `at`; with a column `kind` they are registrations and need the column `session_id`.
    """

    def __init__(self, options: DaemonOptions, schema: StructType) -> None:
        columns = schema.fieldNames()
        if ("type" in columns) == ("kind" in columns):
            raise PipelineError("rows are events with a column `type`, or registrations with a column `kind`")
        self._options: Final = options
        self._are_events: Final = "type" in columns
        required = "at" if self._are_events else "session_id"
        if required not in columns:
            raise PipelineError(f"column {required} is missing; the frame has {', '.join(columns)}")
        if self._are_events and not isinstance(schema["at"].dataType, TimestampType | TimestampNTZType | LongType):
            raise PipelineError(f"column at is a {schema['at'].dataType.simpleString()}; give a timestamp or a bigint")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = list(iterator)
        return RowsToSend(table_bytes(pa.Table.from_batches(batches)) if batches else b"")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        del batchId
        octets = [message.octets for message in messages if isinstance(message, RowsToSend) and message.octets]
        rows = [row for part in octets for row in pa.ipc.open_stream(part).read_all().to_pylist()]
        with closing(DaemonConnection(self._options)) as connection:
            if self._are_events:
                send_events(connection, [event_of(row) for row in in_order(rows)])
            else:
                register(connection, rows)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        """Nothing was sent."""


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Events by time, and of the same time in the archive's order, if it is given. Raises `PipelineError`."""
    missing = sum(row["at"] is None for row in rows)
    if missing:
        raise PipelineError(f"at: null in {missing} of {len(rows)} events; give the time of each event")
    return sorted(rows, key=lambda row: (row["at"], row.get("call_number") or 0, row.get("row") or 0))


def send_events(connection: DaemonConnection, events: Sequence[event_pb2.Event]) -> None:
    """Raises `PipelineError` if the daemon refuses an event. Events of a past leader epoch are skipped instead."""
    for part in call_parts(events):
        rows = event_pb2.EventRows(events=part)
        receipt = retried(connection, "Advance", wire.AdvanceRequest(rows=rows)).receipt
        wrong = [refusal for refusal in receipt.refusals if refusal.error_code != STALE_EPOCH]
        if wrong:
            raise PipelineError(f"{len(wrong)} events are refused, the first: {wrong[0].field}: {wrong[0].message}")


def register(connection: DaemonConnection, rows: Sequence[Row]) -> None:
    """Registers the operations of each session, by rising ids. An operation that the daemon refuses has a result with
    the reason.

    Raises `PipelineError` if a row cannot be sent, or an id was used before. Nothing was registered then.
    """
    ordered = sorted(
        rows, key=lambda row: (row["session_id"] or "", row.get("operation_id") or 0, row.get("item") or 0)
    )
    sessions = {
        session: [operation_of(list(items)) for _, items in groupby(rows_of, key=lambda row: row.get("operation_id"))]
        for session, rows_of in groupby(ordered, key=lambda row: row["session_id"] or "")
    }
    if "" in sessions:
        raise PipelineError("session_id: null or empty; give the session of each operation")
    incarnations = {
        session: incarnation_for(connection, session, [operation.operation_id for operation in operations])
        for session, operations in sessions.items()
    }
    for session, operations in sessions.items():
        for part in call_parts(operations):
            batch = wire.RegisterBatch(rows=operation_pb2.OperationRows(operations=part))
            # A session that is replaced in between refuses the rest: the whole micro-batch has to be sent again.
            request = wire.RegisterRequest(session_id=session, batch=batch, incarnation=incarnations[session])
            retried(connection, "Register", request)


def incarnation_for(connection: DaemonConnection, session: str, ids: Sequence[int]) -> str:
    """The incarnation of a session in which these ids, in rising order, can be registered.

    The daemon ignores ids up to the highest that it knows, because they were sent before. That is right only if this
    micro-batch was sent before, in whole or in part: then the highest known id is one of its own.

    Raises `PipelineError` if it is not.
    """
    nothing = wire.RegisterBatch(rows=operation_pb2.OperationRows())
    answer = retried(connection, "Register", wire.RegisterRequest(session_id=session, batch=nothing))
    known = answer.receipt.highest_operation_id
    low = [operation_id for operation_id in ids if operation_id <= known]
    if low and low[-1] != known:
        raise PipelineError(
            f"session {session}: operation ids {low[:5]} ({len(low)} in all) are not above {known}, the highest id of "
            "earlier micro-batches; let ids rise from each micro-batch to the next, or use another session"
        )
    return str(answer.incarnation)


def call_parts(messages: Iterable[Any]) -> Iterator[list[Any]]:
    """Consecutive parts of operations or events that each fit a call."""
    part: list[Any] = []
    part_bytes = 0
    for message in messages:
        size = message.ByteSize()
        if part and (len(part) == sizes.CALL_MESSAGES_MAX or part_bytes + size > sizes.CALL_BYTES_MAX):
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += size
    if part:
        yield part


def retried(connection: DaemonConnection, call: str, request: Any) -> Any:  # noqa: ANN401 - messages of either call
    """The answer to a call, which is repeated while the daemon is full or unavailable. Raises `PipelineError`."""
    deadline = time.monotonic() + RETRY_S
    while True:
        try:
            return getattr(connection.stub, call)(request, timeout=CALL_S, metadata=connection.metadata)
        except grpc.RpcError as error:
            if error.code() not in _FULL or time.monotonic() > deadline:
                raise PipelineError(f"{call}: {error.code().name}: {error.details()}") from error
        time.sleep(0.5)
