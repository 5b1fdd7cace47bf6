"""What the archive holds: five tables, their columns, and the version of both. Daemon and pipeline share this module.

An archive is the list of all calls that one or more engines were given, in order, and of all that came out. So the same
engine, fed with it, ends every operation the same way. Rows are flat: a registration or an outcome has one row for each
partition (or key) of its operation; what belongs to the operation as a whole is repeated in each, and `item` is 0 in
the first, so counting operations is counting rows with `item = 0`.

Columns that all tables have:

- `run_id`: one life of one daemon. Numbers of calls and of sessions are counted within it.
- `call_number`: the engine call, rising from 1 within a run; orders everything in it.
- `time_ms`: the engine's clock at that call, monotonic milliseconds.
- `at`: the same instant as wall-clock time (UTC). Looked up again every minute, so it may jump, even back.

A value that was not given, and so takes the wire's default, is null; so is one that the kind does not have.
"""

from typing import Final

import pyarrow as pa

from purgatory.archive import vocabulary
from purgatory.archive.vocabulary import *  # noqa: F403 - whoever shares the schemas shares the vocabulary
from purgatory.engine import codes
from purgatory.engine.kinds.operation_columns import BOOL, COLUMNS_BY_NAME, INT32, INT64

__all__ = ["EVENT_LABELS", "KIND_LABELS", "OUTCOME_LABELS", "SCHEMAS", "VERSION"]
__all__ += vocabulary.__all__

VERSION: Final = 1
"""Of these schemas. A reader takes its own and older ones, and refuses newer ones by name."""

_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_INSTANT: Final = pa.timestamp("ms", tz="UTC")

_ARROW: Final = {BOOL: pa.bool_(), INT32: pa.int32(), INT64: pa.int64()}

_COMMON: Final = [
    ("run_id", _WORD),
    ("call_number", pa.int64()),
    ("time_ms", pa.int64()),
    ("at", _INSTANT),
]
_OPERATION: Final = [
    ("session_number", pa.int64()),  # rises with every new session of the run; 0: unary waits
    ("session_id", _WORD),  # as the client chose it; empty: unary waits
    ("principal", _WORD),  # who it belongs to; empty: nobody was asked
    ("operation_id", pa.int64()),  # unique within a session number
    ("kind", _WORD),  # codes.KIND_NAMES
]
_ITEM: Final = [
    ("item", pa.int32()),  # place in the operation, from 0
    ("item_count", pa.int32()),
    ("topic", _WORD),  # or the key of a signal
    ("partition", pa.int32()),  # NO_PARTITION: a signal
]

SCHEMAS: Final[dict[str, pa.Schema]] = {
    vocabulary.REGISTRATIONS: pa.schema(
        [
            *_COMMON,
            *_OPERATION,
            ("timeout_ms", pa.int64()),  # never null: the default is filled in
            ("refusal_code", pa.int32()),  # ACCEPTED, or why it never waited
            *_ITEM,
            *((column.name, _ARROW[column.type_name]) for column in COLUMNS_BY_NAME.values()),
        ]
    ),
    vocabulary.OUTCOMES: pa.schema(
        [
            *_COMMON,
            *_OPERATION,
            ("outcome", _WORD),  # codes.OUTCOME_NAMES
            ("waited_ms", pa.int64()),
            ("lateness_ms", pa.int64()),  # of an expiry; 0 otherwise
            *_ITEM,
            ("error_code", pa.int32()),
            ("required_offset", pa.int64()),
            ("reached_offset", pa.int64()),
            ("log_start_offset", pa.int64()),
            ("estimated_remaining_ms", pa.int64()),
            ("pace_per_second", pa.float64()),
            ("available_bytes", pa.int64()),  # from here on: fetches only
            ("high_watermark", pa.int64()),
            ("last_stable_offset", pa.int64()),
            ("diverging_epoch", pa.int32()),
            ("diverging_end_offset", pa.int64()),
        ]
    ),
    vocabulary.EVENTS: pa.schema(
        [
            *_COMMON,
            ("row", pa.int32()),  # place in its call, from 0
            ("type", _WORD),  # codes.EVENT_NAMES
            ("topic", _WORD),  # or the key of a signal
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("leader_epoch", pa.int32()),
            ("replica_id", pa.int32()),
            ("byte_position", pa.int64()),
            ("segment_base_offset", pa.int64()),
            ("log_start_offset", pa.int64()),
            ("flags", pa.int32()),
            ("replicas", pa.list_(pa.int32())),
            ("in_sync", pa.list_(pa.int32())),
            ("proposed", pa.list_(pa.int32())),
            ("leader_id", pa.int32()),
            ("min_in_sync_replicas", pa.int32()),
            ("refusal_code", pa.int32()),  # ACCEPTED, or why it changed nothing
            ("ended", pa.int32()),  # operations that it ended
        ]
    ),
    vocabulary.CALLS: pa.schema(
        [
            *_COMMON,
            ("call", _WORD),  # CALL_NAMES
            ("session_number", pa.int64()),  # cancel, cancel_session
            ("operation_ids", pa.list_(pa.int64())),  # cancel: as they were asked for
            ("topic", _WORD),  # cancel_partition; for cancel_key the key
            ("partition", pa.int32()),
            ("ended", pa.int32()),
        ]
    ),
    vocabulary.MARKERS: pa.schema(
        [
            *_COMMON,
            ("marker", _WORD),  # MARKER_NAMES
            ("table", _WORD),
            ("rows", pa.int64()),
            ("last_call_number", pa.int64()),
            ("detail", pa.string()),
        ]
    ),
}

KIND_LABELS: Final = ["", *(codes.KIND_NAMES[kind] for kind in sorted(codes.KIND_NAMES))]
"""Dictionary of `kind`: index = code."""
OUTCOME_LABELS: Final = ["", *(codes.OUTCOME_NAMES[outcome] for outcome in sorted(codes.OUTCOME_NAMES))]
EVENT_LABELS: Final = ["", *(codes.EVENT_NAMES[event] for event in sorted(codes.EVENT_NAMES))]
