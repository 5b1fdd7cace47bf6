"""What comes out of the engine: the ends of operations, as columns, gathered for each owner."""

from __future__ import annotations

from typing import Final


class Completions:
    """Ended operations of one owner, in the order they ended.

    Operation-level columns have one value for each operation, item-level ones one for each partition (or key) of it, in
    the order of the request. Times are milliseconds, offsets -1 where not known.
    """

    def __init__(self, owner_id: int) -> None:
        self.owner_id: Final = owner_id
        self.operation_ids: Final[list[int]] = []
        self.kinds: Final[list[int]] = []
        self.outcomes: Final[list[int]] = []
        self.waited_ms: Final[list[int]] = []
        self.lateness_ms: Final[list[int]] = []
        self.item_counts: Final[list[int]] = []

        self.item_partitions: Final[list[tuple[str, int]]] = []
        """(topic, partition); for a signal's key: (key, -1)."""
        self.error_codes: Final[list[int]] = []
        self.required_offsets: Final[list[int]] = []
        self.reached_offsets: Final[list[int]] = []
        self.log_start_offsets: Final[list[int]] = []
        self.estimated_remaining_ms: Final[list[int]] = []
        """-1: absent."""
        self.paces_per_second: Final[list[float]] = []
        """-1.0: absent."""

        self.fetched: Final[list[FetchedPartition]] = []
        """One for each item of each fetch, in order; none for other kinds."""

    def __len__(self) -> int:
        return len(self.operation_ids)

    def add_item(
        self,
        name: tuple[str, int],
        error_code: int,
        required_offset: int,
        reached_offset: int,
        log_start_offset: int,
        estimated_remaining_ms: int,
        pace_per_second: float,
    ) -> None:
        """One item of the operation that is being written down."""
        self.item_partitions.append(name)
        self.error_codes.append(error_code)
        self.required_offsets.append(required_offset)
        self.reached_offsets.append(reached_offset)
        self.log_start_offsets.append(log_start_offset)
        self.estimated_remaining_ms.append(estimated_remaining_ms)
        self.paces_per_second.append(pace_per_second)


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
