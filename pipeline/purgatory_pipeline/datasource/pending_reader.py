"""Reads the pending operations of a daemon, or of a stream by its checkpoint, as a table."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, InputPartition

from purgatory.engine.codes import KIND_NAMES
from purgatory.engine.views import PendingView
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_pipeline.datasource.daemon_options import DaemonConnection, DaemonOptions
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.location import open_location
from purgatory_pipeline.page.wording import milliseconds, text
from purgatory_pipeline.stream.outcome_rows import INSTANT
from purgatory_pipeline.stream.shard_state import ShardLayout, saved_layout

PAGE: Final = 1_000
CALL_S: Final = 30.0
KINDS: Final = {name: kind for kind, name in KIND_NAMES.items()}

PENDING_ITEM: Final = pa.struct(
    [
        ("topic", pa.string()),  # or the key
        ("partition", pa.int32()),  # null: a key
        ("required_offset", pa.int64()),
        ("reached_offset", pa.int64()),
        ("error_code", pa.int32()),  # 7: still waited for
    ]
)
PENDING_ROWS: Final = pa.schema(
    [
        ("session", pa.string()),  # empty: single calls; of a stream: the caller
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("registered_at", INSTANT),
        ("deadline_at", INSTANT),
        ("waited_ms", pa.int64()),
        ("remaining_ms", pa.int64()),
        ("principal", pa.string()),  # of a stream: empty
        ("items", pa.list_(PENDING_ITEM)),
    ]
)
"""The columns of a read of pending operations."""
Row = dict[str, Any]


@dataclass
class PendingShard(InputPartition):
    """A shard of a stream, as it was before a micro-batch."""

    layout: ShardLayout
    number: int
    batch: int

    def pages(self) -> Iterator[list[Row]]:
        """Raises `PipelineError` if the stream has committed two more micro-batches since."""
        shard = self.layout.load(self.number, self.batch, delay_ms=0)
        start = -1 if shard.engine is None else 0
        while start >= 0 and shard.engine is not None:
            views, start = shard.engine.inspection.list_pending(start, PAGE)
            places = shard.callers.places(np.array([view.operation_id for view in views], np.int64))
            callers = shard.callers.table.take(pa.array(places)).to_pylist()
            yield [shard_row(view, shard.clock_ms, **one) for view, one in zip(views, callers, strict=True)]


def pending_shards(checkpoint: str) -> list[PendingShard]:
    """The shards of a stream after its last committed micro-batch. Raises `PipelineError` without a checkpoint."""
    layout = saved_layout(checkpoint)
    if layout is None:
        raise PipelineError(f"{checkpoint} is not the checkpoint of a stream; by default it is RESULTS/_checkpoint")
    last = open_location(checkpoint).child("commits").last_number()
    return [PendingShard(layout, number, 0 if last is None else last + 1) for number in range(layout.shards)]


class PendingReader(DataSourceReader):
    """Pages through the daemon's listing in one task, or reads each shard of a stream in a task of its own.

    Operations that end during the read may be missing.
    """

    def __init__(self, options: DaemonOptions) -> None:
        self._options: Final = options
        self._equal: Final[dict[str, str]] = {}
        """Pushed down: the values that columns must have."""

    def partitions(self) -> Sequence[InputPartition]:
        return pending_shards(self._options.checkpoint) if self._options.checkpoint else [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for page in partition.pages() if isinstance(partition, PendingShard) else self._pages():
            yield from pa.Table.from_pylist([row for row in page if self._is_wanted(row)], PENDING_ROWS).to_batches()

    def _is_wanted(self, row: Row) -> bool:
        prefix = self._options.topic_prefix
        is_equal = all(row[name] == value for name, value in self._equal.items())
        return is_equal and any(item["topic"].startswith(prefix) for item in row["items"])

    def _pages(self) -> Iterator[list[Row]]:
        request = wire.ListOperationsRequest(page_size=PAGE, kind=KINDS.get(self._equal.get("kind", ""), 0))
        # A daemon looks for a session without a principal among the caller's own.
        if self._equal.get("session") and "principal" in self._equal:
            request.session_id, request.principal = self._equal["session"], self._equal["principal"]
        with closing(DaemonConnection(self._options)) as connection:
            while True:
                try:
                    page = connection.stub.ListOperations(request, timeout=CALL_S, metadata=connection.metadata)
                except grpc.RpcError as error:
                    if request.session_id and error.code() is grpc.StatusCode.NOT_FOUND:
                        return
                    raise
                yield [pending_row(one) for one in page.operations]
                request.page_token = page.next_page_token
                if not request.page_token:
                    return


class FilteringReader(PendingReader):
    """Takes equalities from Spark, which compares again."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute[0] in ("session", "kind", "principal"):
                self._equal[one.attribute[0]] = one.value
        return filters


def pending_row(operation: wire.PendingOperation) -> Row:
    times = (operation.registered_time.ToDatetime(UTC), operation.deadline_time.ToDatetime(UTC))
    items = []
    for item in operation.partitions:
        name = (item.key, None) if item.key else (item.topic_partition.topic, item.topic_partition.partition)
        items.append((*name, item.required_offset, item.reached_offset, item.error_code))
    kind, numbers = KIND_NAMES[operation.kind], (operation.waited_ms, operation.remaining_ms)
    return _row(operation.session_id, operation.operation_id, kind, *times, *numbers, operation.principal, items)


def shard_row(
    view: PendingView, now_ms: int, *, engine_id: int, caller: str, operation_id: int, registered_ms: int
) -> Row:
    """A pending operation of a stream, at an instant of the stream. The keywords are those of `CALLERS`."""
    del engine_id
    times = (registered_ms * 1_000, view.deadline_ms * 1_000)
    items = [
        (topic, None if number < 0 else number, required, reached, code)
        for (topic, number), code, required, reached, *_ in view.items
    ]
    numbers = (now_ms - registered_ms, view.deadline_ms - now_ms)
    return _row(caller, operation_id, KIND_NAMES[view.kind], *times, *numbers, "", items)


def _row(*values: Any) -> Row:  # noqa: ANN401 - those of `PENDING_ROWS`
    row = dict(zip(PENDING_ROWS.names, values, strict=True))
    row["items"] = [dict(zip(PENDING_ITEM.names, item, strict=True)) for item in row["items"]]
    return row


def longest_waiting(checkpoint: str, topic_prefix: str, limit: int) -> tuple[list[Row], str]:
    """The longest waits of a stream on these topics and keys, and a line about all of them."""
    reader = PendingReader(DaemonOptions.of({"checkpoint": checkpoint, "topicPrefix": topic_prefix}))
    shards = pending_shards(checkpoint)
    table = pa.Table.from_batches([batch for shard in shards for batch in reader.read(shard)], PENDING_ROWS)
    order = [("waited_ms", "descending"), ("operation_id", "ascending")]
    oldest = table.take(pc.select_k_unstable(table, limit, order)).to_pylist()
    return oldest, f"{table.num_rows:,} pending before micro-batch {shards[0].batch} in {len(shards)} shards"


def pending_line(row: Row) -> str:
    items = [
        f"{text(item['topic'])}{'' if item['partition'] is None else '-' + str(item['partition'])}"
        f" {item['reached_offset']:,} of {item['required_offset']:,}"
        for item in row["items"]
    ]
    times = f"waited {milliseconds(row['waited_ms'])}, {milliseconds(row['remaining_ms'])} left"
    return f"{text(row['session'])}/{row['operation_id']}  {row['kind']}, {times}: {', '.join(items)}"
