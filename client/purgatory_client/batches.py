"""Batches of operations as columns: one function per kind of operation, and the `WaitBatch` that it returns.

The client methods whose names end in `_many` take the same arguments and wait at once; a `WaitBatch` is for
`submit_many` and `register`. A batch is sent in slices and answered with one `ResultColumns`.

A column has a value for each operation, or for each item if its description says so. An item is one partition or key of
one operation; items are in the order of the operations. A single value applies to all, and None selects the default.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from purgatory_client.argument_checks import INT32_MAX, INT64_MAX, check_length, int_column, several, take, truth
from purgatory_client.errors import InvalidRequest, PurgatoryClientError
from purgatory_client.partition_names import PartitionName, checked_key, partition_name
from purgatory_client.results import OperationKind, Outcome, ResultColumns
from purgatory_client.waits import ITEM_DEFAULTS, Name, Wait
from purgatory_client.wire.decode_results import BatchResults, ResultsArrived, ResultSegment

_RANGES: Final = {
    "leader_epoch": (INT32_MAX, -1),
    "local_error_code": (INT32_MAX, -INT32_MAX),
    "min_bytes": (INT64_MAX, -INT64_MAX),
    "replica_id": (INT32_MAX, -1),
    "isolation_level": (2, 0),
    "partition_max_bytes": (INT64_MAX, -INT64_MAX),
    "last_fetched_epoch": (INT32_MAX, -1),
    "stale_timeout_ms": (INT64_MAX, -1),
    "heartbeat_timeout_ms": (INT64_MAX, -1),
    "required_terms": (INT32_MAX, 0),
    "unless_count": (INT32_MAX, 0),
}
"""The highest and lowest value of optional columns, by their names on the wire. Other optional columns are boolean."""


class WaitBatch:
    """A batch of operations of one kind. Operation i has the id `operation_id + i`; the session assigns `operation_id`.

    Raises InvalidRequest if the lengths of the columns disagree or a value does not fit the wire.
    """

    def __init__(
        self,
        kind: OperationKind,
        names: Sequence[PartitionName | str],
        *,
        indexes: Sequence[int] | None,
        offsets: Sequence[int] | None,
        timeouts_ms: Sequence[int] | None,
        item_counts: Sequence[int] | None,
    ) -> None:
        self.kind = kind
        self.names = names
        indexes, offsets = several(indexes or (), "item_index"), several(offsets or (), "offset")
        item_counts = several(() if item_counts is None else item_counts, "item_count")
        self.item_counts = int_column(item_counts, len(item_counts), "item_count", INT32_MAX, 1)
        self.item_total = sum(self.item_counts) if self.item_counts else max(len(indexes), len(offsets))
        self.count = len(self.item_counts) or self.item_total
        self.indexes = int_column(indexes, self.item_total, "item_index", len(names) - 1, 0)
        self.offsets = int_column(offsets, self.item_total, "offset", INT64_MAX, -INT64_MAX)
        self.timeouts_ms = int_column(timeouts_ms, self.count, "timeout_ms", INT64_MAX, -INT64_MAX)
        self.longest_timeout_ms = max(self.timeouts_ms, default=None)
        self.starts = [0, *accumulate(self.item_counts)] if self.item_counts else []
        """The index of each operation's first item; empty if every operation has one item."""
        self.operation_columns: dict[str, Sequence[int]] = {}
        """Optional columns with a value for each operation, by their names on the wire."""
        self.item_columns: dict[str, Sequence[int]] = {}
        """Optional columns with a value for each item."""
        self.operation_id = 0
        self.submitted_at = 0.0
        self._sent_again: list[tuple[int, int]] = []
        """The messages sent after a lost connection: the first position of each, and the milliseconds from the
        submission until then."""
        self.future: asyncio.Future[Any] | None = None
        self.remaining = self.count
        self.outcomes = [Outcome.PENDING.value] * self.count
        """The outcome of each operation; PENDING until it ends."""
        self._refusals: dict[int, PurgatoryClientError] = {}
        self._gathered = BatchResults(kind, self.count, self.item_total)
        if not names or not self.count:
            raise InvalidRequest(
                "partitions" if kind != OperationKind.SIGNAL else "keys", "empty; at least one is required"
            )

    def set_columns(self, columns: Mapping[str, Sequence[int] | None]) -> None:
        """Set columns by their names on the wire. Raises InvalidRequest for a column that does not fit."""
        for name, values in columns.items():
            is_of_items = name in ITEM_DEFAULTS
            count = self.item_total if is_of_items else self.count
            field = f"current_{name}" if (self.kind, name) == (OperationKind.FETCH, "leader_epoch") else name
            if name in _RANGES:
                column = int_column(values, count, field, *_RANGES[name])
            else:
                column = several(values or (), field)
                if not set(map(type, column)) <= {bool}:
                    column = [truth(value, field) for value in column]
                check_length(column, count, field)
            (self.item_columns if is_of_items else self.operation_columns)[name] = column

    def extend(self, position: int, timeout_ms: int, default_ms: int) -> None:
        """Record that an operation may wait for this long since it was submitted, if that is longer than before."""
        if len(self.timeouts_ms) <= 1:
            self.timeouts_ms = [*(self.timeouts_ms or [default_ms])] * self.count
        self.timeouts_ms[position] = max(self.timeouts_ms[position], timeout_ms)
        self.longest_timeout_ms = max(self.timeouts_ms[position], self.longest_timeout_ms or default_ms)

    def note_sent_again(self, position: int, waited_before_ms: int) -> None:
        """Record that the operations from `position` on are sent after a lost connection."""
        self._sent_again = [one for one in self._sent_again if one[0] < position]
        self._sent_again.append((position, waited_before_ms))

    def pending_positions(self, start: int = 0) -> Sequence[int]:
        """Positions of pending operations, from `start` on; a range if all of them are pending."""
        if self.remaining == self.count:
            return range(start, self.count)
        outcomes = self.outcomes
        return [position for position in range(start, self.count) if outcomes[position] == Outcome.PENDING]

    def ids_of(self, positions: Sequence[int]) -> Sequence[int]:
        """Operation ids in increasing order; a range if the positions are a range."""
        if isinstance(positions, range):
            return range(self.operation_id + positions.start, self.operation_id + positions.stop)
        return [self.operation_id + position for position in positions]

    def items_of(self, positions: Sequence[int]) -> Sequence[int]:
        """The indexes of these operations' items in the item columns."""
        starts = self.starts
        if not starts:
            return positions
        if isinstance(positions, range):
            return range(starts[positions.start], starts[positions.stop])
        return [item for position in positions for item in range(starts[position], starts[position + 1])]

    def names_of(self, position: int) -> list[PartitionName | str]:
        """The partitions or keys of one operation."""
        items = self.items_of([position])
        indexes = list(take(self.indexes, items)) or [0]
        return [self.names[index] for index in indexes * (len(items) // len(indexes))]

    def set_results(self, position: int, arrived: ResultsArrived, start: int, end: int) -> int:
        """Store results `start` to `end` (exclusive) of a message for the operations from `position` on.

        Returns the number of operations that this ended; an operation that had already ended keeps its result. After a
        cancel or a reconnect, a run of results may contain both, and is then processed one result at a time. It is
        divided where operations begin that were sent again, since these have waited for longer than the daemon says.
        """
        count = end - start
        for first, _ in self._sent_again:
            if position < first < position + count:
                middle = start + first - position
                ended = self.set_results(position, arrived, start, middle)
                return ended + self.set_results(first, arrived, middle, end)
        if self.outcomes[position : position + count].count(Outcome.PENDING.value) < count:
            if count == 1:
                return 0
            places = range(start, end)
            return sum(self.set_results(position + place - start, arrived, place, place + 1) for place in places)
        self.outcomes[position : position + count] = arrived.columns.outcomes[start:end]
        self.remaining -= count
        item = self.starts[position] if self.starts else position
        items = (arrived.starts[start], arrived.starts[end])
        before_ms = next((ms for first, ms in reversed(self._sent_again) if first <= position), 0)
        self._gathered.add(ResultSegment(arrived.message, (start, end), items, position, item, before_ms))
        return count

    def set_refused(self, position: int, error: PurgatoryClientError) -> int:
        """End an operation that the daemon refused. Returns the number of operations this ended: 0 if it had already
        ended.
        """
        if self.outcomes[position] != Outcome.PENDING:
            return 0
        self.outcomes[position] = Outcome.REFUSED.value
        self._refusals[position] = error
        self.remaining -= 1
        return 1

    def answer(self) -> ResultColumns:
        """All results. Call it only when no operation is pending."""
        assert not self.remaining, f"{self.remaining} operations of the batch from {self.operation_id} on are pending"
        answer, items = ResultColumns(self.kind, self._gathered.column), self.item_total
        answer.names = self.names
        answer.outcomes = self.outcomes
        answer.item_counts = self.item_counts
        answer.item_indexes = self.indexes * items if len(self.indexes) == 1 else self.indexes or [0] * items
        answer.refusals = self._refusals
        answer.unless_counts = self.operation_columns.get("unless_count") or [0]
        return answer


Entry: TypeAlias = Wait | WaitBatch
"""A wait or batch, as a session or an outbox stores it. The `operation_id` of a batch is its first operation's."""


def produce(
    partitions: Sequence[Name],
    *,
    offsets: Sequence[int],
    indexes: Sequence[int] | None = None,
    timeouts_ms: Sequence[int] | None = None,
    item_counts: Sequence[int] | None = None,
    leader_epochs: Sequence[int] | None = None,
    local_error_codes: Sequence[int] | None = None,
    stale_timeouts_ms: Sequence[int] | None = None,
) -> WaitBatch:
    """Many produce waits.

    Args:
        partitions: The distinct partitions, which `indexes` refer to.
        offsets: For each item: the offset to reach.
        indexes: For each item: the index of its partition in `partitions`. None: the first partition for all items.
        timeouts_ms: For each operation: milliseconds; 0: answer at once. None: the daemon's default.
        item_counts: For each operation: its number of items. None: one each.
        leader_epochs: For each item: the leader epoch of the append; -1: not checked.
        local_error_codes: For each item: the Kafka error code of the local append; a code other than 0 becomes its
            result.
        stale_timeouts_ms: For each operation: milliseconds for which a mark that it still waits for may be stale before
            the operation fails. -1: it keeps waiting.
    """
    batch = partition_columns(OperationKind.PRODUCE, partitions, indexes, offsets, timeouts_ms, item_counts)
    batch.set_columns(
        {"leader_epoch": leader_epochs, "local_error_code": local_error_codes, "stale_timeout_ms": stale_timeouts_ms}
    )
    return batch


def fetch(
    partitions: Sequence[Name],
    *,
    offsets: Sequence[int],
    indexes: Sequence[int] | None = None,
    timeouts_ms: Sequence[int] | None = None,
    item_counts: Sequence[int] | None = None,
    min_bytes: Sequence[int] | None = None,
    replica_ids: Sequence[int] | None = None,
    isolation_levels: Sequence[int] | None = None,
    follower_reads: Sequence[bool] | None = None,
    partition_max_bytes: Sequence[int] | None = None,
    current_leader_epochs: Sequence[int] | None = None,
    last_fetched_epochs: Sequence[int] | None = None,
    throttled: Sequence[bool] | None = None,
    stale_timeouts_ms: Sequence[int] | None = None,
) -> WaitBatch:
    """Many fetches.

    Args:
        partitions: As for `produce`.
        offsets: For each item: the offset to read from.
        indexes: As for `produce`.
        timeouts_ms: As for `produce`.
        item_counts: As for `produce`.
        min_bytes: For each operation: bytes to wait for, over all its partitions; 1 by default.
        replica_ids: For each operation: the follower that fetches; -1: a consumer.
        isolation_levels: For each operation: 1 reads to the high watermark (read_uncommitted), 2 to the last stable
            offset.
        follower_reads: For each operation: whether a follower may serve it.
        partition_max_bytes: For each item: the maximum number of bytes to count; 1 MiB by default.
        current_leader_epochs: For each item: the leader epoch that the reader knows; -1: not checked.
        last_fetched_epochs: For each item: the epoch of the reader's last record; -1: unknown.
        throttled: For each item: whether it is over the follower's replication quota.
        stale_timeouts_ms: As for `produce`.
    """
    batch = partition_columns(OperationKind.FETCH, partitions, indexes, offsets, timeouts_ms, item_counts)
    columns = {
        "min_bytes": min_bytes,
        "replica_id": replica_ids,
        "isolation_level": isolation_levels,
        "follower_reads": follower_reads,
        "leader_epoch": current_leader_epochs,
        "partition_max_bytes": partition_max_bytes,
        "last_fetched_epoch": last_fetched_epochs,
        "throttled": throttled,
        "stale_timeout_ms": stale_timeouts_ms,
    }
    batch.set_columns(columns)
    return batch


def delete_records(
    partitions: Sequence[Name],
    *,
    offsets: Sequence[int],
    indexes: Sequence[int] | None = None,
    timeouts_ms: Sequence[int] | None = None,
    item_counts: Sequence[int] | None = None,
    local_error_codes: Sequence[int] | None = None,
    stale_timeouts_ms: Sequence[int] | None = None,
) -> WaitBatch:
    """Many delete-records waits.

    Args:
        partitions: As for `produce`.
        offsets: For each item: the low watermark to reach; -1: the high watermark at registration.
        indexes: As for `produce`.
        timeouts_ms: As for `produce`.
        item_counts: As for `produce`.
        local_error_codes: As for `produce`.
        stale_timeouts_ms: As for `produce`.
    """
    batch = partition_columns(OperationKind.DELETE_RECORDS, partitions, indexes, offsets, timeouts_ms, item_counts)
    batch.set_columns({"local_error_code": local_error_codes, "stale_timeout_ms": stale_timeouts_ms})
    return batch


def signal(
    keys: Sequence[str],
    *,
    indexes: Sequence[int] | None = None,
    counts: Sequence[int] | None = None,
    timeouts_ms: Sequence[int] | None = None,
    item_counts: Sequence[int] | None = None,
    any: Sequence[bool] | None = None,  # noqa: A002 - the word of the wire
    from_now: Sequence[bool] | None = None,
    heartbeat_timeouts_ms: Sequence[int] | None = None,
) -> WaitBatch:
    """Many waits for signals.

    Args:
        keys: The distinct keys, which `indexes` refer to.
        indexes: For each item: the index of its key in `keys`. Without `indexes` and `item_counts`: one operation per
            key.
        counts: For each item: the number of signals it needs; 1 by default.
        timeouts_ms: As for `produce`.
        item_counts: As for `produce`.
        any: For each operation: whether one of its keys is enough.
        from_now: For each operation: whether only signals after the registration count.
        heartbeat_timeouts_ms: For each operation: milliseconds for which a key that it still waits for may be silent
            before the operation fails. -1: it keeps waiting.
    """
    names = [checked_key(key) for key in several(keys, "keys")]
    batch = WaitBatch(
        OperationKind.SIGNAL,
        names,
        indexes=range(len(names)) if indexes is None and item_counts is None else indexes,
        offsets=counts,
        timeouts_ms=timeouts_ms,
        item_counts=item_counts,
    )
    batch.set_columns({"any": any, "from_now": from_now, "heartbeat_timeout_ms": heartbeat_timeouts_ms})
    return batch


def wait(
    partitions: Sequence[Name],
    keys: Sequence[str],
    *,
    offsets: Sequence[int],
    indexes: Sequence[int] | None = None,
    timeouts_ms: Sequence[int] | None = None,
    item_counts: Sequence[int] | None = None,
    required_terms: Sequence[int] | None = None,
    unless_counts: Sequence[int] | None = None,
    stale_timeouts_ms: Sequence[int] | None = None,
) -> WaitBatch:
    """Many composite waits. An item is a term; those of the failure arm are the last items of their operation.

    Args:
        partitions: The distinct partitions, which `indexes` refer to.
        keys: The distinct keys. In `indexes` they follow the partitions.
        offsets: For each item: the offset to reach, or the number of signals. -1: offset 0, or one signal.
        indexes: As for `produce`.
        timeouts_ms: As for `produce`.
        item_counts: As for `produce`.
        required_terms: For each operation: how many of its terms must be true. 0: all.
        unless_counts: For each operation: how many of its last items are the failure arm.
        stale_timeouts_ms: As for `produce`.
    """
    batch = WaitBatch(
        OperationKind.COMPOSITE,
        [*map(partition_name, several(partitions, "partitions")), *map(checked_key, several(keys, "keys"))],
        indexes=indexes,
        offsets=offsets,
        timeouts_ms=timeouts_ms,
        item_counts=item_counts,
    )
    batch.set_columns(
        {"required_terms": required_terms, "unless_count": unless_counts, "stale_timeout_ms": stale_timeouts_ms}
    )
    return batch


def partition_columns(
    kind: OperationKind,
    partitions: Sequence[Name],
    indexes: Sequence[int] | None,
    offsets: Sequence[int] | None,
    timeouts_ms: Sequence[int] | None,
    item_counts: Sequence[int] | None,
) -> WaitBatch:
    """A batch of operations on partitions with only the columns common to all kinds; arguments as for `produce`."""
    names = [partition_name(name) for name in several(partitions, "partitions")]
    return WaitBatch(kind, names, indexes=indexes, offsets=offsets, timeouts_ms=timeouts_ms, item_counts=item_counts)
