"""How waits end: `Result` for one operation, `ResultColumns` for many.

A `Result` is a view of the columns it arrived in, and reads them on access. Ten thousand waits that end together
therefore cost ten thousand small views, and objects for partitions are created only on demand. A result that is kept
for a long time keeps its batch's columns in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

from purgatory_client.errors import PurgatoryClientError, UnlessReached, WaitError, WaitExpired, WaitFailed, WaitStale
from purgatory_client.partition_names import format_partition

MARK_STALE: Final = 1001
"""Error code of a mark that was stale for longer than the wait allows. Not one of Kafka's codes."""
UNLESS_REACHED: Final = 1002
"""Error code of a term of the failure arm that became true. Not one of Kafka's codes."""
SIGNAL_FAILED: Final = 1003
"""Error code of a key that was signalled as failed. Not one of Kafka's codes."""
HEARTBEAT_MISSED: Final = 1004
"""Error code of a key that was silent for longer than the wait allows. Not one of Kafka's codes."""
_REQUEST_TIMED_OUT: Final = 7

_VALUE_SHOWN_MAX: Final = 200
"""Characters of a value in messages for people."""


class OpenEnum(IntEnum):
    """An enumeration to which later daemons may add values: those unknown here are called `UNKNOWN_<number>`."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_, unknown._value_ = f"UNKNOWN_{value}", value
        return unknown


class OperationKind(OpenEnum):
    """The kinds of delayed operation, with their numbers on the wire."""

    PRODUCE = 1
    FETCH = 2
    DELETE_RECORDS = 3
    SIGNAL = 4
    COMPOSITE = 5


class Outcome(OpenEnum):
    """How an operation ended, with its number on the wire. PENDING occurs only in an unfinished batch."""

    PENDING = 0
    SATISFIED = 1
    FAILED = 2
    EXPIRED = 3
    CANCELLED = 4
    SHUTTING_DOWN = 5
    REFUSED = 6


OPERATION_COLUMNS: Final[dict[str, tuple[str, float]]] = {
    "outcomes": ("outcome", 0),
    "waited_ms": ("waited_ms", 0),
    "lateness_ms": ("lateness_ms", 0),
}
"""Columns of `ResultColumns` with a value for each operation: their names on the wire, and their defaults if absent."""

ITEM_COLUMNS: Final[dict[str, tuple[str, float]]] = {
    "error_codes": ("error_code", 0),
    "required_offsets": ("required_offset", 0),
    "reached_offsets": ("reached_offset", 0),
    "log_start_offsets": ("log_start_offset", 0),
    "estimated_remaining_ms": ("estimated_remaining_ms", -1),
    "paces_per_second": ("pace_per_second", -1.0),
    "stale_ms": ("stale_ms", -1),
    "stale_reasons": ("stale_reason_index", 0),
    "signal_values": ("signal_value_index", 0),
    "signal_values_left_out": ("signal_value_left_out", False),
}
"""Columns with a value for each item, in the same form."""

FETCH_COLUMNS: Final[dict[str, tuple[str, float]]] = {
    **ITEM_COLUMNS,
    "available_bytes": ("available_bytes", 0),
    "high_watermarks": ("high_watermark", 0),
    "last_stable_offsets": ("last_stable_offset", 0),
    "diverging_epochs": ("diverging_epoch", -1),
    "diverging_end_offsets": ("diverging_end_offset", -1),
}
"""The item columns of fetches."""

COLUMNS: Final = {**OPERATION_COLUMNS, **FETCH_COLUMNS, "item_indexes": ("item_index", 0)}
"""All columns."""


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """The readable data of a partition when its fetch ended.

    Attributes:
        available_bytes: The number of bytes that can be read.
        high_watermark: -1 if unknown.
        last_stable_offset: -1 if unknown.
        diverging_epoch: With `diverging_end_offset`: where the reader's log diverges from the leader's. None: it does
            not.
        diverging_end_offset: The offset to truncate to.
    """

    available_bytes: int
    high_watermark: int
    last_stable_offset: int
    diverging_epoch: int | None
    diverging_end_offset: int | None


@dataclass(slots=True, eq=False)
class PartitionResult:
    """The result of one partition or key of an operation. Offsets are -1 if unknown.

    Attributes:
        name: "orders-3", or the key.
        error_code: Kafka's error code; 0: reached, 7: not reached in time. Or `MARK_STALE` (1001), `UNLESS_REACHED`
            (1002), `SIGNAL_FAILED` (1003), `HEARTBEAT_MISSED` (1004).
        required_offset: The offset that was waited for.
        reached_offset: The offset that the mark had reached.
        log_start_offset: The partition's first readable offset.
        estimated_remaining: For expired waits: seconds until the offset would have been reached at the mark's pace.
            None if the mark did not move while it was known.
        pace_per_second: That pace in offsets per second, or None.
        fetched: For fetches: the readable data.
        stale_for: For expired and stale waits: seconds for which the mark had been stale. None: it was not, or it has
            no source.
        stale_reason: Why, as text for people; empty if `stale_for` is None.
        signal_value: The value with which the key of a signal was reached or failed; empty if there is none.
        signal_value_left_out: Whether there is one that no longer fitted into the result (3.5 MB). To get it, wait for
            the key again with a timeout of 0.
    """

    name: str
    error_code: int
    required_offset: int
    reached_offset: int
    log_start_offset: int
    estimated_remaining: float | None
    pace_per_second: float | None
    fetched: FetchedPartition | None
    stale_for: float | None = None
    stale_reason: str = ""
    signal_value: bytes = b""
    signal_value_left_out: bool = False

    def __repr__(self) -> str:
        return (
            f"PartitionResult({self.name!r}, error_code={self.error_code}, "
            f"required_offset={self.required_offset}, reached_offset={self.reached_offset})"
        )


class ResultColumns:
    """The results of many operations of one kind, one list per field. Iterating yields a `Result` for each operation.

    `outcomes`, `waited_ms`, `lateness_ms` and `item_counts` have a value for each operation, the other lists a value
    for each item: each partition (or key) of each operation, in the order of the request. Offsets are -1 if unknown;
    estimates, paces and stale times are -1 if absent. Each list is built on first access.

    Attributes:
        outcomes: Numbers of `Outcome`.
        waited_ms: Milliseconds from registration to end; see `Result.waited`.
        lateness_ms: For expired operations: milliseconds from the deadline to the end.
        item_counts: The number of items of each operation; empty if every operation has one.
        names: The dictionary: (topic, partition) pairs and keys.
        item_indexes: The index of each item's name in `names`.
        refusals: By position, the error of each operation whose outcome is REFUSED.
    """

    __slots__ = ("_read", "item_counts", "kind", "names", "refusals", "unless_counts", *COLUMNS)

    names: Sequence[tuple[str, int] | str]
    outcomes: list[int]
    waited_ms: list[int]
    lateness_ms: list[int]
    item_counts: list[int]
    item_indexes: list[int]
    error_codes: list[int]
    required_offsets: list[int]
    reached_offsets: list[int]
    log_start_offsets: list[int]
    estimated_remaining_ms: list[int]
    paces_per_second: list[float]
    stale_ms: list[int]
    stale_reasons: list[str]
    signal_values: list[bytes]
    signal_values_left_out: list[bool]
    available_bytes: list[int]
    high_watermarks: list[int]
    last_stable_offsets: list[int]
    diverging_epochs: list[int]
    diverging_end_offsets: list[int]

    def __init__(self, kind: int, read: Callable[[str], list[Any]]) -> None:
        self.kind = kind
        self.refusals: dict[int, PurgatoryClientError] = {}
        self.unless_counts: Sequence[int] = [0]
        """How many of the last items of each operation are its failure arm, as far as known; one count for all if there
        is only one."""
        self._read = read

    def __getattr__(self, name: str) -> list[Any]:
        """Build a list on first access, because most lists are never read."""
        if name not in COLUMNS and name not in ("names", "item_counts"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        column = self._read(name)
        setattr(self, name, column)
        return column

    def __len__(self) -> int:
        return len(self.outcomes)

    def __iter__(self) -> "Iterator[Result]":
        start, counts = 0, self.unless_counts
        for position in range(len(self)):
            yield Result(self, position, start, counts[position if len(counts) > 1 else 0])
            start += self.item_counts[position] if self.item_counts else 1

    def __bool__(self) -> bool:
        return self.satisfied

    @property
    def satisfied(self) -> bool:
        """Whether every operation is satisfied; also the truth value."""
        return self.outcomes.count(Outcome.SATISFIED) == len(self.outcomes)

    def count(self, outcome: Outcome) -> int:
        """The number of operations that ended with this outcome."""
        return self.outcomes.count(outcome)

    def name_of(self, item: int) -> str:
        """The partition ("orders-3") or key of an item."""
        name = self.names[self.item_indexes[item]]
        return name if isinstance(name, str) else format_partition(*name)


class ResultsByName(dict[str, PartitionResult]):
    """Results of partitions and keys by name; ("orders", 3) finds "orders-3"."""

    def __getitem__(self, name: object) -> PartitionResult:
        return super().__getitem__(_name_of(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_name_of(name))

    def get(self, name: object, default: Any = None) -> Any:  # noqa: ANN401 - as of any dictionary
        """As of any dictionary."""
        return super().get(_name_of(name), default)


def _name_of(name: Any) -> str:  # noqa: ANN401 - a partition in either form, or a key
    return format_partition(*name) if isinstance(name, tuple) and len(name) == 2 else name


def already_satisfied() -> "Result":
    """The result of waiting for no partitions, for example for the end of an empty topic."""
    values: dict[str, list[Any]] = {name: [0] for name in (*OPERATION_COLUMNS, "item_counts")}
    values["outcomes"] = [Outcome.SATISFIED]
    return Result(ResultColumns(OperationKind.PRODUCE, lambda name: values.get(name, [])), 0, 0)


class Result:
    """How one operation ended."""

    __slots__ = ("_columns", "_item_start", "_position", "_unless_count", "_waited_before_ms")

    def __init__(
        self, columns: ResultColumns, position: int, item_start: int, unless_count: int = 0, waited_before_ms: int = 0
    ) -> None:
        self._columns = columns
        self._position = position
        self._item_start = item_start
        self._unless_count = unless_count
        self._waited_before_ms = waited_before_ms

    @property
    def kind(self) -> OperationKind:
        """The kind of the operation."""
        return OperationKind(self._columns.kind)

    @property
    def outcome(self) -> Outcome:
        """How the operation ended."""
        return Outcome(self._columns.outcomes[self._position])

    def __bool__(self) -> bool:
        return self.satisfied

    @property
    def satisfied(self) -> bool:
        """Whether the condition holds on every partition; also the truth value."""
        return self._columns.outcomes[self._position] == Outcome.SATISFIED

    @property
    def waited(self) -> float:
        """Seconds from registration to end. If it was sent after a lost connection, as to a daemon that came back
        without a journal: from submission to end.
        """
        return (self._waited_before_ms + self._columns.waited_ms[self._position]) / 1_000

    @property
    def lateness(self) -> float:
        """For an expired operation: seconds from its deadline to its end. 0 for others."""
        return self._columns.lateness_ms[self._position] / 1_000

    @property
    def partitions(self) -> ResultsByName:
        """The result of each partition or key by name ("orders-3" or ("orders", 3)), in the order of the request. If
        the terms of a composite repeat a name: that of the last one.
        """
        return ResultsByName({item.name: item for item in self.items})

    @property
    def items(self) -> list[PartitionResult]:
        """The result of each partition or key, in the order of the request; of a composite: terms, then `unless`."""
        counts = self._columns.item_counts
        count = counts[self._position] if counts else 1
        return [self._item(item) for item in range(self._item_start, self._item_start + count)]

    @property
    def decided_by(self) -> list[PartitionResult]:
        """The items that decided. If it is satisfied: those that are true. If it failed: the term of the failure arm
        that is true, or else the items that can no longer be reached. None for other outcomes.
        """
        if self.satisfied:
            return [item for item in self.items if not item.error_code]
        if self.outcome != Outcome.FAILED:
            return []
        lost = [item for item in self.items if item.error_code not in (0, _REQUEST_TIMED_OUT)]
        return [item for item in lost if item.error_code == UNLESS_REACHED] or lost

    def raise_for_outcome(self) -> "Result":
        """Raise unless the operation is satisfied.

        Returns:
            This result.

        Raises:
            WaitError: It was cancelled, or the daemon shut down; WaitFailed or WaitExpired.
            PurgatoryClientError: The daemon refused this operation of a batch; the error is the refusal.
        """
        if self.satisfied:
            return self
        outcome = self.outcome
        if outcome == Outcome.REFUSED:
            raise self._columns.refusals[self._position]
        # The failure arm, of which nothing was reached, is not what is missing.
        terms = self.items[: -self._unless_count or None]
        failed = self.decided_by or [item for item in terms if item.error_code]
        open_items = ", ".join(map(_open_item, failed))
        name = outcome.name.lower().replace("_", " ")
        message = f"{self.kind.name.lower()} {name} after {self.waited:.3f} s"
        raise self._error_type(failed)(f"{message}; {open_items}" if open_items else message, self)

    def _error_type(self, failed: list[PartitionResult]) -> type[WaitError]:
        if self.outcome != Outcome.FAILED:
            return WaitExpired if self.outcome == Outcome.EXPIRED else WaitError
        codes = {item.error_code for item in failed}
        return UnlessReached if UNLESS_REACHED in codes else WaitStale if MARK_STALE in codes else WaitFailed

    def _item(self, item: int) -> PartitionResult:
        columns = self._columns
        estimate = columns.estimated_remaining_ms[item]
        pace = columns.paces_per_second[item]
        stale_ms = columns.stale_ms[item]
        return PartitionResult(
            columns.name_of(item),
            columns.error_codes[item],
            columns.required_offsets[item],
            columns.reached_offsets[item],
            columns.log_start_offsets[item],
            None if estimate < 0 else estimate / 1_000,
            None if pace < 0 else pace,
            self._fetched(item) if columns.kind == OperationKind.FETCH else None,
            None if stale_ms < 0 else stale_ms / 1_000,
            columns.stale_reasons[item] if stale_ms >= 0 else "",
            columns.signal_values[item],
            bool(columns.signal_values_left_out[item]),
        )

    def _fetched(self, item: int) -> FetchedPartition:
        columns = self._columns
        epoch, end = columns.diverging_epochs[item], columns.diverging_end_offsets[item]
        return FetchedPartition(
            columns.available_bytes[item],
            columns.high_watermarks[item],
            columns.last_stable_offsets[item],
            None if epoch < 0 and end < 0 else epoch,
            None if epoch < 0 and end < 0 else end,
        )

    def __repr__(self) -> str:
        return f"Result({self.kind.name}, {self.outcome.name}, waited={self.waited:.3f}, {self.items})"


def _open_item(item: PartitionResult) -> str:
    stale = "" if item.stale_for is None else f", stale for {item.stale_for:.1f} s: {item.stale_reason}"
    value = f": {value_text(item.signal_value)}" if item.signal_value else ""
    return f"{item.name}: {item.reached_offset} of {item.required_offset} (error {item.error_code}{stale}{value})"


def value_text(value: bytes) -> str:
    """The beginning of a value, as text for people; what is not UTF-8 is shown in hexadecimal."""
    text = value.decode("utf-8", "backslashreplace")
    return text if len(text) <= _VALUE_SHOWN_MAX else f"{text[:_VALUE_SHOWN_MAX]}..."
