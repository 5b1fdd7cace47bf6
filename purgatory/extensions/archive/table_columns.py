"""The columns of the archive's five tables: type, origin of the values, and encoding in files. Needs no Arrow.

An archive lists all calls made to one or more engines, in order, and all their results. An engine that receives the
same calls therefore ends every operation in the same way. Rows are flat: a registration or an outcome has one row for
each partition (or key) of its operation. Values of the operation as a whole are repeated in each row. `item` is 0 in
the first row, so the number of operations is the number of rows with `item = 0`.

Columns that all tables have:

- `run_id`: one lifetime of one daemon. Call numbers and session numbers are counted within it.
- `call_number`: the engine call, increasing from 1 within a run; orders everything in the run.
- `time_ms`: the engine's clock at that call, monotonic milliseconds.
- `at`: the same instant as wall-clock time (UTC). Resynchronised every minute, so it may jump, even backwards.

A column is null if the value was not given (the wire's default then applies), or if the kind does not have it.
"""

from functools import partial
from typing import Final, NamedTuple

from purgatory.engine.completions import FETCHED_COLUMNS, RESULT_COLUMNS, RESULT_ITEM_COLUMNS, ResultColumn
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, INT32, INT64, OPERATION
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.extensions.archive.vocabulary import CALLS, EVENTS, MARKERS, OUTCOMES, REGISTRATIONS

# Types, in addition to those of operation columns.
WORD: Final = "word"
"""Text with many repeated values: dictionary-encoded."""
TEXT: Final = "text"
INSTANT: Final = "instant"
INT32_LIST: Final = "int32 list"
INT64_LIST: Final = "int64 list"

# Encodings of numbers in files.
PLAIN: Final = "plain"
DELTA: Final = "delta"
"""Delta encoding: fewer bytes than dictionary encoding, and less work to write."""
FEW_VALUES: Final = "few values"
"""Dictionary-encoded. pyarrow falls back to plain values if there are many distinct values."""

# Levels: the object that values are copied from. Those of outcomes are in the engine's table of result columns.
EVENT: Final = "event"
"""Copied from `EventBatch`."""
REPLICAS: Final = "replicas"
"""Copied from `ReplicaSets`."""


class TableColumn(NamedTuple):
    """A column of one table."""

    name: str
    type_name: str
    encoding: str = PLAIN
    level: str = ""
    """The object that the values are copied from, if any; `OPERATION` and `ITEM` only in outcomes."""
    source: str = ""
    """Name of the attribute there, if it differs from the column's."""
    has_nulls: bool = True
    """False if every row has a value, which halves the work of writing."""
    has_statistics: bool = False
    """Whether readers use the column's statistics to skip files and row groups."""


_given: Final = partial(TableColumn, has_nulls=False)

_COMMON: Final = [
    _given("run_id", WORD),
    _given("call_number", INT64, DELTA, has_statistics=True),
    _given("time_ms", INT64, DELTA, has_statistics=True),
    _given("at", INSTANT, DELTA, has_statistics=True),
]
_OPERATION: Final = [
    TableColumn("session_number", INT64, FEW_VALUES),  # increases with each new session of the run; 0: unary waits
    _given("session_id", WORD),  # chosen by the client; empty: unary waits
    _given("principal", WORD),  # owner; empty: callers were not authenticated
    # Unique within a session number.
    _given("operation_id", INT64, DELTA, OPERATION, "operation_ids", has_statistics=True),
    _given("kind", WORD, PLAIN, OPERATION, "kinds"),  # codes.KIND_NAMES
]
_NAME: Final = [
    TableColumn("topic", WORD),  # or the key of a signal
    TableColumn("partition", INT32),  # NO_PARTITION: a key
]

_PLACED_RESULTS: Final = ("operation_id", "kind", "item_count")
"""Columns of results that have a place of their own in the table."""
_DELTA_RESULTS: Final = ("waited_ms", "required_offset", "reached_offset")


def _result(column: ResultColumn) -> TableColumn:
    """A column of the engine's results. The values of fetches, and those that are often absent, may be null."""
    type_name = WORD if column.name == "outcome" else column.type_name  # codes.OUTCOME_NAMES
    encoding = DELTA if column.name in _DELTA_RESULTS else PLAIN
    has_nulls = column.is_optional or column in FETCHED_COLUMNS
    return TableColumn(column.name, type_name, encoding, column.level, column.attribute, has_nulls)


TABLE_COLUMNS: Final[dict[str, list[TableColumn]]] = {
    REGISTRATIONS: [
        *_COMMON,
        *_OPERATION,
        _given("timeout_ms", INT64, FEW_VALUES),  # the default is filled in
        _given("refusal_code", INT32),  # ACCEPTED, or why the operation was refused
        _given("item", INT32),  # position in the operation, from 0
        _given("item_count", INT32),
        *_NAME,
        *(
            TableColumn(column.name, column.type_name, DELTA if column.name == "offset" else PLAIN)
            for column in COLUMNS_BY_NAME.values()
        ),
    ],
    OUTCOMES: [
        *_COMMON,
        *_OPERATION,
        *(_result(column) for column in RESULT_COLUMNS if column.name not in _PLACED_RESULTS),
        _given("item", INT32),
        *(_result(column) for column in RESULT_COLUMNS if column.name == "item_count"),
        *_NAME,
        *(_result(column) for column in (*RESULT_ITEM_COLUMNS, *FETCHED_COLUMNS)),
    ],
    EVENTS: [
        *_COMMON,
        _given("row", INT32, DELTA),  # position in its call, from 0
        _given("principal", WORD),  # sender; empty: callers were not authenticated
        _given("type", WORD),  # codes.EVENT_NAMES
        *_NAME,
        *(
            TableColumn(one.name, one.type_name, DELTA if one.name == "offset" else PLAIN, EVENT, one.batch_name)
            for one in EVENT_COLUMNS
        ),
        TableColumn("replicas", INT32_LIST, PLAIN, REPLICAS),
        TableColumn("in_sync", INT32_LIST, PLAIN, REPLICAS),
        TableColumn("proposed", INT32_LIST, PLAIN, REPLICAS),
        TableColumn("leader_id", INT32, PLAIN, REPLICAS),
        TableColumn("min_in_sync_replicas", INT32, PLAIN, REPLICAS),
        _given("refusal_code", INT32),  # ACCEPTED, or why the event was refused
        _given("ended", INT32),  # number of operations that the event ended
    ],
    CALLS: [
        *_COMMON,
        _given("call", WORD),  # CALL_NAMES
        TableColumn("session_number", INT64, FEW_VALUES),  # cancel, cancel_all, fail_stale, extend
        # cancel: as requested; extend: those that were pending; fail_stale: in the first row
        TableColumn("operation_ids", INT64_LIST),
        *_NAME,  # cancel_name: the partition or key; fail_stale: a stale mark
        _given("ended", INT32),
        TableColumn("timeout_ms", INT64, FEW_VALUES),  # extend: from this call on; pause: its length
    ],
    MARKERS: [
        *_COMMON,
        _given("marker", WORD),  # MARKER_NAMES
        TableColumn("table", WORD),
        TableColumn("rows", INT64),
        TableColumn("last_call_number", INT64),
        TableColumn("detail", TEXT),
    ],
}


def copied_columns(table: str, level: str) -> list[tuple[str, str]]:
    """The columns of a table that are copied from that level, each with the name of its source attribute."""
    return [(column.name, column.source or column.name) for column in TABLE_COLUMNS[table] if column.level == level]
