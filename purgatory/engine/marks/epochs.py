"""Leader epochs of one partition and where each began, to find where a reader's log has diverged.

Kafka's leader epoch cache (docs/semantics.md): sorted (epoch, start offset) pairs; the newest `ENTRIES_MAX` are kept.
Kafka drops an epoch only when the log has dropped its records. Here epochs may be missing whose records still exist.
"""

from typing import Final

from mypy_extensions import i64

__all__ = ["EpochCache"]

ENTRIES_MAX: Final = 1_000

DROPPED_BELOW: Final = -1
"""Stands for the start of the oldest kept epoch; below all offsets, so the column stays ascending."""


class EpochCache:
    """Sorted leader epochs and the first offset of each."""

    def __init__(self) -> None:
        self.epochs: Final[list[int]] = []
        self.start_offsets: Final[list[int]] = []
        """The first one is `DROPPED_BELOW` if older epochs were dropped to keep `ENTRIES_MAX`."""

    def assign(self, epoch: i64, start_offset: i64) -> None:
        """Record that `epoch` began at `start_offset`, unless it is already known.

        Contradicted entries are dropped: those with a newer epoch, and those that began no earlier and so have no
        records.
        """
        if self.epochs and self.epochs[-1] == epoch and self.start_offsets[-1] <= start_offset:
            return
        # As in Kafka's LeaderEpochFileCache: both columns stay strictly ascending, which the binary search needs.
        while self.epochs and (self.epochs[-1] >= epoch or self.start_offsets[-1] >= start_offset):
            self.epochs.pop()
            self.start_offsets.pop()
        self.epochs.append(epoch)
        self.start_offsets.append(start_offset)
        if len(self.epochs) > ENTRIES_MAX:
            del self.epochs[0]
            del self.start_offsets[0]
            # Stored in the column, so it is saved with it. The start is needed only to answer for older epochs.
            self.start_offsets[0] = DROPPED_BELOW

    def truncate(self, log_end_offset: i64) -> None:
        """Drop the epochs that begin at or above the new end of the log."""
        while self.start_offsets and self.start_offsets[-1] >= log_end_offset:
            self.epochs.pop()
            self.start_offsets.pop()

    def end_offset(self, epoch: i64, log_end_offset: i64) -> tuple[int, int]:
        """The (epoch, end offset) that answers for `epoch`.

        (-1, -1): undefined, because the epoch is unknown, is newer than all known ones, was dropped, or none is known.
        """
        epochs = self.epochs
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return -1, -1
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        # A later end than the true one would hide that the reader's log has diverged.
        if epoch < epochs[0] and self.start_offsets[0] == DROPPED_BELOW:
            return -1, -1
        # As in Kafka: everything below the first entry was written in epochs that are not known any more, so the
        # reader's epoch is repeated and ends where the first entry begins.
        if epoch < epochs[0]:
            return epoch, self.start_offsets[0]
        low = 0
        high = len(epochs) - 1
        # Invariant: `epochs[low] <= epoch < epochs[high]`.
        while high - low > 1:
            middle = (low + high) // 2
            if epochs[middle] <= epoch:
                low = middle
            else:
                high = middle
        return epochs[low], self.start_offsets[high]
