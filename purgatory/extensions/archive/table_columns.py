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

from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, INT32, INT64, ITEM, OPERATION
from purgatory.extensions.archive.vocabulary import CALLS, EVENTS, MARKERS, OUTCOMES, REGISTRATIONS

# Types, in addition to those of operation columns.
WORD: Final = "word"
"""Text with many repeated values: dictionary-encoded."""
TEXT: Final = "text"
INSTANT: Final = "instant"
FLOAT64: Final = "float64"
INT32_LIST: Final = "int32 list"
INT64_LIST: Final = "int64 list"

# Encodings of numbers in files.
PLAIN: Final = "plain"
DELTA: Final = "delta"
"""Delta encoding: fewer bytes than dictionary encoding, and less work to write."""
FEW_VALUES: Final = "few values"
"""Dictionary-encoded. pyarrow falls back to plain values if there are many distinct values."""

# Levels: the object that values are copied from. `OPERATION` and `ITEM` are columns of `Completions`.
EVENT: Final = "event"
"""Copied from `EventBatch`."""
FETCHED: Final = "fetched"
"""Copied from `FetchedPartition`."""
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
    TableColumn("partition", INT32),  # NO_PARTITION: a signal
]

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
        _given("outcome", WORD, PLAIN, OPERATION, "outcomes"),  # codes.OUTCOME_NAMES
        _given("waited_ms", INT64, DELTA, OPERATION),
        _given("lateness_ms", INT64, PLAIN, OPERATION),  # of an expiry; 0 otherwise
        _given("item", INT32),
        _given("item_count", INT32, PLAIN, OPERATION, "item_counts"),
        *_NAME,
        _given("error_code", INT32, PLAIN, ITEM, "error_codes"),
        _given("required_offset", INT64, DELTA, ITEM, "required_offsets"),
        _given("reached_offset", INT64, DELTA, ITEM, "reached_offsets"),
        _given("log_start_offset", INT64, PLAIN, ITEM, "log_start_offsets"),
        TableColumn("estimated_remaining_ms", INT64, PLAIN, ITEM),
        TableColumn("pace_per_second", FLOAT64, PLAIN, ITEM, "paces_per_second"),
        TableColumn("available_bytes", INT64, PLAIN, FETCHED),  # from here on: fetches only
        TableColumn("high_watermark", INT64, PLAIN, FETCHED),
        TableColumn("last_stable_offset", INT64, PLAIN, FETCHED),
        TableColumn("diverging_epoch", INT32, PLAIN, FETCHED),
        TableColumn("diverging_end_offset", INT64, PLAIN, FETCHED),
    ],
    EVENTS: [
        *_COMMON,
        _given("row", INT32, DELTA),  # position in its call, from 0
        _given("principal", WORD),  # sender; empty: callers were not authenticated
        _given("type", WORD),  # codes.EVENT_NAMES
        *_NAME,
        TableColumn("offset", INT64, DELTA, EVENT, "offsets"),
        TableColumn("leader_epoch", INT32, PLAIN, EVENT, "leader_epochs"),
        TableColumn("replica_id", INT32, PLAIN, EVENT, "replica_ids"),
        TableColumn("byte_position", INT64, PLAIN, EVENT, "byte_positions"),
        TableColumn("segment_base_offset", INT64, PLAIN, EVENT, "segment_base_offsets"),
        TableColumn("log_start_offset", INT64, PLAIN, EVENT, "log_start_offsets"),
        TableColumn("flags", INT32, PLAIN, EVENT),
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
        TableColumn("session_number", INT64, FEW_VALUES),  # cancel, cancel_session, fail_stale
        TableColumn("operation_ids", INT64_LIST),  # cancel: as requested; fail_stale: in the first row
        *_NAME,  # cancel_partition: the partition; cancel_key: the key; fail_stale: a stale mark
        _given("ended", INT32),
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
