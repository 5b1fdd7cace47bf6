"""Messages to send to a daemon, and batches for a host in the test's own process."""

from collections.abc import Iterable, Sequence

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.service.translate.operations import OperationRun
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire


def produce(
    operation_id: int, topic: str, required_offset: int, timeout_ms: int | None = None, partition: int = 0
) -> operation_pb2.Operation:
    item = operation_pb2.ProducePartition(
        topic_partition=operation_pb2.TopicPartition(topic=topic, partition=partition), required_offset=required_offset
    )
    return operation_pb2.Operation(
        operation_id=operation_id, timeout_ms=timeout_ms, produce=operation_pb2.Produce(partitions=[item])
    )


def produce_columns(
    operation_ids: range, topic: str = "orders", *, offset: int = 1, timeout_ms: int = 600_000
) -> wire.RegisterBatch:
    """Equal waits for one mark of partition 0 of a topic, as columns."""
    columns = operation_pb2.OperationColumns(
        kind=operation_pb2.OPERATION_KIND_PRODUCE,
        partitions=[operation_pb2.TopicPartition(topic=topic)],
        operation_id=operation_ids,
        offset=[offset],
        timeout_ms=[timeout_ms],
    )
    return wire.RegisterBatch(batch_id=operation_ids.start, columns=columns)


def high_watermark(topic: str, offset: int, partition: int = 0, leader_epoch: int | None = None) -> event_pb2.Event:
    return event_pb2.Event(
        topic_partition=operation_pb2.TopicPartition(topic=topic, partition=partition),
        leader_epoch=leader_epoch,
        high_watermark=event_pb2.HighWatermark(offset=offset),
    )


def key_signalled(key: str, count: int | None = None, value: bytes | None = None) -> event_pb2.Event:
    return event_pb2.Event(key_signalled=event_pb2.KeySignalled(key=key, count=count, value=value))


def signal(operation_id: int, key: str, timeout_ms: int | None = None) -> operation_pb2.Operation:
    condition = operation_pb2.Signal(keys=[operation_pb2.SignalKey(key=key)])
    return operation_pb2.Operation(operation_id=operation_id, timeout_ms=timeout_ms, signal=condition)


def register_batch(*operations: operation_pb2.Operation, batch_id: int = 0) -> wire.RegisterBatch:
    return wire.RegisterBatch(batch_id=batch_id, rows=operation_pb2.OperationRows(operations=operations))


def advance_request(*events: event_pb2.Event) -> wire.AdvanceRequest:
    return wire.AdvanceRequest(rows=event_pb2.EventRows(events=events))


def register_request(session_id: str, *operations: operation_pb2.Operation) -> wire.RegisterRequest:
    return wire.RegisterRequest(session_id=session_id, batch=register_batch(*operations))


def produce_run(
    ids: Iterable[int], topic: str = "orders", offsets: Sequence[int] = (10,), timeout_ms: int = 600_000
) -> OperationRun:
    """Waits for offsets of partition 0, as a host registers them. One offset is that of all waits."""
    batch = OperationBatch(list(ids), partitions=[(topic, 0)], offsets=list(offsets), timeouts_ms=[timeout_ms])
    return OperationRun(codes.PRODUCE, batch)


def mark_batch(offset: int, topic: str = "orders", partition: int = 0) -> EventBatch:
    return EventBatch([codes.HIGH_WATERMARK], partitions=[(topic, partition)], offsets=[offset])
