"""Results as they wait to be sent: slices of the engine's completions, and the memory that they take.

Results that ended one by one are joined in arrays, because a set of columns costs a kilobyte. Columns are compared and
concatenated as bytes: reading a value creates a Python object, which takes longer than all that is done with it here.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, getitem
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory.engine import codes
from purgatory.engine.batches import PartitionName, Refusal
from purgatory.engine.completions import (
    NO_VALUES,
    NOTHING_STALE,
    RESULT_COLUMNS,
    RESULT_ITEM_COLUMNS,
    Completions,
    FetchedPartition,
)

SIGNED: Final = "q"
UNSIGNED: Final = "Q"
"""Forms, by the letters of `struct`; floats are "d"."""
VALUE_BYTES: Final = 8


def is_uniform(octets: bytes) -> bool:
    """Whether all values are equal; true for zero or one value."""
    return octets[VALUE_BYTES:] == octets[:-VALUE_BYTES]


def values_of(octets: bytes, form: str) -> list[int] | list[float]:
    view: Any = memoryview(octets)
    values: list[int] | list[float] = view.cast(form).tolist()
    return values


def shortened(octets: bytes, form: str, default: float) -> list[int] | list[float]:
    """The values on the wire: a single one if all are equal, none if that is the default."""
    if not is_uniform(octets):
        return values_of(octets, form)
    first = values_of(octets[:VALUE_BYTES], form)
    return [] if first == [default] else first


T = TypeVar("T")

# Memory of results that wait to be acknowledged, in bytes. Measured once; a test checks the values.
RESULT_BYTES: Final = 64
"""A result in its columns, without its items."""

RESULT_ITEM_BYTES: Final = 64

FETCHED_BYTES: Final = 160
"""Added for each item of a fetch."""

STALE_MARK_BYTES: Final = 200
"""Added for each item whose mark is stale; the reasons are shared."""

SIGNAL_VALUE_BYTES: Final = 100
"""Added for each item with the value of a key, and the length of each different value: they are shared."""

SLICE_BYTES: Final = 900
"""Overhead of results that were added together."""

REFUSAL_BYTES: Final = 500
"""A refused registration, without its text."""


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

        def __getattr__(self, attribute: str) -> array[Any]: ...


Results = Completions | ArrayCompletions


@dataclass(slots=True, eq=False)
class ResultSlice:
    """Results `start` to `stop` of some completions, all of one kind; `refusals` states why operations were refused."""

    completions: Results
    kind: int
    start: int
    stop: int
    item_start: int
    item_stop: int
    fetched_start: int
    """Start of the slice in `completions.fetched` if its kind is fetch."""
    refusals: Sequence[Refusal] = ()
    """Either empty, or one for each of the completions, not only those of the slice."""

    def __post_init__(self) -> None:
        assert self.start < self.stop, f"an empty slice: start={self.start} stop={self.stop}"

    def __len__(self) -> int:
        return self.stop - self.start

    def held_bytes(self) -> int:
        items = self.item_stop - self.item_start
        held = SLICE_BYTES + (self.stop - self.start) * RESULT_BYTES + items * RESULT_ITEM_BYTES
        if self.kind == codes.FETCH:
            held += items * FETCHED_BYTES
        stale, given = self.completions.stale_marks, self.completions.signal_values
        if not (stale or given or self.refusals):
            return held
        # By the items of the slice: there may be as many slices as results, and all of them share the dictionaries.
        if stale:
            held += sum(item in stale for item in range(self.item_start, self.item_stop)) * STALE_MARK_BYTES
        if given:
            values = [given[item] for item in range(self.item_start, self.item_stop) if item in given]
            held += len(values) * SIGNAL_VALUE_BYTES + sum(map(len, set(values)))
        for refusal in self.refusals[self.start : self.stop] if self.refusals else ():
            held += REFUSAL_BYTES + len(refusal.message) + len(refusal.field)
        return held

    def count_within(self, results_max: int, items_max: int) -> int:
        """The number of leading results within both limits; 0 if the first one has more items than `items_max`."""
        size, items = self.stop - self.start, self.item_stop - self.item_start
        count = min(size, results_max)
        if items <= items_max:
            return count
        if items == size:  # almost always: one item each
            return max(0, min(count, items_max))
        for place, item_count in enumerate(self.completions.item_counts[self.start : self.start + count]):
            items_max -= item_count
            if items_max < 0:
                return place
        return count

    def split(self, count: int) -> "tuple[ResultSlice, ResultSlice]":
        """Return the first `count` results and the rest. Both are views of the same completions."""
        assert 0 < count < len(self), f"count={count} of {len(self)}"
        middle = self.start + count
        items = sum(self.completions.item_counts[self.start : middle])
        item_middle = self.item_start + items
        head = ResultSlice(
            self.completions, self.kind, self.start, middle, self.item_start, item_middle,
            self.fetched_start, self.refusals,
        )  # fmt: skip
        tail = ResultSlice(
            self.completions, self.kind, middle, self.stop, item_middle, self.item_stop,
            self.fetched_start + items, self.refusals,
        )  # fmt: skip
        return head, tail


def slices_of(completions: Results, refusals: Sequence[Refusal] = ()) -> list[ResultSlice]:
    """Cut completions into slices of one kind each, in order."""
    kinds = completions.kinds
    count = len(kinds)
    if count == 0:
        return []
    # Nearly always one kind, which a comparison of bytes finds out without a loop over the results.
    if count == 1 or is_uniform(bytes(kinds)):
        return [ResultSlice(completions, kinds[0], 0, count, 0, len(completions.item_partitions), 0, refusals)]
    slices: list[ResultSlice] = []
    start = item_start = fetched_start = 0
    while start < len(kinds):
        kind = kinds[start]
        stop = start
        while stop < len(kinds) and kinds[stop] == kind:
            stop += 1
        items = sum(completions.item_counts[start:stop])
        slices.append(
            ResultSlice(completions, kind, start, stop, item_start, item_start + items, fetched_start, refusals)
        )
        item_start += items
        if kind == codes.FETCH:
            fetched_start += items
        start = stop
    return slices


def packed(spans: Sequence[ResultSlice]) -> ArrayCompletions:
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


def _moved(spans: Sequence[ResultSlice], by_item: Sequence[dict[int, T]]) -> dict[int, T]:
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
