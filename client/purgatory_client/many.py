"""Many operations of one kind as columns: `WaitColumns`, sent in slices and answered as one `ResultColumns`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from purgatory_client.columns import INT32_MAX, INT64_MAX, check_length, int_column
from purgatory_client.errors import InvalidRequest, PurgatoryClientError
from purgatory_client.names import PartitionName, checked_key, partition_name
from purgatory_client.results import OperationKind, Outcome, ResultColumns
from purgatory_client.waits import Name


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
        self.local_error_codes: list[int] = []
        self.leader_epochs: list[int] = []
        self.min_bytes: list[int] = []
        self.replica_ids: list[int] = []
        self.isolation_levels: list[int] = []
        self.follower_reads: list[bool] = []
        self.partition_max_bytes: list[int] = []
        self.last_fetched_epochs: list[int] = []
        self.throttled: list[bool] = []
        self.any_key: list[bool] = []
        self.from_now: list[bool] = []
        self.first_id = 0
        self.submitted_at = 0.0
        self.future: asyncio.Future[ResultColumns] | None = None
        self.remaining = self.count
        self.answer = self._empty_answer()
        if not names or not self.count:
            raise InvalidRequest("partitions" if kind != OperationKind.SIGNAL else "keys", "none; the batch is empty")

    def set_epochs(self, leader_epochs: Sequence[int] | None, field: str = "leader_epoch") -> None:
        """Item column: leader epochs; -1: no check."""
        self.leader_epochs = int_column(leader_epochs, self.item_total, field, INT32_MAX, -1)

    def set_local_error_codes(self, codes: Sequence[int] | None) -> None:
        """Item column: Kafka error codes of the local step; other than 0 they are final."""
        self.local_error_codes = int_column(codes, self.item_total, "local_error_code", INT32_MAX, -INT32_MAX)

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
        self.min_bytes = int_column(min_bytes, operations, "min_bytes", INT64_MAX, -INT64_MAX)
        self.replica_ids = int_column(replica_ids, operations, "replica_id", INT32_MAX, -1)
        self.isolation_levels = int_column(isolation_levels, operations, "isolation_level", 2, 0)
        self.follower_reads = bool_column(follower_reads, operations, "follower_reads")
        self.partition_max_bytes = int_column(partition_max_bytes, items, "partition_max_bytes", INT64_MAX, -INT64_MAX)
        self.last_fetched_epochs = int_column(last_fetched_epochs, items, "last_fetched_epoch", INT32_MAX, -1)
        self.throttled = bool_column(throttled, items, "throttled")

    def set_signal(self, any_key: Sequence[bool] | None, from_now: Sequence[bool] | None) -> None:
        """The columns that only signals have."""
        self.any_key = bool_column(any_key, self.count, "any")
        self.from_now = bool_column(from_now, self.count, "from_now")

    def pending_positions(self, start: int = 0) -> Sequence[int]:
        """Which operations from `start` on have not ended; a range where it is all of them."""
        if self.remaining == self.count:
            return range(start, self.count)
        outcomes = self.answer.outcomes
        return [position for position in range(start, self.count) if outcomes[position] == Outcome.PENDING]

    def items_of(self, positions: Sequence[int]) -> Sequence[int]:
        """The places of these operations' items in the item columns."""
        starts = self.starts
        if not starts:
            return positions
        if isinstance(positions, range):
            return range(starts[positions.start], starts[positions.stop])
        return [item for position in positions for item in range(starts[position], starts[position + 1])]

    def set_result(self, position: int, source: ResultColumns, source_position: int, source_item: int) -> None:
        """Take over an operation's result from the batch it arrived in."""
        answer = self.answer
        assert answer.outcomes[position] == Outcome.PENDING, f"operation {self.first_id + position} has ended already"
        answer.outcomes[position] = source.outcomes[source_position]
        answer.waited_ms[position] = source.waited_ms[source_position]
        answer.lateness_ms[position] = source.lateness_ms[source_position]
        self.remaining -= 1
        count = source.item_counts[source_position] if source.item_counts else 1
        start = self.starts[position] if self.starts else position
        for offset in range(count):
            item, source_place = start + offset, source_item + offset
            answer.error_codes[item] = source.error_codes[source_place]
            answer.required_offsets[item] = source.required_offsets[source_place]
            answer.reached_offsets[item] = source.reached_offsets[source_place]
            answer.log_start_offsets[item] = source.log_start_offsets[source_place]
            answer.estimated_remaining_ms[item] = source.estimated_remaining_ms[source_place]
            answer.paces_per_second[item] = source.paces_per_second[source_place]
            if self.kind == OperationKind.FETCH:
                _copy_fetched(answer, item, source, source_place)

    def set_refused(self, position: int, error: PurgatoryClientError) -> None:
        """The daemon refused this operation; the others of the batch go on."""
        assert self.answer.outcomes[position] == Outcome.PENDING, f"{self.first_id + position} has ended already"
        self.answer.outcomes[position] = Outcome.REFUSED
        self.answer.refusals[position] = error
        self.remaining -= 1

    def _empty_answer(self) -> ResultColumns:
        answer, items = ResultColumns(self.kind), self.item_total
        answer.names = self.names
        answer.outcomes = [Outcome.PENDING.value] * self.count
        answer.waited_ms = [0] * self.count
        answer.lateness_ms = [0] * self.count
        answer.item_counts = self.item_counts
        answer.item_indexes = self.indexes * items if len(self.indexes) == 1 else self.indexes or [0] * items
        answer.error_codes = [0] * items
        answer.required_offsets = [-1] * items
        answer.reached_offsets = [-1] * items
        answer.log_start_offsets = [-1] * items
        answer.estimated_remaining_ms = [-1] * items
        answer.paces_per_second = [-1.0] * items
        if self.kind == OperationKind.FETCH:
            answer.available_bytes = [0] * items
            answer.high_watermarks = [-1] * items
            answer.last_stable_offsets = [-1] * items
            answer.diverging_epochs = [-1] * items
            answer.diverging_end_offsets = [-1] * items
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


def _copy_fetched(answer: ResultColumns, item: int, source: ResultColumns, place: int) -> None:
    answer.available_bytes[item] = source.available_bytes[place]
    answer.high_watermarks[item] = source.high_watermarks[place]
    answer.last_stable_offsets[item] = source.last_stable_offsets[place]
    answer.diverging_epochs[item] = source.diverging_epochs[place]
    answer.diverging_end_offsets[item] = source.diverging_end_offsets[place]
