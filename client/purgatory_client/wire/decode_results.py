"""Decodes results: columns and rows both become `ResultColumns`, so that nothing else has to know two shapes."""

from collections.abc import Iterator
from itertools import accumulate
from operator import sub
from typing import Any, Final

from purgatory.v1 import operation_pb2, result_pb2
from purgatory_client.errors import ProtocolError, PurgatoryClientError, from_code
from purgatory_client.results import COLUMNS, OPERATION_COLUMNS, Outcome, ResultColumns, item_columns


class ArrivedMessage:
    """A message of results that gives its columns at full length; in it one value may stand for all, or none."""

    __slots__ = ("_count", "_item_total", "_message")

    def __init__(self, message: result_pb2.ResultColumns, count: int, item_total: int) -> None:
        self._message: Final = message
        self._count: Final = count
        self._item_total: Final = item_total
        lengths = {name: len(getattr(message, COLUMNS[name][0])) for name in OPERATION_COLUMNS}
        items = {
            name: len(getattr(message, COLUMNS[name][0])) for name in ("item_indexes", *item_columns(message.kind))
        }
        if not {0, 1, count}.issuperset(lengths.values()) or not {0, 1, item_total}.issuperset(items.values()):
            raise ProtocolError(f"{count} results with {item_total} items have columns of lengths {lengths | items}")

    def column(self, name: str) -> list[Any]:
        """One whole column; "names": the dictionary of partitions or keys."""
        if name == "names":
            return [(one.topic, one.partition) for one in self._message.partitions] or list(self._message.keys)
        return self.values(name, 0, self._count if name in OPERATION_COLUMNS else self._item_total)

    def values(self, name: str, start: int, end: int) -> list[Any]:
        """The values of a column from place `start` to `end` (exclusive)."""
        field, absent = COLUMNS[name]
        column = getattr(self._message, field)
        if len(column) > 1:
            return column[start:end]  # type: ignore[no-any-return]
        return [column[0] if column else absent] * (end - start)


class ResultsArrived:
    """A decoded batch of results. The operation `operation_ids[i]` has the result at place i of `columns`, with its
    items from `starts[i]` on. Raises ProtocolError when the lengths of the columns disagree.
    """

    __slots__ = ("columns", "message", "operation_ids", "starts")

    def __init__(self, message: result_pb2.ResultColumns) -> None:
        ids = list(message.operation_id)
        counts = list(message.item_count)
        if len(counts) == 1:
            counts *= len(ids)
        if len(counts) not in (0, len(ids)):
            raise ProtocolError(f"{len(ids)} results have {len(counts)} counts of items")
        self.operation_ids: Final = ids
        self.starts: Final = [0, *accumulate(counts)] if counts else range(len(ids) + 1)
        self.message: Final = ArrivedMessage(message, len(ids), self.starts[-1])
        self.columns: Final = ResultColumns(message.kind, self.message.column)
        self.columns.item_counts = counts
        if Outcome.PENDING.value in self.columns.outcomes:
            raise ProtocolError(f"operation {ids[self.columns.outcomes.index(0)]} ended without an outcome")
        if message.refusals:
            errors = {refusal.operation_id: refusal_error(refusal) for refusal in message.refusals}
            self.columns.refusals = {place: errors[one] for place, one in enumerate(ids) if one in errors}

    def runs(self, skip: int) -> Iterator[tuple[int, int]]:
        """Runs of consecutive ids from place `skip` on, as (start, end) places: a batch is answered in a few of them.

        A refused operation has no items, and is a run of its own.
        """
        ids = self.operation_ids
        if len(ids) <= skip:
            return
        if Outcome.REFUSED.value in self.columns.outcomes:
            breaks: list[int] = list(range(skip + 1, len(ids)))
        else:
            differences = map(sub, ids[skip + 1 :], ids[skip:])
            breaks = [place for place, difference in enumerate(differences, skip + 1) if difference != 1]
        yield from zip([skip, *breaks], [*breaks, len(ids)], strict=True)


def arrived_row(row: result_pb2.Result) -> ResultsArrived:
    """A result that came as a row, as columns."""
    message = result_pb2.ResultColumns(
        kind=row.kind,
        operation_id=[row.operation_id],
        outcome=[row.outcome],
        waited_ms=[row.waited_ms],
        lateness_ms=[row.lateness_ms],
        item_count=[len(row.partitions)],
        item_index=range(len(row.partitions)),
    )
    by_key = any(item.key for item in row.partitions)
    for item in row.partitions:
        if by_key:
            message.keys.append(item.key)
        else:
            message.partitions.append(item.topic_partition)
        _add_item(message, item)
    if row.HasField("refusal"):
        message.refusals.append(row.refusal)
        message.refusals[0].operation_id = row.operation_id
    return ResultsArrived(message)


def refusal_error(refusal: operation_pb2.OperationRefusal) -> PurgatoryClientError:
    return from_code(refusal.code, refusal.field, refusal.message)


def _add_item(message: result_pb2.ResultColumns, item: result_pb2.PartitionResult) -> None:
    fetched = item.fetched
    diverges = fetched.HasField("diverging_epoch") or fetched.HasField("diverging_end_offset")
    message.error_code.append(item.error_code)
    message.required_offset.append(item.required_offset)
    message.reached_offset.append(item.reached_offset)
    message.log_start_offset.append(item.log_start_offset)
    message.estimated_remaining_ms.append(
        item.estimated_remaining_ms if item.HasField("estimated_remaining_ms") else -1
    )
    message.pace_per_second.append(item.pace_per_second if item.HasField("pace_per_second") else -1.0)
    message.available_bytes.append(fetched.available_bytes)
    message.high_watermark.append(fetched.high_watermark)
    message.last_stable_offset.append(fetched.last_stable_offset)
    message.diverging_epoch.append(fetched.diverging_epoch if diverges else -1)
    message.diverging_end_offset.append(fetched.diverging_end_offset if diverges else -1)
