"""Leader epochs of one partition: where each began, and so where a reader's log may have diverged.

Kafka's leader epoch cache (docs/semantics.md): sorted (epoch, start offset), the newest `ENTRIES_MAX`
kept.
"""

from typing import Final

from mypy_extensions import i64

__all__ = ["EpochCache"]

ENTRIES_MAX: Final = 1_000


class EpochCache:
    """Sorted leader epochs and the first offset of each."""

    def __init__(self) -> None:
        self.epochs: Final[list[int]] = []
        self.start_offsets: Final[list[int]] = []

    def assign(self, epoch: i64, start_offset: i64) -> None:
        """Notes that `epoch` began at `start_offset`, unless it is known already.

        Entries that this contradicts (a newer epoch, or one that began no earlier and so has no records) are dropped.
        """
        if self.epochs and self.epochs[-1] == epoch and self.start_offsets[-1] <= start_offset:
            return
        while self.epochs and (self.epochs[-1] >= epoch or self.start_offsets[-1] >= start_offset):
            self.epochs.pop()
            self.start_offsets.pop()
        self.epochs.append(epoch)
        self.start_offsets.append(start_offset)
        if len(self.epochs) > ENTRIES_MAX:
            del self.epochs[0]
            del self.start_offsets[0]

    def truncate(self, log_end_offset: i64) -> None:
        """The log was cut: drops the epochs that begin at or above its new end."""
        while self.start_offsets and self.start_offsets[-1] >= log_end_offset:
            self.epochs.pop()
            self.start_offsets.pop()

    def end_offset(self, epoch: i64, log_end_offset: i64) -> tuple[int, int]:
        """The (epoch, end offset) that answers for `epoch`; (-1, -1): undefined (unknown, newer than all, or none
        known).
        """
        epochs = self.epochs
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return -1, -1
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        if epoch < epochs[0]:
            return epoch, self.start_offsets[0]
        low = 0
        high = len(epochs) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if epochs[middle] <= epoch:
                low = middle
            else:
                high = middle
        return epochs[low], self.start_offsets[high]
