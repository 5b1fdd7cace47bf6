"""Decodes results: columns and rows both become `ResultColumns`, so that other code handles only one form.

Most columns of most answers are never read, so values stay in their messages until a column is accessed.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate, count
from operator import sub
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from purgatory.v1 import operation_pb2, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client import results
from purgatory_client.errors import ProtocolError, PurgatoryClientError
from purgatory_client.rpc_errors import from_code
from purgatory_client.wire import sizes

_MISSING: Final = {
    **dict.fromkeys(results.OPERATION_COLUMNS, 0), "error_codes": 0, "available_bytes": 0, "paces_per_second": -1.0,
    "stale_reasons": "", "signal_values": b"", "signal_values_left_out": False,
}  # fmt: skip
"""The values of an operation without a result, because it was refused; -1 in all other columns."""

_IS_EACH_OPERATION: Final = {field: name in results.OPERATION_COLUMNS for name, (field, _) in results.COLUMNS.items()}
"""The columns on the wire: whether they have a value for each operation, or for each item."""
_PENDING: Final = results.Outcome.PENDING.value


class ArrivedMessage:
    """A message of results that returns its columns at full length. In the message, one value may represent all, or
    none.
    """

    __slots__ = ("_count", "_item_total", "_message")

    def __init__(self, message: result_pb2.ResultColumns, count: int, item_total: int) -> None:
        self._message: Final = message
        self._count: Final = count
        self._item_total: Final = item_total
        # A message has four or five of the sixteen columns.
        for field, values in message.ListFields():
            is_each = _IS_EACH_OPERATION.get(field.name)
            if is_each is not None and len(values) not in (1, count if is_each else item_total):
                raise ProtocolError(
                    f"{count} results with {item_total} items have {len(values)} values in column {field.name}"
                )

    def column(self, name: str) -> list[Any]:
        """One whole column; "names": the dictionary of partitions or keys."""
        if name == "names":
            return [*((one.topic, one.partition) for one in self._message.partitions), *self._message.keys]
        return self.values(name, 0, self._count if name in results.OPERATION_COLUMNS else self._item_total)

    def values(self, name: str, start: int, end: int) -> list[Any]:
        """The values of a column from place `start` to `end` (exclusive)."""
        field, absent = results.COLUMNS[name]
        column = getattr(self._message, field)
        found: list[Any] = column[start:end] if len(column) > 1 else [column[0] if column else absent] * (end - start)
        if name == "stale_reasons":
            return self._stale_reasons(found, start)
        return self._signal_values(found) if name == "signal_values" else found

    def _stale_reasons(self, indexes: list[int], start: int) -> list[str]:
        """The reason of each item from position `start` on; empty if its mark was not stale."""
        reasons = self._message.stale_reasons
        if not reasons:
            return [""] * len(indexes)
        if max(indexes, default=0) >= len(reasons):
            raise ProtocolError(f"a result refers to reason {max(indexes)} of {len(reasons)}")
        stale_ms = self.values("stale_ms", start, start + len(indexes))
        return [reasons[index] if one_ms >= 0 else "" for one_ms, index in zip(stale_ms, indexes, strict=True)]

    def _signal_values(self, indexes: list[int]) -> list[bytes]:
        """The value of each item; empty if its key has none."""
        values = self._message.signal_values
        if max(indexes, default=0) > len(values):
            raise ProtocolError(f"a result refers to value {max(indexes)} of {len(values)}")
        return [values[index - 1] if index else b"" for index in indexes]


class ResultsArrived:
    """A decoded batch of results. The operation `operation_ids[i]` has the result at position i of `columns`, and
    its items start at `starts[i]`. Raises ProtocolError if the lengths of the columns disagree.
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
        self.columns: Final = results.ResultColumns(message.kind, self.message.column)
        self.columns.item_counts = counts
        if _PENDING in self.columns.outcomes:
            raise ProtocolError(f"operation {ids[self.columns.outcomes.index(0)]} ended without an outcome")
        if message.refusals:
            errors = {refusal.operation_id: refusal_error(refusal) for refusal in message.refusals}
            self.columns.refusals = {place: errors[one] for place, one in enumerate(ids) if one in errors}

    def runs(self, skip: int) -> Iterator[tuple[int, int]]:
        """Runs of consecutive ids from position `skip` on, as (start, end) positions. The results of a batch consist of
        a few runs.

        If one of the operations was refused, each result is a run of its own, because a refused one has no items.
        """
        ids = self.operation_ids
        if len(ids) <= skip + 1:
            yield from [(skip, len(ids))] if len(ids) > skip else ()
            return
        if results.Outcome.REFUSED.value in self.columns.outcomes:
            breaks: list[int] = list(range(skip + 1, len(ids)))
        else:
            differences = map(sub, ids[skip + 1 :], ids[skip:])
            breaks = [place for place, difference in enumerate(differences, skip + 1) if difference != 1]
        yield from zip([skip, *breaks], [*breaks, len(ids)], strict=True)


def arrived_batch(batch: wire.ResultBatch) -> list[ResultsArrived]:
    """Decode a batch in either shape."""
    if batch.WhichOneof("shape") == "rows":
        return [arrived_row(row) for row in batch.rows.results]
    return [ResultsArrived(batch.columns)]


def refused_batch(operation_ids: Iterable[int], refusal: operation_pb2.OperationRefusal) -> wire.ResultBatch:
    """Results of operations that were all refused for the same reason."""
    batch = wire.ResultBatch()
    for operation_id in operation_ids:
        batch.columns.operation_id.append(operation_id)
        batch.columns.refusals.add().CopyFrom(refusal)
        batch.columns.refusals[-1].operation_id = operation_id
    batch.columns.outcome.append(results.Outcome.REFUSED.value)
    return batch


def arrived_row(row: result_pb2.Result) -> ResultsArrived:
    """Convert a result in row form to columns."""
    by_partition = [not item.key for item in row.partitions]
    partitions, keys = count(), count(by_partition.count(True))
    message = result_pb2.ResultColumns(
        kind=row.kind,
        operation_id=[row.operation_id],
        item_count=[len(row.partitions)],
        item_index=[next(partitions if is_partition else keys) for is_partition in by_partition],
        **{field: [getattr(row, field)] for field, _ in results.OPERATION_COLUMNS.values()},
    )
    for item in row.partitions:
        if item.key:
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
    message.stale_reason_index.append(len(message.stale_reasons))
    message.stale_reasons.append(item.stale_reason)
    if item.signal_value:
        message.signal_values.append(item.signal_value)
    message.signal_value_index.append(len(message.signal_values) if item.signal_value else 0)
    for name, (field, absent) in results.FETCH_COLUMNS.items():
        if name in ("stale_reasons", "signal_values"):
            continue
        source: Message = item if field in item.DESCRIPTOR.fields_by_name else item.fetched
        is_absent = source.DESCRIPTOR.fields_by_name[field].has_presence and not source.HasField(field)
        getattr(message, field).append(absent if is_absent else getattr(source, field))


class ResultSegment(NamedTuple):
    """Results at `places` of a message, with its `items` (both as start and end). They belong to the operations of
    the batch from `position` on, and to its items from `item` on. They had waited for `waited_before_ms` when they were
    registered again.
    """

    message: ArrivedMessage
    places: tuple[int, int]
    items: tuple[int, int]
    position: int
    item: int
    waited_before_ms: int


class BatchResults:
    """The results received for a batch of `count` operations with `item_total` items."""

    def __init__(self, kind: int, count: int, item_total: int) -> None:
        of_items = results.FETCH_COLUMNS if kind == results.OperationKind.FETCH else results.ITEM_COLUMNS
        self._lengths: Final = {
            **dict.fromkeys(results.OPERATION_COLUMNS, count),
            **dict.fromkeys(of_items, item_total),
        }
        self._segments: Final[list[ResultSegment]] = []
        self._copied: Final[dict[str, list[Any]]] = {}

    def add(self, segment: ResultSegment) -> None:
        self._segments.append(segment)
        if len(self._segments) == sizes.SEGMENTS_MAX:
            for name in self._lengths:
                self._copied[name] = self.column(name)
            self._segments.clear()

    def column(self, name: str) -> list[Any]:
        """One column, as far as results have arrived; empty if this kind of operation does not have it."""
        length = self._lengths.get(name, 0)
        if not length:
            return []
        column = self._copied.get(name) or [_MISSING.get(name, -1)] * length
        each = name in results.OPERATION_COLUMNS
        for message, places, items, position, item, before_ms in self._segments:
            values = message.values(name, *(places if each else items))
            if before_ms and name == "waited_ms":
                values = [before_ms + waited_ms for waited_ms in values]
            start = position if each else item
            column[start : start + len(values)] = values
        return column
