"""The table of operation columns: all per-operation and per-item fields of a batch of operations.

This is the only definition of the columns: the engine's checks and defaults, the translation from the wire, the
archive's schema and the replay all read it. Columns that a kind does not have are ignored for operations of that kind.

Not in the table, because every batch has them: `operation_id`, `timeout_ms` (its default and maximum are settings),
`item_count`, `item_index` and the dictionaries of names.
"""

from typing import Final

from purgatory.engine.codes import (
    COMPOSITE,
    DELETE_RECORDS,
    FETCH,
    KINDS,
    NONE,
    OFFSET_MAX,
    PRODUCE,
    READ_COMMITTED,
    SIGNAL,
    UNKNOWN,
)
from purgatory.engine.columns import Column

OPERATION: Final = "operation"
ITEM: Final = "item"
"""Levels: one value per operation, or one per partition (or key) of an operation."""

INT32: Final = "int32"
INT64: Final = "int64"
BOOL: Final = "bool"

INT32_MAX: Final = 2**31 - 1


class OperationColumn:
    """One column, as some kinds use it.

    `name`: in the archive and in a replay. `batch_name`: the attribute of `OperationBatch`. `wire_name`: the field of
    the wire's columns. `row_name`: the field of the wire's rows, which a refusal names. `default`: used for missing
    values, and always allowed. Other values must be in `lowest..highest`.
    """

    def __init__(
        self,
        name: str,
        batch_name: str,
        kinds: tuple[int, ...],
        level: str,
        type_name: str,
        default: int,
        lowest: int,
        highest: int,
        *,
        row_name: str = "",
        wire_name: str = "",
    ) -> None:
        self.name: Final = name
        self.batch_name: Final = batch_name
        self.wire_name: Final = wire_name or name
        self.row_name: Final = row_name or self.wire_name
        self.kinds: Final = kinds
        self.level: Final = level
        self.type_name: Final = type_name
        self.default: Final = default
        self.lowest: Final = lowest
        self.highest: Final = highest
        self._not_given: Final = self._read([])

    def read(self, values: list[int]) -> Column:
        """The values of a batch, range-checked in one pass."""
        return self._read(values) if values else self._not_given

    @property
    def is_of_all_kinds(self) -> bool:
        """Whether every kind has it. The wire's rows have such a field next to the condition instead of inside it."""
        return self.kinds == KINDS

    def fault(self, value: int) -> str:
        """The message for a value that is out of range."""
        return f"{value} is not in {self.lowest}..{self.highest}"

    def _read(self, values: list[int]) -> Column:
        return Column(values, self.default, min(self.lowest, self.default), self.highest)


def _offset(kind: int, row_name: str, *, default: int = 0, lowest: int = 0) -> OperationColumn:
    return OperationColumn(
        "offset", "offsets", (kind,), ITEM, INT64, default, lowest, OFFSET_MAX - 1, row_name=row_name
    )


def _epoch(name: str, kind: int, row_name: str = "") -> OperationColumn:
    return OperationColumn(name, name + "s", (kind,), ITEM, INT32, UNKNOWN, 0, INT32_MAX, row_name=row_name)


OPERATION_COLUMNS: Final = (
    _offset(PRODUCE, "required_offset"),
    _offset(FETCH, "fetch_offset"),
    _offset(DELETE_RECORDS, "offset", lowest=-1),
    _offset(SIGNAL, "required_count", default=1, lowest=1),
    # Without a value: 0 for a partition, 1 for a key.
    _offset(COMPOSITE, "required_offset", default=UNKNOWN),
    OperationColumn(
        "local_error_code", "local_error_codes", (PRODUCE, DELETE_RECORDS), ITEM, INT32, NONE, -1, 2**15 - 1
    ),
    _epoch("leader_epoch", PRODUCE),
    _epoch("leader_epoch", FETCH, "current_leader_epoch"),
    OperationColumn("min_bytes", "min_bytes", (FETCH,), OPERATION, INT64, 1, 1, OFFSET_MAX - 1),
    OperationColumn("replica_id", "replica_ids", (FETCH,), OPERATION, INT32, UNKNOWN, 0, INT32_MAX),
    OperationColumn("isolation_level", "isolation_levels", (FETCH,), OPERATION, INT32, 0, 0, READ_COMMITTED),
    OperationColumn("follower_reads", "follower_reads", (FETCH,), OPERATION, BOOL, 0, 0, 1),
    OperationColumn("partition_max_bytes", "partition_max_bytes", (FETCH,), ITEM, INT64, 2**20, 1, OFFSET_MAX - 1),
    _epoch("last_fetched_epoch", FETCH),
    OperationColumn("throttled", "throttled", (FETCH,), ITEM, BOOL, 0, 0, 1),
    OperationColumn("any_key", "any_key", (SIGNAL,), OPERATION, BOOL, 0, 0, 1, wire_name="any"),
    OperationColumn("from_now", "from_now", (SIGNAL,), OPERATION, BOOL, 0, 0, 1),
    # 0 is taken as absent, like a missing number of the wire.
    OperationColumn(
        "heartbeat_timeout_ms", "heartbeat_timeouts_ms", (SIGNAL,), OPERATION, INT64, UNKNOWN, 1, OFFSET_MAX - 1
    ),
    OperationColumn("stale_timeout_ms", "stale_timeouts_ms", KINDS, OPERATION, INT64, UNKNOWN, 0, OFFSET_MAX - 1),
    OperationColumn("required_terms", "required_terms", (COMPOSITE,), OPERATION, INT32, 0, 0, INT32_MAX),
    OperationColumn(
        "unless_count", "unless_counts", (COMPOSITE,), OPERATION, INT32, 0, 0, INT32_MAX, row_name="unless"
    ),
)
"""In the archive's order. A name is repeated where kinds use the column differently."""

COLUMNS_BY_NAME: Final = {column.name: column for column in OPERATION_COLUMNS}
"""Each column once, in the same order. All uses of a column agree on everything but `row_name`, kinds and values."""

_COLUMNS_OF: Final = [[column for column in OPERATION_COLUMNS if kind in column.kinds] for kind in (0, *KINDS)]


def columns_of(kind: int) -> list[OperationColumn]:
    """The columns of a kind."""
    return _COLUMNS_OF[kind]


def default_of(name: str, kind: int) -> int:
    """The default of a column for operations of a kind. Raises KeyError if the kind does not have the column."""
    for column in _COLUMNS_OF[kind]:
        if column.name == name:
            return column.default
    raise KeyError(f"operations of kind {kind} have no column {name!r}")
