"""The table of event columns: the fields of a batch of events, and where the rows of the wire have them.

The translation from the wire, the archive's schema and the pipeline's rows read it. Not in the table: the type and the
name of an event, and lists of replicas (`ReplicaSets`), which columns cannot express.
"""

from typing import Final, NamedTuple

from purgatory.engine.codes import (
    FOLLOWER_PROGRESS,
    HIGH_WATERMARK,
    KEY_SIGNALLED,
    LAST_STABLE_OFFSET,
    LEADER_APPEND,
    LEADERSHIP,
    LOG_START_OFFSET,
    REPLICA_STATE,
    TRUNCATION,
    UNKNOWN,
)
from purgatory.engine.kinds.operation_columns import INT32, INT64


class EventColumn(NamedTuple):
    """One column.

    `name`: in the archive, and the field of the wire's columns. `batch_name`: the attribute of `EventBatch`.
    `default`: for events that do not have it. `row_names`: by event type, the field of the wire's rows.
    """

    name: str
    batch_name: str
    type_name: str
    default: int
    row_names: dict[int, str]
    on_wire: bool = True
    """Whether the wire's columns have it."""


EVENT_COLUMNS: Final = (
    EventColumn(
        "offset",
        "offsets",
        INT64,
        0,
        {
            LEADER_APPEND: "log_end_offset",
            FOLLOWER_PROGRESS: "log_end_offset",
            HIGH_WATERMARK: "offset",
            LAST_STABLE_OFFSET: "offset",
            LOG_START_OFFSET: "offset",
            LEADERSHIP: "epoch_start_offset",
            TRUNCATION: "offset",
            KEY_SIGNALLED: "count",
        },
    ),
    EventColumn("leader_epoch", "leader_epochs", INT32, UNKNOWN, {}),  # a row has it next to the event
    EventColumn(
        "replica_id", "replica_ids", INT32, UNKNOWN, {FOLLOWER_PROGRESS: "replica_id", REPLICA_STATE: "replica_id"}
    ),
    EventColumn("byte_position", "byte_positions", INT64, UNKNOWN, {LEADER_APPEND: "byte_position"}),
    EventColumn("segment_base_offset", "segment_base_offsets", INT64, UNKNOWN, {LEADER_APPEND: "segment_base_offset"}),
    EventColumn("log_start_offset", "log_start_offsets", INT64, UNKNOWN, {FOLLOWER_PROGRESS: "log_start_offset"}),
    EventColumn("flags", "flags", INT32, 0, {}, on_wire=False),  # bits from several fields of a row
)
"""In the archive's order."""


def row_fields(event_type: int) -> dict[str, EventColumn]:
    """The row fields of an event type that are copied to a column unchanged."""
    return {column.row_names[event_type]: column for column in EVENT_COLUMNS if event_type in column.row_names}
