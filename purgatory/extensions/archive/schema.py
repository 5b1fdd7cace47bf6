"""Arrow schemas of the archive's tables, and their version; used by daemon and pipeline.

`table_columns` documents each table and column.
"""

from typing import Final

import pyarrow as pa

from purgatory.engine import codes
from purgatory.engine.completions import FLOAT64
from purgatory.engine.kinds.operation_columns import BOOL, INT32, INT64
from purgatory.extensions.archive import vocabulary
from purgatory.extensions.archive.table_columns import INSTANT, INT32_LIST, INT64_LIST, TABLE_COLUMNS, TEXT, WORD
from purgatory.extensions.archive.vocabulary import *  # noqa: F403 - users of the schemas need the vocabulary, too

__all__ = ["EVENT_LABELS", "KIND_LABELS", "OUTCOME_LABELS", "RESULT_ITEM", "SCHEMAS", "VERSION"]
__all__ += vocabulary.__all__

VERSION: Final = 1
"""Version of these schemas. A reader refuses an archive with any other version."""

_ARROW: Final = {
    WORD: pa.dictionary(pa.int32(), pa.string()),
    TEXT: pa.string(),
    INSTANT: pa.timestamp("ms", tz="UTC"),
    BOOL: pa.bool_(),
    INT32: pa.int32(),
    INT64: pa.int64(),
    FLOAT64: pa.float64(),
    INT32_LIST: pa.list_(pa.int32()),
    INT64_LIST: pa.list_(pa.int64()),
}

SCHEMAS: Final[dict[str, pa.Schema]] = {
    table: pa.schema([(column.name, _ARROW[column.type_name]) for column in columns])
    for table, columns in TABLE_COLUMNS.items()
}

_AFTER_NAME: Final = SCHEMAS[vocabulary.OUTCOMES].get_field_index("topic") + 1
RESULT_ITEM: Final = pa.struct([("topic", pa.string()), *list(SCHEMAS[vocabulary.OUTCOMES])[_AFTER_NAME:]])
"""One partition (or key) of an operation that has ended, in tables with a row for each operation."""

KIND_LABELS: Final = ["", *(codes.KIND_NAMES[kind] for kind in sorted(codes.KIND_NAMES))]
"""Dictionary of the column `kind`; the index is the code."""
OUTCOME_LABELS: Final = ["", *(codes.OUTCOME_NAMES[outcome] for outcome in sorted(codes.OUTCOME_NAMES))]
EVENT_LABELS: Final = ["", *(codes.EVENT_NAMES[event] for event in sorted(codes.EVENT_NAMES))]
