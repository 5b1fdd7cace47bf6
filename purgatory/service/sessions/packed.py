"""Results in arrays. Results that ended one by one are concatenated, because a set of columns costs a kilobyte."""

from array import array
from collections.abc import Sequence
from operator import attrgetter, getitem
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import (
    NO_VALUES,
    NOTHING_STALE,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
    FetchedPartition,
)

T = TypeVar("T")


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
        self.signal_values = NO_VALUES

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> "array[Any]": ...


def packed(spans: Sequence[SliceSpan]) -> ArrayCompletions:
    """Concatenate the results of several spans, none of which are fetches."""
    found = ArrayCompletions()
    completions = [span.completions for span in spans]
    places = [slice(span.start, span.stop) for span in spans]
    items = [slice(span.item_start, span.item_stop) for span in spans]
    # Slices of columns are buffers of 64-bit values, so joining them creates no Python number.
    for columns, parts in ((RESULT_COLUMNS, places), (RESULT_ITEM_COLUMNS, items)):
        for column in columns:
            values: Any = map(getitem, map(attrgetter(column.attribute), completions), parts)
            getattr(found, column.attribute).frombytes(b"".join(values))
    found.item_partitions = [
        name for span in spans for name in span.completions.item_partitions[span.item_start : span.item_stop]
    ]
    found.stale_marks = _moved(spans, [span.completions.stale_marks for span in spans]) or NOTHING_STALE
    found.signal_values = _moved(spans, [span.completions.signal_values for span in spans]) or NO_VALUES
    return found


def _moved(spans: Sequence[SliceSpan], by_item: Sequence[dict[int, T]]) -> dict[int, T]:
    """Values that only some items of the spans have, by the new index of the item."""
    found: dict[int, T] = {}
    before = 0
    for span, values in zip(spans, by_item, strict=True):
        # By item of the whole completions, of which the span may be a small part.
        for item in range(span.item_start, span.item_stop) if values else ():
            if item in values:
                found[before + item - span.item_start] = values[item]
        before += span.item_stop - span.item_start
    return found
