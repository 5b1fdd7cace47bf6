"""Results in arrays. Results that ended one by one are concatenated, because a set of columns costs a kilobyte."""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import (
    NOTHING_STALE,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
    FetchedPartition,
)


class SliceSpan(Protocol):
    """Results `start` to `stop` of some completions, with their items."""

    @property
    def completions(self) -> "Completions | ArrayCompletions": ...

    start: int
    stop: int
    item_start: int
    item_stop: int


class ArrayCompletions:
    """Results in the columns of `Completions`, as arrays; empty at first."""

    def __init__(self) -> None:
        for column in (*RESULT_COLUMNS, *RESULT_ITEM_COLUMNS):
            setattr(self, column.attribute, array(column.form))
        self.item_partitions: list[PartitionName] = []
        self.fetched: Final[list[FetchedPartition]] = []
        self.stale_marks = NOTHING_STALE

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> "array[Any]": ...


def packed(spans: Sequence[SliceSpan]) -> ArrayCompletions:
    """Concatenate the results of several spans, none of which are fetches."""
    found = ArrayCompletions()
    # Slices of columns are buffers of 64-bit values, so joining them creates no Python number.
    for column in RESULT_COLUMNS:
        values = [getattr(span.completions, column.attribute)[span.start : span.stop] for span in spans]
        getattr(found, column.attribute).frombytes(b"".join(values))
    for column in RESULT_ITEM_COLUMNS:
        values = [getattr(span.completions, column.attribute)[span.item_start : span.item_stop] for span in spans]
        getattr(found, column.attribute).frombytes(b"".join(values))
    found.item_partitions = [
        name for span in spans for name in span.completions.item_partitions[span.item_start : span.item_stop]
    ]
    found.stale_marks = _stale_marks(spans)
    return found


def _stale_marks(spans: Sequence[SliceSpan]) -> dict[int, tuple[int, str]]:
    """The stale marks of the spans, by their new index."""
    if not any(span.completions.stale_marks for span in spans):
        return NOTHING_STALE
    found: dict[int, tuple[int, str]] = {}
    before = 0
    for span in spans:
        # By item of the whole completions, of which the span may be a part.
        for item, mark in span.completions.stale_marks.items():
            if span.item_start <= item < span.item_stop:
                found[before + item - span.item_start] = mark
        before += span.item_stop - span.item_start
    return found
