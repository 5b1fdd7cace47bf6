"""Results and receipts from the engine to the wire, as columns and as rows. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from purgatory.engine import codes
from purgatory.engine.batches import Refusal
from purgatory.engine.completions import FetchedPartition
from purgatory.service.outbox import Results, ResultSlice
from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2, result_pb2

MESSAGES_MAX: Final = 1_000
"""Refusals of one receipt that say their field and message; further ones say index, id and code only, so that the
receipt of a batch that is refused from end to end stays a small message."""


def operation_refusal(refusal: Refusal, operation_id: int, *, brief: bool = False) -> operation_pb2.OperationRefusal:
    """Why one operation was refused."""
    return operation_pb2.OperationRefusal(
        index=refusal.index,
        operation_id=operation_id,
        code=refusal.code,
        field="" if brief else refusal.field,
        message="" if brief else refusal.message,
    )


def operation_refusals(refused: Sequence[tuple[Refusal, int]]) -> list[operation_pb2.OperationRefusal]:
    """Why some operations were refused, in the order of the batch."""
    return [
        operation_refusal(refusal, operation_id, brief=place >= MESSAGES_MAX)
        for place, (refusal, operation_id) in enumerate(refused)
    ]


def event_refusals(refusals: Sequence[Refusal]) -> list[event_pb2.EventRefusal]:
    """Why some events were refused, in the order of the batch."""
    return [
        event_pb2.EventRefusal(
            index=refusal.index,
            code=refusal.code,
            error_code=refusal.error_code,
            field=refusal.field if place < MESSAGES_MAX else "",
            message=refusal.message if place < MESSAGES_MAX else "",
        )
        for place, refusal in enumerate(refusals)
    ]


def result_batch(
    first_sequence: int, slices: Sequence[ResultSlice], *, columns: bool
) -> purgatory_service_pb2.ResultBatch:
    """Consecutive results of one kind as one message."""
    if columns:
        return purgatory_service_pb2.ResultBatch(first_sequence=first_sequence, columns=result_columns(slices))
    rows = purgatory_service_pb2.ResultRows(results=[row for part in slices for row in result_rows(part)])
    return purgatory_service_pb2.ResultBatch(first_sequence=first_sequence, rows=rows)


def result_columns(slices: Sequence[ResultSlice]) -> result_pb2.ResultColumns:
    """Results of one kind as columns with one dictionary."""
    kind = slices[0].kind
    columns = result_pb2.ResultColumns(kind=kind)
    places: dict[tuple[str, int], int] = {}
    for part in slices:
        assert part.kind == kind, f"one message has one kind: {kind} and {part.kind}"
        _extend_columns(columns, part, places)
    if kind == codes.SIGNAL:
        columns.keys.extend(key for key, _ in places)
    else:
        for topic, partition in places:
            columns.partitions.add(topic=topic, partition=partition)
    if len(columns.item_index) == len(columns.operation_id) == columns.item_count[:].count(1):
        del columns.item_count[:]
    return columns


def _extend_columns(columns: result_pb2.ResultColumns, part: ResultSlice, places: dict[tuple[str, int], int]) -> None:
    completions = part.completions
    operations = slice(part.start, part.stop)
    items = slice(part.item_start, part.item_stop)
    columns.operation_id.extend(completions.operation_ids[operations])
    columns.outcome.extend(completions.outcomes[operations])
    columns.waited_ms.extend(completions.waited_ms[operations])
    columns.lateness_ms.extend(completions.lateness_ms[operations])
    columns.item_count.extend(completions.item_counts[operations])
    columns.item_index.extend([places.setdefault(name, len(places)) for name in completions.item_partitions[items]])
    columns.error_code.extend(completions.error_codes[items])
    columns.required_offset.extend(completions.required_offsets[items])
    columns.reached_offset.extend(completions.reached_offsets[items])
    columns.log_start_offset.extend(completions.log_start_offsets[items])
    columns.estimated_remaining_ms.extend(completions.estimated_remaining_ms[items])
    columns.pace_per_second.extend(completions.paces_per_second[items])
    if part.refusals:
        columns.refusals.extend(
            operation_refusal(part.refusals[place], completions.operation_ids[place])
            for place in range(part.start, part.stop)
        )
    elif part.kind == codes.FETCH:
        count = part.item_stop - part.item_start
        for fetched in completions.fetched[part.fetched_start : part.fetched_start + count]:
            columns.available_bytes.append(fetched.available_bytes)
            columns.high_watermark.append(fetched.high_watermark)
            columns.last_stable_offset.append(fetched.last_stable_offset)
            columns.diverging_epoch.append(fetched.diverging_epoch)
            columns.diverging_end_offset.append(fetched.diverging_end_offset)


def result_rows(part: ResultSlice) -> list[result_pb2.Result]:
    """Results of one kind as rows."""
    completions = part.completions
    rows: list[result_pb2.Result] = []
    item = part.item_start
    fetched = part.fetched_start
    for place in range(part.start, part.stop):
        count = completions.item_counts[place]
        row = result_pb2.Result(
            operation_id=completions.operation_ids[place],
            kind=part.kind,
            outcome=completions.outcomes[place],
            waited_ms=completions.waited_ms[place],
            lateness_ms=completions.lateness_ms[place],
            partitions=[
                _partition_result(
                    completions,
                    within,
                    part.kind,
                    completions.fetched[fetched + within - item] if part.kind == codes.FETCH else None,
                )
                for within in range(item, item + count)
            ],
        )
        if part.refusals:
            row.refusal.CopyFrom(operation_refusal(part.refusals[place], row.operation_id))
        rows.append(row)
        item += count
        fetched += count
    return rows


def _partition_result(
    completions: Results, item: int, kind: int, fetched: FetchedPartition | None
) -> result_pb2.PartitionResult:
    name = completions.item_partitions[item]
    remaining_ms = completions.estimated_remaining_ms[item]
    pace = completions.paces_per_second[item]
    return result_pb2.PartitionResult(
        topic_partition=None if kind == codes.SIGNAL else topic_partition(name),
        key=name[0] if kind == codes.SIGNAL else "",
        error_code=completions.error_codes[item],
        required_offset=completions.required_offsets[item],
        reached_offset=completions.reached_offsets[item],
        log_start_offset=completions.log_start_offsets[item],
        estimated_remaining_ms=None if remaining_ms < 0 else remaining_ms,
        pace_per_second=None if pace < 0 else pace,
        fetched=None if fetched is None else _fetched_partition(fetched),
    )


def _fetched_partition(fetched: FetchedPartition) -> result_pb2.FetchedPartition:
    diverging = fetched.diverging_epoch >= 0 or fetched.diverging_end_offset >= 0
    return result_pb2.FetchedPartition(
        available_bytes=fetched.available_bytes,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        diverging_epoch=fetched.diverging_epoch if diverging else None,
        diverging_end_offset=fetched.diverging_end_offset if diverging else None,
    )


def topic_partition(name: tuple[str, int]) -> operation_pb2.TopicPartition:
    """(topic, partition) as a message."""
    return operation_pb2.TopicPartition(topic=name[0], partition=name[1])
