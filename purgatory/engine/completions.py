"""What comes out of the engine: the ends of operations, as packed columns, gathered for each owner."""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, PartitionName


class Completions:
    """Ended operations of one owner, in the order they ended.

    Operation-level columns have one value for each operation, item-level ones one for each partition (or key) of it, in
    the order of the request. Times are milliseconds, offsets -1 where not known. A column is an array of 64-bit numbers
    that can be indexed, sliced and walked like a list, and read without a copy as a buffer.
    """

    def __init__(self, owner_id: int) -> None:
        self.owner_id: Final = owner_id
        self.operation_ids: vec[i64] = vec[i64]()
        self.kinds: vec[i64] = vec[i64]()
        self.outcomes: vec[i64] = vec[i64]()
        self.waited_ms: vec[i64] = vec[i64]()
        self.lateness_ms: vec[i64] = vec[i64]()
        self.item_counts: vec[i64] = vec[i64]()

        self.item_partitions: Final[list[PartitionName]] = []
        """(topic, partition); for a signal's key: (key, -1)."""
        self.error_codes: vec[i64] = vec[i64]()
        self.required_offsets: vec[i64] = vec[i64]()
        self.reached_offsets: vec[i64] = vec[i64]()
        self.log_start_offsets: vec[i64] = vec[i64]()
        self.estimated_remaining_ms: vec[i64] = vec[i64]()
        """-1: absent."""
        self.paces_per_second: vec[float] = vec[float]()
        """-1.0: absent."""

        self.fetched: Final[list[FetchedPartition]] = []
        """One for each item of each fetch, in order; none for other kinds."""

    def __len__(self) -> int:
        return len(self.operation_ids)

    def add_operation(
        self, operation_id: i64, kind: i64, outcome: i64, waited_ms: i64, lateness_ms: i64, item_count: i64
    ) -> None:
        """The next operation."""
        self.operation_ids = append(self.operation_ids, operation_id)
        self.kinds = append(self.kinds, kind)
        self.outcomes = append(self.outcomes, outcome)
        self.waited_ms = append(self.waited_ms, waited_ms)
        self.lateness_ms = append(self.lateness_ms, lateness_ms)
        self.item_counts = append(self.item_counts, item_count)

    def add_item(
        self,
        name: AsGiven,
        error_code: i64,
        required_offset: i64,
        reached_offset: i64,
        log_start_offset: i64,
        estimated_remaining_ms: i64,
        pace_per_second: float,
    ) -> None:
        """The next item of the operation that is being written down."""
        self.item_partitions.append(name)
        self.error_codes = append(self.error_codes, error_code)
        self.required_offsets = append(self.required_offsets, required_offset)
        self.reached_offsets = append(self.reached_offsets, reached_offset)
        self.log_start_offsets = append(self.log_start_offsets, log_start_offset)
        self.estimated_remaining_ms = append(self.estimated_remaining_ms, estimated_remaining_ms)
        self.paces_per_second = append(self.paces_per_second, pace_per_second)


class FetchedPartition:
    """What a read of one partition would give when a fetch ends. Bytes; offsets -1 where not known or not given."""

    def __init__(
        self,
        available_bytes: int,
        high_watermark: int,
        last_stable_offset: int,
        diverging_epoch: int,
        diverging_end_offset: int,
    ) -> None:
        self.available_bytes: Final = available_bytes
        self.high_watermark: Final = high_watermark
        self.last_stable_offset: Final = last_stable_offset
        self.diverging_epoch: Final = diverging_epoch
        self.diverging_end_offset: Final = diverging_end_offset
