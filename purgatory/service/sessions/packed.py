"""Results that came one by one, put together: each set of columns takes a kilobyte, whatever is in it."""

from array import array
from collections.abc import Sequence
from typing import Final, Protocol

from purgatory.engine.batches import PartitionName
from purgatory.engine.completions import NOTHING_STALE, Completions, FetchedPartition
from purgatory.service.sessions.refused import RefusedCompletions
from purgatory.service.translate.uniform_columns import FLOAT, SIGNED, Form

OF_OPERATIONS: Final = ("operation_ids", "kinds", "outcomes", "waited_ms", "lateness_ms", "item_counts")
OF_ITEMS: Final = (
    "error_codes", "required_offsets", "reached_offsets", "log_start_offsets", "estimated_remaining_ms",
)  # fmt: skip


class SliceSpan(Protocol):
    """Some results of some completions."""

    @property
    def completions(self) -> "Completions | RefusedCompletions | PackedCompletions": ...

    start: int
    stop: int
    item_start: int
    item_stop: int


class PackedCompletions:
    """The results of several spans, none of them fetches, in the columns of `Completions`."""

    operation_ids: "array[int]"
    kinds: "array[int]"
    outcomes: "array[int]"
    waited_ms: "array[int]"
    lateness_ms: "array[int]"
    item_counts: "array[int]"
    error_codes: "array[int]"
    required_offsets: "array[int]"
    reached_offsets: "array[int]"
    log_start_offsets: "array[int]"
    estimated_remaining_ms: "array[int]"
    paces_per_second: "array[float]"

    def __init__(self, spans: Sequence[SliceSpan]) -> None:
        for name in OF_OPERATIONS:
            octets = [getattr(span.completions, name)[span.start : span.stop] for span in spans]
            setattr(self, name, _column(b"".join(octets), SIGNED))
        for name in (*OF_ITEMS, "paces_per_second"):
            octets = [getattr(span.completions, name)[span.item_start : span.item_stop] for span in spans]
            setattr(self, name, _column(b"".join(octets), FLOAT if name == "paces_per_second" else SIGNED))
        self.item_partitions: Final[list[PartitionName]] = [
            name for span in spans for name in span.completions.item_partitions[span.item_start : span.item_stop]
        ]
        self.fetched: Final[list[FetchedPartition]] = []
        self.stale_marks: Final = _stale_marks(spans)


def _stale_marks(spans: Sequence[SliceSpan]) -> dict[int, tuple[int, str]]:
    """The stale marks of the spans, by their new places."""
    if not any(span.completions.stale_marks for span in spans):
        return NOTHING_STALE
    found: dict[int, tuple[int, str]] = {}
    before = 0
    for span in spans:
        for item, mark in span.completions.stale_marks.items():
            if span.item_start <= item < span.item_stop:
                found[before + item - span.item_start] = mark
        before += span.item_stop - span.item_start
    return found


def _column(octets: bytes, form: Form) -> "array[int]":
    column: array[int] = array(form)
    column.frombytes(octets)
    return column
