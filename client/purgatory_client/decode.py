"""Wire to results: columns and rows both become `ResultColumns`, so that what follows knows one shape."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from purgatory.v1 import operation_pb2, result_pb2
from purgatory_client.errors import ProtocolError, PurgatoryClientError, from_code
from purgatory_client.results import OperationKind, ResultColumns

OF_OPERATIONS: Final = {"outcomes": 0, "waited_ms": 0, "lateness_ms": 0}
OF_ITEMS: Final = {
    "item_indexes": 0,
    "error_codes": 0,
    "required_offsets": 0,
    "reached_offsets": 0,
    "log_start_offsets": 0,
    "estimated_remaining_ms": -1,
    "paces_per_second": -1.0,
}
OF_FETCHED: Final = {
    "available_bytes": 0,
    "high_watermarks": 0,
    "last_stable_offsets": 0,
    "diverging_epochs": -1,
    "diverging_end_offsets": -1,
}
"""Columns by name, and what each value is where a column has none."""


class ResultsArrived:
    """A decoded batch of results: `operation_ids[i]` has the result at place i of `columns`, its items from `starts[i]`
    on.
    """

    __slots__ = ("columns", "operation_ids", "starts")

    def __init__(self, operation_ids: list[int], columns: ResultColumns) -> None:
        self.operation_ids = operation_ids
        self.columns = columns
        self.starts = [0, *accumulate(columns.item_counts)] if columns.item_counts else range(len(operation_ids))


def arrived_columns(message: result_pb2.ResultColumns) -> ResultsArrived:
    """Results that came as columns. Raises ProtocolError when the lengths of the columns disagree."""
    columns = ResultColumns(message.kind)
    names: list[tuple[str, int]] = [(name.topic, name.partition) for name in message.partitions]
    columns.names = names or list(message.keys)
    columns.outcomes = [int(outcome) for outcome in message.outcome]
    columns.waited_ms = list(message.waited_ms)
    columns.lateness_ms = list(message.lateness_ms)
    columns.item_counts = list(message.item_count)
    columns.item_indexes = list(message.item_index)
    columns.error_codes = list(message.error_code)
    columns.required_offsets = list(message.required_offset)
    columns.reached_offsets = list(message.reached_offset)
    columns.log_start_offsets = list(message.log_start_offset)
    columns.estimated_remaining_ms = list(message.estimated_remaining_ms)
    columns.paces_per_second = list(message.pace_per_second)
    columns.available_bytes = list(message.available_bytes)
    columns.high_watermarks = list(message.high_watermark)
    columns.last_stable_offsets = list(message.last_stable_offset)
    columns.diverging_epochs = list(message.diverging_epoch)
    columns.diverging_end_offsets = list(message.diverging_end_offset)
    operation_ids = list(message.operation_id)
    _spread(operation_ids, columns)
    _check_lengths(operation_ids, columns)
    if message.refusals:
        errors = {refusal.operation_id: refusal_error(refusal) for refusal in message.refusals}
        columns.refusals = {place: errors[one] for place, one in enumerate(operation_ids) if one in errors}
    return ResultsArrived(operation_ids, columns)


def arrived_row(row: result_pb2.Result) -> ResultsArrived:
    """One result that came as a row."""
    columns = ResultColumns(row.kind)
    columns.outcomes = [int(row.outcome)]
    columns.waited_ms = [row.waited_ms]
    columns.lateness_ms = [row.lateness_ms]
    columns.item_counts = [len(row.partitions)]
    columns.item_indexes = list(range(len(row.partitions)))
    names = [(item.topic_partition.topic, item.topic_partition.partition) for item in row.partitions]
    by_key = any(item.key for item in row.partitions)
    columns.names = [item.key for item in row.partitions] if by_key else names
    for item in row.partitions:
        _add_item(columns, item)
    if row.HasField("refusal"):
        columns.refusals[0] = refusal_error(row.refusal)
    return ResultsArrived([row.operation_id], columns)


def refusal_error(refusal: operation_pb2.OperationRefusal) -> PurgatoryClientError:
    """The error of a refused registration."""
    return from_code(refusal.code, refusal.field, refusal.message)


def _add_item(columns: ResultColumns, item: result_pb2.PartitionResult) -> None:
    fetched = item.fetched
    diverges = fetched.HasField("diverging_epoch") or fetched.HasField("diverging_end_offset")
    columns.error_codes.append(item.error_code)
    columns.required_offsets.append(item.required_offset)
    columns.reached_offsets.append(item.reached_offset)
    columns.log_start_offsets.append(item.log_start_offset)
    columns.estimated_remaining_ms.append(
        item.estimated_remaining_ms if item.HasField("estimated_remaining_ms") else -1
    )
    columns.paces_per_second.append(item.pace_per_second if item.HasField("pace_per_second") else -1.0)
    columns.available_bytes.append(fetched.available_bytes)
    columns.high_watermarks.append(fetched.high_watermark)
    columns.last_stable_offsets.append(fetched.last_stable_offset)
    columns.diverging_epochs.append(fetched.diverging_epoch if diverges else -1)
    columns.diverging_end_offsets.append(fetched.diverging_end_offset if diverges else -1)


def _spread(operation_ids: list[int], columns: ResultColumns) -> None:
    """Makes short columns full: one value is that of all, none is the default of each."""
    operations = len(operation_ids)
    if len(columns.item_counts) == 1:
        columns.item_counts *= operations
    items = sum(columns.item_counts) if columns.item_counts else operations
    _fill(columns, OF_OPERATIONS, operations)
    _fill(columns, OF_ITEMS, items)
    if columns.kind == OperationKind.FETCH:
        _fill(columns, OF_FETCHED, items)


def _fill(columns: ResultColumns, defaults: Mapping[str, float], count: int) -> None:
    """The columns of these names, with `count` values each."""
    for name, default in defaults.items():
        column = getattr(columns, name)
        if len(column) < 2 and len(column) != count:
            setattr(columns, name, (column or [default]) * count)


def _check_lengths(operation_ids: list[int], columns: ResultColumns) -> None:
    count = len(operation_ids)
    items = sum(columns.item_counts) if columns.item_counts else count
    per_operation = (columns.outcomes, columns.waited_ms, columns.lateness_ms)
    per_item = (
        columns.item_indexes,
        columns.error_codes,
        columns.required_offsets,
        columns.reached_offsets,
        columns.log_start_offsets,
        columns.estimated_remaining_ms,
        columns.paces_per_second,
    )
    lengths = {len(column) for column in per_operation}, {len(column) for column in per_item}
    if lengths != ({count}, {items}) or len(columns.item_counts) not in (0, count):
        raise ProtocolError(f"a batch of {count} results with {items} items has columns of lengths {lengths}")
