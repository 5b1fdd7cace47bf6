"""Records of the wire, as protobuf or JSON, as rows of a stream; and rows with the archive's columns as messages.

A record is one `purgatory.v1.Operation` or one `purgatory.v1.Event`. As JSON it may also say `at` (RFC 3339, or
milliseconds since 1970) and `caller`; otherwise these are the time and the key that it came with. An `Event` in which
nothing is set is a heartbeat: only time passes. The value of a signal decides nothing and is left out.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from purgatory.engine import codes
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.kinds.operation_columns import ITEM, columns_of
from purgatory.engine.kinds.operation_columns import OPERATION as OPERATION_LEVEL
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.engine.marks.event_columns import EVENT_COLUMNS
from purgatory.v1 import event_pb2, operation_pb2
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream.stream_rows import ROWS

Row = dict[str, Any]

OPERATION: Final = "operation"
EVENT: Final = "event"
AT_MS_MAX: Final = 1 << 53

MALFORMED: Final = pa.schema([("side", pa.string()), ("record", pa.binary()), ("reason", pa.string())])
"""Records that could not be read, and why."""

_KINDS: Final = {name: code for code, name in codes.KIND_NAMES.items()}
_TYPES: Final = {name: code for code, name in codes.EVENT_NAMES.items()}


def _row_fields(level: str) -> dict[str, dict[str, str]]:
    """By kind: the fields of a condition, or of its items, and their columns. Repeated fields are not columns."""
    return {
        name: {
            one.row_name: one.name
            for one in columns_of(kind)
            if one.level == level and not one.is_of_all_kinds and one.name != "unless_count"
        }
        for kind, name in codes.KIND_NAMES.items()
    }


ITEM_FIELDS: Final = _row_fields(ITEM)
SIGNAL_FIELDS: Final = ITEM_FIELDS["signal"]
"""Of a key, also as a term of a composite."""
CONDITION_FIELDS: Final = _row_fields(OPERATION_LEVEL)
EVENT_FIELDS: Final = {
    **{field: column.name for column in EVENT_COLUMNS for field in column.row_names.values()},
    "leader_id": "leader_id",
    "min_in_sync_replicas": "min_in_sync_replicas",
    "proposed_replica_ids": "proposed",
}
"""Fields of events that are a column of their own, whatever the event."""
RISING_MARKS: Final = ("leader_append", "high_watermark", "log_start_offset")
"""Types of event that can be repeated: the daemon ignores a mark that is not above the one it has."""
REPLICA_FIELDS: Final = {"in_sync_replicas": "in_sync", "leadership": "replicas"}
_FLAGS: Final[dict[str, Callable[[Any], int]]] = {
    "leadership": lambda event: int(event.is_leader),
    "partition_removed": lambda event: int(event.moved),
    "replica_state": lambda event: int(event.dead) | int(event.fenced) << 1,
    "key_signalled": lambda event: int(event.failed),
}


class RecordRows:
    """Collects the rows of records. Unreadable records go to `malformed`."""

    def __init__(self, side: str, *, is_json: bool) -> None:
        self.side: Final = side
        self._read: Final = self._operation if side == OPERATION else self._event
        self._message: Final[Any] = operation_pb2.Operation if side == OPERATION else event_pb2.Event
        self._is_json: Final = is_json
        self._rows = 0
        self._columns: Final[dict[str, dict[int, Any]]] = defaultdict(dict)
        """Values that are set, by column and row: most columns are sparse."""
        self._malformed: Final[list[dict[str, Any]]] = []

    def add(self, record: bytes | None, at_ms: int | None, place: int | None, caller: str | None) -> None:
        octets = record or b""
        try:
            if self._is_json:
                message, at_ms, caller = self._of_json(octets, at_ms, caller)
            else:
                message = self._message.FromString(octets)
            if at_ms is None or not 0 <= at_ms < AT_MS_MAX:
                raise ValueError(f"at: not a valid time: {at_ms}")  # noqa: TRY301 - handled with the others
            self._read(message, {"at_ms": at_ms, "place": place, "caller": caller})
        except (ValueError, DecodeError, json_format.ParseError) as error:  # nothing of the record was added
            self._malformed.append({"side": self.side, "record": octets, "reason": str(error).splitlines()[0]})

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Rows (columns of `ROWS`) and `MALFORMED`."""
        rows = {
            name: pa.array([values.get(row) for row in range(self._rows)], ROWS.field(name).type)
            for name, values in self._columns.items()
        }
        return pa.table(rows or ROWS.empty_table().select(["at_ms"])), pa.Table.from_pylist(self._malformed, MALFORMED)

    def _of_json(self, octets: bytes, at_ms: int | None, caller: str | None) -> tuple[Any, int | None, str | None]:
        given = json.loads(octets)
        if not isinstance(given, dict):
            raise ValueError("is not a JSON object")  # noqa: TRY004 - of the data, not of the program
        at, caller = given.pop("at", None), given.pop("caller", caller)
        if at is not None:
            at_ms = at if isinstance(at, int) else _milliseconds(at)
        return json_format.ParseDict(given, self._message()), at_ms, caller

    def _operation(self, message: operation_pb2.Operation, stamp: dict[str, Any]) -> None:
        kind = message.WhichOneof("condition")
        if kind is None:
            raise ValueError("condition: is not set: set one of " + ", ".join(_KINDS))
        condition = getattr(message, kind)
        items = items_of(kind, condition)
        if not items:
            raise ValueError(f"{kind}: has no {ITEMS_NAMES.get(kind, 'partitions')}")
        if not 1 <= message.operation_id <= OPERATION_ID_MAX:
            raise ValueError(f"operation_id: {message.operation_id} is not in 1..{OPERATION_ID_MAX}")
        shared = stamp | {"kind": _KINDS[kind], "operation_id": message.operation_id, "item_count": len(items)}
        shared["timeout_ms"] = message.timeout_ms if message.HasField("timeout_ms") else None
        shared["stale_timeout_ms"] = message.stale_timeout_ms if message.HasField("stale_timeout_ms") else None
        shared |= set_fields(condition, CONDITION_FIELDS.get(kind, {}))
        if kind == "composite":
            shared["unless_count"] = len(condition.unless)
        for place, item in enumerate(items):
            is_key = isinstance(item, operation_pb2.SignalKey)
            values = shared | {"item": place} | set_fields(item, SIGNAL_FIELDS if is_key else ITEM_FIELDS[kind])
            values |= {"topic": item.key} if is_key else name_of(item.topic_partition)
            self._put_row(values)

    def _event(self, message: event_pb2.Event, stamp: dict[str, Any]) -> None:
        name = message.WhichOneof("event")
        if not message.ListFields():  # a heartbeat
            return self._put_row(stamp)
        if name is None:
            raise ValueError("event: is not set: set one of " + ", ".join(_TYPES))
        event = getattr(message, name)
        values = stamp | {"type": _TYPES[name]} | set_fields(event, EVENT_FIELDS)
        if name == "key_signalled":
            check_value(event)
            values |= {"topic": event.key, "offset": values["offset"] if event.HasField("count") else 1}
        else:
            values |= name_of(message.topic_partition)
        if message.HasField("leader_epoch"):
            values["leader_epoch"] = message.leader_epoch
        if name in _FLAGS:
            values["flags"] = _FLAGS[name](event)
        if name in REPLICA_FIELDS:
            values[REPLICA_FIELDS[name]] = list(event.replica_ids)
        return self._put_row(values)

    def _put_row(self, values: dict[str, Any]) -> None:
        row = self._rows
        for name, value in values.items():
            if value is not None:
                self._columns[name][row] = value
        self._rows = row + 1


ITEMS_NAMES: Final = {"signal": "keys", "composite": "terms"}
"""By kind: what its items are called, if not partitions."""


def items_of(kind: str, condition: Any) -> list[Any]:  # noqa: ANN401 - of any kind
    """The partitions and keys of a condition, in order. Raises ValueError for a term that rows cannot say."""
    if kind != "composite":
        return list(condition.keys if kind == "signal" else condition.partitions)
    items = []
    for arm in ("terms", "unless"):
        for place, term in enumerate(getattr(condition, arm)):
            chosen = term.WhichOneof("condition")
            if chosen is None:
                raise ValueError(f"composite.{arm}[{place}]: is not set: set one of mark, signal")
            path, item = f"composite.{arm}[{place}].{chosen}", getattr(term, chosen)
            if chosen == "mark" and item.topic_partition.partition < 0:  # in a row this is a key
                raise ValueError(f"{path}.topic_partition: the partition is negative")
            required = "required_offset" if chosen == "mark" else "required_count"
            if getattr(item, required) == codes.UNKNOWN:  # in a row this is the default
                raise ValueError(f"{path}.{required}: {codes.UNKNOWN} is negative")
            items.append(item)
    return items


def _milliseconds(at: str) -> int:
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None:  # not RFC 3339, and each executor would read it in its own time zone
        raise ValueError(f"at: {at} has no offset; write it like 2026-11-21T18:00:00Z")
    return round(moment.timestamp() * 1_000)


def check_value(signal: event_pb2.KeySignalled) -> None:
    """Raises ValueError for what the engine would refuse: rows have neither values nor decisions, so it cannot."""
    if len(signal.value) > SIGNAL_VALUE_BYTES_MAX:
        raise ValueError(
            f"key_signalled.value: has {len(signal.value)} bytes; at most {SIGNAL_VALUE_BYTES_MAX} are allowed"
        )
    if (signal.value or signal.HasField("decision")) and signal.HasField("count") and signal.count == 0:
        raise ValueError("key_signalled.count: 0 is a heartbeat, which has no value and does not fail; give 1 or more")


def name_of(given: operation_pb2.TopicPartition) -> dict[str, Any]:
    return {"topic": given.topic, "partition": given.partition}


def set_fields(message: Any, columns: dict[str, str]) -> dict[str, Any]:  # noqa: ANN401 - of any type
    """The fields of a message that are columns, if they are set or have no presence."""
    known = message.DESCRIPTOR.fields_by_name
    found: dict[str, Any] = {}
    for name, column in columns.items():
        field = known.get(name)
        if field is None or (field.has_presence and not message.HasField(name)):
            continue
        value = getattr(message, name)
        found[column] = value if not field.is_repeated else list(value)
    return found


def event_of(row: Row) -> event_pb2.Event:
    """An event, from the archive's columns. Raises `PipelineError`."""
    name = row["type"]
    if name not in RISING_MARKS:
        raise PipelineError(
            f"type: {name}; allowed: {', '.join(RISING_MARKS)}. A repeated micro-batch would apply other events twice: "
            "send them from foreachBatch"
        )
    event = event_pb2.Event()
    message = getattr(event, name)
    message.SetInParent()
    event.topic_partition.topic, event.topic_partition.partition = row["topic"], row.get("partition") or 0
    if row.get("leader_epoch") is not None:
        event.leader_epoch = row["leader_epoch"]
    fill(message, row, EVENT_FIELDS)
    return event


def operation_of(rows: Sequence[Row]) -> operation_pb2.Operation:
    """An operation, from the rows of its items, in order. Raises `PipelineError`."""
    first = rows[0]
    kind, operation_id = first["kind"], first.get("operation_id")
    if not 1 <= (operation_id or 0) <= OPERATION_ID_MAX:
        raise PipelineError(f"operation_id: {operation_id}; allowed: 1 to {OPERATION_ID_MAX}")
    if kind not in ITEM_FIELDS:
        raise PipelineError(f"operation {operation_id}: kind: {kind}; allowed: {', '.join(ITEM_FIELDS)}")
    items = [row.get("item") or 0 for row in rows]
    if items != list(range(len(rows))) or first.get("item_count") not in (None, len(rows)):
        raise PipelineError(
            f"operation {operation_id}: item: {items} of {first.get('item_count') or 'an unknown number'}; "
            "each item must be there once, and all items of an operation in one micro-batch"
        )
    operation = operation_pb2.Operation(operation_id=operation_id)
    for name in ("timeout_ms", "stale_timeout_ms"):
        if first.get(name) is not None:
            setattr(operation, name, first[name])
    condition = getattr(operation, kind)
    fill(condition, first, CONDITION_FIELDS.get(kind, {}))
    unless_from = len(rows) - (first.get("unless_count") or 0)
    for place, row in enumerate(rows):
        is_key = kind == "signal" or (kind == "composite" and row.get("partition") is None)
        if kind == "composite":
            term = (condition.terms if place < unless_from else condition.unless).add()
            item = term.signal if is_key else term.mark
        else:
            item = condition.keys.add() if is_key else condition.partitions.add()
        if is_key:
            item.key = row["topic"]
        else:
            item.topic_partition.topic, item.topic_partition.partition = row["topic"], row.get("partition") or 0
        fill(item, row, SIGNAL_FIELDS if is_key else ITEM_FIELDS[kind])
    return operation


def fill(message: Any, row: Row, columns: dict[str, str]) -> None:  # noqa: ANN401 - of any type
    """Set the fields of a message for which the row has values."""
    for name, column in columns.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        value = row.get(column)
        if field is not None and value is not None:
            setattr(message, name, value)
