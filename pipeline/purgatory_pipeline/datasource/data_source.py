"""`PurgatoryDataSource`: what Spark calls for the format `purgatory`; and its table of pending operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from purgatory.engine.codes import KIND_NAMES
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_pipeline.datasource.daemon_options import SESSION, DaemonConnection, DaemonOptions
from purgatory_pipeline.datasource.daemon_writer import DaemonWriter
from purgatory_pipeline.datasource.result_reader import ResultReader
from purgatory_pipeline.datasource.session_results import RESULT_ROWS
from purgatory_pipeline.errors import PipelineError

PAGE: Final = 1_000
CALL_S: Final = 30.0

PENDING_ITEM: Final = pa.struct(
    [
        ("topic", pa.string()),  # or the key
        ("partition", pa.int32()),  # null: a key
        ("required_offset", pa.int64()),
        ("reached_offset", pa.int64()),
        ("error_code", pa.int32()),  # 7: still waited for
    ]
)
INSTANT: Final = pa.timestamp("us", tz="UTC")
PENDING_ROWS: Final = pa.schema(
    [
        ("session", pa.string()),  # empty: single calls
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("registered_at", INSTANT),
        ("deadline_at", INSTANT),
        ("waited_ms", pa.int64()),
        ("remaining_ms", pa.int64()),
        ("principal", pa.string()),
        ("items", pa.list_(PENDING_ITEM)),
    ]
)
"""The columns of a read of pending operations."""


class PendingReader(DataSourceReader):
    """Pages through the daemon's listing in one task. Operations that end during the read may be missing."""

    def __init__(self, options: DaemonOptions) -> None:
        self._options: Final = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        token = ""
        with closing(DaemonConnection(self._options)) as connection:
            while True:
                request = wire.ListOperationsRequest(page_size=PAGE, page_token=token)
                page = connection.stub.ListOperations(request, timeout=CALL_S, metadata=connection.metadata)
                rows = [pending_row(one) for one in page.operations if self._is_wanted(one)]
                if rows:
                    yield from pa.Table.from_pylist(rows, PENDING_ROWS).to_batches()
                token = page.next_page_token
                if not token:
                    return

    def _is_wanted(self, operation: wire.PendingOperation) -> bool:
        prefix = self._options.topic_prefix
        return any((item.key or item.topic_partition.topic).startswith(prefix) for item in operation.partitions)


def pending_row(operation: wire.PendingOperation) -> dict[str, Any]:
    return {
        "session": operation.session_id,
        "operation_id": operation.operation_id,
        "kind": KIND_NAMES[operation.kind],
        "registered_at": operation.registered_time.ToDatetime(UTC),
        "deadline_at": operation.deadline_time.ToDatetime(UTC),
        "waited_ms": operation.waited_ms,
        "remaining_ms": operation.remaining_ms,
        "principal": operation.principal,
        "items": [
            {
                "topic": item.key or item.topic_partition.topic,
                "partition": None if item.key else item.topic_partition.partition,
                "required_offset": item.required_offset,
                "reached_offset": item.reached_offset,
                "error_code": item.error_code,
            }
            for item in operation.partitions
        ],
    }


class PurgatoryDataSource(DataSource):
    """Register it with `spark.dataSource.register(PurgatoryDataSource)`.

    - `spark.readStream.format("purgatory").option("session", NAMES)`: results (`RESULT_ROWS`), exactly once.
    - `frame.writeStream.format("purgatory")`, `frame.write.format("purgatory").mode("append")`: events and
      registrations, with the archive's columns.
    - `spark.read.format("purgatory")`: pending operations (`PENDING_ROWS`).

    The options are those of `DaemonOptions`.
    """

    @classmethod
    def name(cls) -> str:
        return "purgatory"

    def schema(self) -> StructType:
        """The columns of results if sessions are named, else those of pending operations."""
        return from_arrow_schema(RESULT_ROWS if self.options.get(SESSION) else PENDING_ROWS)

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return PendingReader(DaemonOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PipelineError('a daemon is never overwritten: give .mode("append")')
        return DaemonWriter(DaemonOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return ResultReader(DaemonOptions.of(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        del overwrite
        return DaemonWriter(DaemonOptions.of(self.options), schema)
