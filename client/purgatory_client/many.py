"""Many operations of one kind as columns: `WaitColumns`, sent in slices and answered as one `ResultColumns`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from purgatory_client.errors import InvalidRequest, PurgatoryClientError
from purgatory_client.number_checks import INT32_MAX, INT64_MAX, check_length, int_column
from purgatory_client.partition_names import PartitionName, checked_key, partition_name
from purgatory_client.results import OperationKind, Outcome, ResultColumns
from purgatory_client.waits import Name
from purgatory_client.wire.decode_results import ResultsArrived
from purgatory_client.wire.gathered_results import GatheredResults, ResultSegment


class WaitColumns:
    """A batch of operations of one kind; columns as on the wire (a value for each, one for all, or none for the
    default).

    Operation-level columns have a value for each operation, item-level ones for each partition (or key) of each
    operation, in order. `first_id` and `submitted_at` belong to the session; operation i has the id `first_id + i`.
    """

    def __init__(
        self,
        kind: OperationKind,
        names: list[PartitionName] | list[str],
        *,
        indexes: Sequence[int] | None,
        offsets: Sequence[int] | None,
        timeouts_ms: Sequence[int] | None,
        item_counts: Sequence[int] | None,
    ) -> None:
        self.kind = kind
        self.names = names
        self.item_counts = _item_counts(item_counts)
        self.item_total = sum(self.item_counts) if self.item_counts else max(len(indexes or ()), len(offsets or ()))
        self.count = len(self.item_counts) or self.item_total
        self.indexes = int_column(indexes, self.item_total, "item_index", len(names) - 1, 0)
        self.offsets = int_column(offsets, self.item_total, "offset", INT64_MAX, -INT64_MAX)
        self.timeouts_ms = int_column(timeouts_ms, self.count, "timeout_ms", INT64_MAX, -INT64_MAX)
        self.starts = [0, *accumulate(self.item_counts)] if self.item_counts else []
        """Where each operation's items start; empty: one item each."""
        self.operation_columns: dict[str, Sequence[int]] = {}
        """The columns that not all batches have, by their names on the wire: those with a value for each operation."""
        self.item_columns: dict[str, Sequence[int]] = {}
        """And those with one for each item."""
        self.first_id = 0
        self.submitted_at = 0.0
        self.future: asyncio.Future[ResultColumns] | None = None
        self.remaining = self.count
        self.outcomes = [Outcome.PENDING.value] * self.count
        """How each operation has ended so far."""
        self._refusals: dict[int, PurgatoryClientError] = {}
        self._gathered = GatheredResults(kind, self.count, self.item_total)
        if not names or not self.count:
            raise InvalidRequest("partitions" if kind != OperationKind.SIGNAL else "keys", "none; the batch is empty")

    def set_epochs(self, leader_epochs: Sequence[int] | None, field: str = "leader_epoch") -> None:
        """Item column: leader epochs; -1: no check."""
        self.item_columns["leader_epoch"] = int_column(leader_epochs, self.item_total, field, INT32_MAX, -1)

    def set_local_error_codes(self, codes: Sequence[int] | None) -> None:
        """Item column: Kafka error codes of the local step; other than 0 they are final."""
        column = int_column(codes, self.item_total, "local_error_code", INT32_MAX, -INT32_MAX)
        self.item_columns["local_error_code"] = column

    def set_fetch(
        self,
        min_bytes: Sequence[int] | None,
        replica_ids: Sequence[int] | None,
        isolation_levels: Sequence[int] | None,
        follower_reads: Sequence[bool] | None,
        partition_max_bytes: Sequence[int] | None,
        last_fetched_epochs: Sequence[int] | None,
        throttled: Sequence[bool] | None,
    ) -> None:
        """The columns that only fetches have."""
        operations, items = self.count, self.item_total
        self.operation_columns |= {
            "min_bytes": int_column(min_bytes, operations, "min_bytes", INT64_MAX, -INT64_MAX),
            "replica_id": int_column(replica_ids, operations, "replica_id", INT32_MAX, -1),
            "isolation_level": int_column(isolation_levels, operations, "isolation_level", 2, 0),
            "follower_reads": bool_column(follower_reads, operations, "follower_reads"),
        }
        self.item_columns |= {
            "partition_max_bytes": int_column(partition_max_bytes, items, "partition_max_bytes", INT64_MAX, -INT64_MAX),
            "last_fetched_epoch": int_column(last_fetched_epochs, items, "last_fetched_epoch", INT32_MAX, -1),
            "throttled": bool_column(throttled, items, "throttled"),
        }

    def set_signal(self, any_key: Sequence[bool] | None, from_now: Sequence[bool] | None) -> None:
        """The columns that only signals have."""
        self.operation_columns["any"] = bool_column(any_key, self.count, "any")
        self.operation_columns["from_now"] = bool_column(from_now, self.count, "from_now")

    def pending_positions(self, start: int = 0) -> Sequence[int]:
        """Which operations from `start` on have not ended; a range where it is all of them."""
        if self.remaining == self.count:
            return range(start, self.count)
        outcomes = self.outcomes
        return [position for position in range(start, self.count) if outcomes[position] == Outcome.PENDING]

    def ids_of(self, positions: Sequence[int]) -> Sequence[int]:
        """The ids of the operations at these positions."""
        if isinstance(positions, range):
            return range(self.first_id + positions.start, self.first_id + positions.stop)
        return [self.first_id + position for position in positions]

    def items_of(self, positions: Sequence[int]) -> Sequence[int]:
        """The places of these operations' items in the item columns."""
        starts = self.starts
        if not starts:
            return positions
        if isinstance(positions, range):
            return range(starts[positions.start], starts[positions.stop])
        return [item for position in positions for item in range(starts[position], starts[position + 1])]

    def set_results(self, position: int, arrived: ResultsArrived, start: int, end: int) -> int:
        """Take over the results from place `start` to before `end`, for the operations from `position` on; those that
        had ended stay as they are. Returns how many had not.
        """
        count = end - start
        if self.outcomes[position : position + count].count(Outcome.PENDING.value) < count:
            if count == 1:
                return 0
            places = range(start, end)
            return sum(self.set_results(position + place - start, arrived, place, place + 1) for place in places)
        self.outcomes[position : position + count] = arrived.columns.outcomes[start:end]
        self.remaining -= count
        item = self.starts[position] if self.starts else position
        items = (arrived.starts[start], arrived.starts[end])
        self._gathered.add(ResultSegment(arrived.message, (start, end), items, position, item))
        return count

    def set_refused(self, position: int, error: PurgatoryClientError) -> int:
        """The daemon refused this operation; the others go on. Returns how many that ended: none if it had ended."""
        if self.outcomes[position] != Outcome.PENDING:
            return 0
        self.outcomes[position] = Outcome.REFUSED.value
        self._refusals[position] = error
        self.remaining -= 1
        return 1

    def answer(self) -> ResultColumns:
        """The results of all, once none is pending."""
        assert not self.remaining, f"{self.remaining} operations of the batch with first id {self.first_id} are pending"
        answer, items = ResultColumns(self.kind, self._gathered.column), self.item_total
        answer.names = self.names
        answer.outcomes = self.outcomes
        answer.item_counts = self.item_counts
        answer.item_indexes = self.indexes * items if len(self.indexes) == 1 else self.indexes or [0] * items
        answer.refusals = self._refusals
        return answer


def partition_columns(
    kind: OperationKind,
    partitions: Sequence[Name],
    indexes: Sequence[int] | None,
    offsets: Sequence[int] | None,
    timeouts_ms: Sequence[int] | None,
    item_counts: Sequence[int] | None,
) -> WaitColumns:
    """A batch of operations on partitions."""
    names = [partition_name(name) for name in partitions]
    return WaitColumns(kind, names, indexes=indexes, offsets=offsets, timeouts_ms=timeouts_ms, item_counts=item_counts)


def key_columns(
    keys: Sequence[str],
    indexes: Sequence[int] | None,
    counts: Sequence[int] | None,
    timeouts_ms: Sequence[int] | None,
    item_counts: Sequence[int] | None,
) -> WaitColumns:
    """A batch of signal waits."""
    names = [checked_key(key) for key in keys]
    return WaitColumns(
        OperationKind.SIGNAL, names, indexes=indexes, offsets=counts, timeouts_ms=timeouts_ms, item_counts=item_counts
    )


def bool_column(values: Sequence[bool] | None, count: int, field: str) -> list[bool]:
    """A column of truths, its length checked."""
    column = [bool(value) for value in values or ()]
    check_length(column, count, field)
    return column


def _item_counts(counts: Sequence[int] | None) -> list[int]:
    column = [] if counts is None else list(counts)
    for position, count in enumerate(column):
        if count < 1:
            raise InvalidRequest(f"item_count[{position}]", f"{count}; every operation needs at least one item")
    return column
