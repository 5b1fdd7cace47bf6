"""The table of result columns: what is stated about each ended operation and each of its items.

Packed and refused results and the translation to the wire, as columns and as rows, all read it. The engine's
`Completions` is written out by hand, because its columns are filled in compiled code.
"""

from typing import Final, NamedTuple

from purgatory.service.translate.uniform_columns import FLOAT, SIGNED, UNSIGNED, Form


class ResultColumn(NamedTuple):
    """`name`: the attribute of `Completions`. `wire_name`: the field of the wire's columns and rows.

    `default`: the value that the wire leaves out; in columns, only if the whole column has it.
    """

    name: str
    wire_name: str
    form: Form = SIGNED
    default: float = 0


OPERATION_ID: Final = ResultColumn("operation_ids", "operation_id", UNSIGNED)
KIND: Final = ResultColumn("kinds", "kind")
OUTCOME: Final = ResultColumn("outcomes", "outcome")
WAITED_MS: Final = ResultColumn("waited_ms", "waited_ms")
LATENESS_MS: Final = ResultColumn("lateness_ms", "lateness_ms")
ITEM_COUNT: Final = ResultColumn("item_counts", "item_count", default=1)

OPERATION_COLUMNS: Final = (OPERATION_ID, KIND, OUTCOME, WAITED_MS, LATENESS_MS, ITEM_COUNT)
"""One value for each operation."""

ITEM_COLUMNS: Final = (
    ResultColumn("error_codes", "error_code"),
    ResultColumn("required_offsets", "required_offset"),
    ResultColumn("reached_offsets", "reached_offset"),
    ResultColumn("log_start_offsets", "log_start_offset"),
    ResultColumn("estimated_remaining_ms", "estimated_remaining_ms", default=-1),
    ResultColumn("paces_per_second", "pace_per_second", FLOAT, -1.0),
)
"""One value for each partition or key of an operation."""

FETCHED_COLUMNS: Final = (
    ResultColumn("available_bytes", "available_bytes"),
    ResultColumn("high_watermark", "high_watermark"),
    ResultColumn("last_stable_offset", "last_stable_offset"),
    ResultColumn("diverging_epoch", "diverging_epoch", default=-1),
    ResultColumn("diverging_end_offset", "diverging_end_offset", default=-1),
)
"""Attributes of `FetchedPartition`: one value for each item of a fetch."""
