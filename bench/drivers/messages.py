"""Wire messages that several drivers and peers send, for produce waits on the partitions of one topic.

Imports only the wire package, so that it imports quickly.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Final

from purgatory.v1 import event_pb2, operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

TIMEOUT_MS: Final = 600_000
HOUR_MS: Final = 3_600_000
TOPIC_NUMBERS: Final = itertools.count(time.monotonic_ns())


def new_topic() -> str:
    """A new topic for each run, because the daemon still has the previous run's marks."""
    return f"run-{next(TOPIC_NUMBERS)}"


def partitions_of(topic: str, count: int) -> list[operation_pb2.TopicPartition]:
    return [operation_pb2.TopicPartition(topic=topic, partition=number) for number in range(count)]


def produce_batch(
    topic: str,
    partitions: int,
    ids: Sequence[int],
    *,
    places: Sequence[int],
    offsets: Sequence[int],
    timeouts_ms: Sequence[int] = (TIMEOUT_MS,),
    batch_id: int = 0,
) -> wire.RegisterBatch:
    """Single-partition produce waits as columns; `places` are their partitions."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=partitions_of(topic, partitions),
        operation_id=ids,
        item_index=places,
        offset=offsets,
        timeout_ms=timeouts_ms,
    )
    return wire.RegisterBatch(batch_id=batch_id, columns=columns)


def marks_of(topic: str, count: int, offset: int) -> event_pb2.EventColumns:
    """The same high watermark for each of the first `count` partitions."""
    return event_pb2.EventColumns(
        partitions=partitions_of(topic, count),
        type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * count,
        item_index=range(count),
        offset=[offset],
    )


def mark_request(topic: str, partition: int, offset: int) -> wire.AdvanceRequest:
    """One high watermark, as a row."""
    name = operation_pb2.TopicPartition(topic=topic, partition=partition)
    event = event_pb2.Event(topic_partition=name, high_watermark=event_pb2.HighWatermark(offset=offset))
    return wire.AdvanceRequest(rows=event_pb2.EventRows(events=[event]))


def wait_request(topic: str, partition: int, offset: int) -> wire.WaitRequest:
    name = operation_pb2.TopicPartition(topic=topic, partition=partition)
    item = operation_pb2.ProducePartition(topic_partition=name, required_offset=offset)
    return wire.WaitRequest(
        operation=operation_pb2.Operation(timeout_ms=TIMEOUT_MS, produce=operation_pb2.Produce(partitions=[item]))
    )


def opening(session_id: str) -> wire.SessionRequest:
    """A message that opens a session whose results arrive as columns."""
    return wire.SessionRequest(open=wire.OpenSession(session_id=session_id, columns=True))


def acknowledgement(results: wire.ResultBatch) -> wire.SessionRequest:
    """A message that acknowledges these results."""
    last = results.first_sequence + len(results.columns.operation_id) - 1
    return wire.SessionRequest(acknowledge=wire.AcknowledgeResults(sequence=last))


def echoed(batch: wire.RegisterBatch) -> result_pb2.ResultColumns:
    """Results for a registration that the server answers at once: of the same number and size as the daemon's."""
    columns = batch.columns
    answer = result_pb2.ResultColumns(kind=columns.kind, partitions=columns.partitions)
    answer.operation_id.extend(columns.operation_id)
    answer.outcome.append(result_pb2.OUTCOME_SATISFIED)
    answer.item_index.extend(columns.item_index)
    answer.required_offset.extend(columns.offset)
    answer.reached_offset.extend(columns.offset[-1:])
    return answer
