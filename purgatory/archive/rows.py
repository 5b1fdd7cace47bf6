"""Rows of the archive's tables from records of calls, as Arrow record batches with the schema of their table.

To make an Arrow array costs microseconds whatever its length, so records of many calls are added to `RegistrationRows`,
`OutcomeRows`, `EventRows` or `SingleRows`, and `take` makes rows of all of them at once.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory.archive.records import (
    EVENT_COLUMNS,
    FETCH_COLUMNS,
    NAMELESS,
    OUTCOME_ITEM_COLUMNS,
    OUTCOME_OPERATION_COLUMNS,
    REPLICA_COLUMNS,
    Names,
    Packed,
    Record,
    completion_record,
    event_record,
    packed_buffer,
    registration_records,
)
from purgatory.archive.schema import (
    EVENT_LABELS,
    EVENTS,
    KIND_LABELS,
    OUTCOME_LABELS,
    OUTCOMES,
    REGISTRATIONS,
    SCHEMAS,
)
from purgatory.archive.vocabulary import CALLS, INT32_MAX, MARKERS, CallStamp, Registrant, Row
from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, RegisterReceipt
from purgatory.engine.codes import FETCH
from purgatory.engine.completions import Completions
from purgatory.engine.kinds.operation_columns import COLUMNS_BY_NAME, ITEM, OPERATION

INT64: Final = np.dtype(np.int64)
INT32: Final = np.dtype(np.int32)
CONSTANT_ROWS: Final = 16_384
NOT_ENTERED: Final = -2
NO_PACE: Final = packed_buffer(np.array([-1.0]))
"""The number whose bits are those of -1.0."""

Numbers = npt.NDArray[np.int64]


def single_row(table: str, stamp: CallStamp, values: Row) -> pa.RecordBatch:
    """One of the other calls, or a marker: `values` are its own columns, of `call_values` or `marker_values`."""
    rows = SingleRows(table)
    rows.add_row(stamp, values)
    return rows.take()


# Arrow columns from arrays of numbers, and back.


def arrow(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, arrow_type: pa.DataType) -> pa.Array:
    """An array as a column, null where the mask is set, without a copy."""
    rows = len(values)
    if values.dtype == np.bool_:
        values = np.packbits(values, bitorder="little")
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, rows, [valid, pa.py_buffer(values)])


def plain(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of a column as an array, whatever stands where it is null. The way back."""
    _, buffer = column.buffers()
    return np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]


def constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    """A column of one value; of nulls for None. Most are the same few values again and again, so they are kept."""
    length = CONSTANT_ROWS
    while length < rows:
        length *= 2
    return _constant(value, arrow_type, length).slice(0, rows)


@functools.lru_cache(maxsize=256)
def _constant(value: Any, arrow_type: pa.DataType, rows: int) -> pa.Array:  # noqa: ANN401
    return (
        pa.nulls(rows, arrow_type) if value is None else pa.repeat(pa.scalar(value, pa.int64()).cast(arrow_type), rows)
    )


def repeated(values: Numbers, counts: Numbers, arrow_type: pa.DataType) -> pa.Array:
    """Each value as often as its count says."""
    if (values == values[0]).all():
        return constant(int(values[0]), arrow_type, int(counts.sum()))
    return arrow(np.repeat(values, counts), None, pa.int64()).cast(arrow_type)


def dictionary_encoded(places: pa.Array, labels: Sequence[str]) -> pa.Array:
    """A dictionary-encoded column. The places are not checked: each must be one of a label."""
    return pa.DictionaryArray.from_arrays(places, pa.array(labels, pa.string()), safe=False)


def null_below_zero(column: pa.Array) -> pa.Array:
    """The column with null for what is absent, which completions give as -1."""
    values = plain(column, np.dtype(column.type.to_pandas_dtype()))
    absent = values < 0
    return constant(None, column.type, len(column)) if absent.all() else arrow(values, absent, column.type)


def joined(parts: Sequence[Packed], counts: Sequence[int]) -> Numbers:
    """A number for each row, of parts of so many rows; anything where a part was not given."""
    octets = [
        part if isinstance(part, bytes) else (part or 0).to_bytes(8, sys.byteorder, signed=True) * count
        for part, count in zip(parts, counts, strict=True)
    ]
    return np.frombuffer(b"".join(octets), INT64)


def column_of(parts: Sequence[Packed], counts: Sequence[int], arrow_type: pa.DataType) -> pa.Array:
    """A column of parts of so many rows, null where a part was not given."""
    forms = set(map(type, parts))
    if forms == {type(None)}:
        return constant(None, arrow_type, sum(counts))
    if forms == {int}:
        return repeated(np.array(parts, INT64), np.array(counts, INT64), arrow_type)
    mask = np.repeat([part is None for part in parts], counts) if type(None) in forms else None
    return arrow(joined(parts, counts), mask, pa.int64()).cast(arrow_type)


def entry_at(dictionary: Packed, place: int) -> int:
    """An entry of a packed dictionary."""
    return int(np.frombuffer(dictionary, INT64)[place]) if isinstance(dictionary, bytes) else dictionary or 0


class Places:
    """Distinct values and their places, in the order in which they came first."""

    def __init__(self) -> None:
        self.values: Final[dict[Any, int]] = {}

    def of(self, value: Any) -> int:  # noqa: ANN401
        """The place of a value."""
        return self.values.setdefault(value, len(self.values))


class TableRows:
    """Records of one table, until `take` makes rows of them.

    Columns are only listed by `add`; each is joined and becomes an Arrow array in `take`, so that nothing is done for
    a single row.
    """

    table: str
    operation_columns: tuple[str, ...] = ()
    """Columns with a number for each operation."""
    columns: tuple[str, ...] = ()
    """Columns with a number for each row."""
    labels: Final[dict[str, Sequence[str]]] = {"kind": KIND_LABELS, "outcome": OUTCOME_LABELS, "type": EVENT_LABELS}
    """Columns that are codes, and the label of each code."""

    def __init__(self) -> None:
        self._types: Final = {field.name: field.type for field in SCHEMAS[self.table]}
        self._records: Final[list[Record]] = []
        self._names: Final = Places()
        self._frame_names: Sequence[PartitionName] = ()
        self._own: Numbers = np.array([NAMELESS])
        """Of each name of the frame its place among our own, or NOT_ENTERED; and of NAMELESS."""
        self._name_places: Final[list[Packed]] = []
        self.rows = 0
        """Added and not taken."""

    def add(self, record: Record, names: Sequence[PartitionName]) -> None:
        """What one call adds to the table, with the names of its frame."""
        self._name_places.append(self._own_places(record, names))
        self._records.append(record)
        self.rows += record.rows

    def take(self) -> pa.RecordBatch:
        """All that was added, as rows. There must be some."""
        counts = [record.rows for record in self._records]
        columns = self._call_columns(np.array(counts, INT64))
        self._take_operations(columns)
        for name in self.columns:
            parts = [record.columns.get(name) for record in self._records]
            columns[name] = self._labelled(name, column_of(parts, counts, self._numeric_type(name)))
        columns["topic"], columns["partition"] = self._take_names(counts)
        self._take_extras(columns, counts)
        self._records.clear()
        self._name_places.clear()
        self._names.values.clear()
        self._frame_names = ()  # what was entered of the frame is no longer there
        self.rows = 0
        names = SCHEMAS[self.table].names
        return pa.RecordBatch.from_arrays([columns[name] for name in names], names)

    def _take_extras(self, columns: dict[str, pa.Array], counts: list[int]) -> None:
        """The columns that only this table has."""

    def _numeric_type(self, name: str) -> pa.DataType:
        return pa.int32() if name in self.labels else self._types[name]

    def _labelled(self, name: str, column: pa.Array) -> pa.Array:
        return dictionary_encoded(column, self.labels[name]) if name in self.labels else column

    def _call_columns(self, counts: Numbers) -> dict[str, pa.Array]:
        """The columns that all rows of a call share: those of every table, and the session's, where there is one."""
        run_ids, registrants = Places(), Places()
        runs = np.array([run_ids.of(record.stamp.run_id) for record in self._records], INT64)
        stamps = np.array([record.stamp[1:] for record in self._records], INT64)
        columns = {
            "run_id": dictionary_encoded(repeated(runs, counts, pa.int32()), list(run_ids.values)),
            "call_number": repeated(stamps[:, 0], counts, pa.int64()),
            "time_ms": repeated(stamps[:, 1], counts, pa.int64()),
            "at": repeated(stamps[:, 2], counts, pa.timestamp("ms", tz="UTC")),
        }
        if "session_number" in self._types:
            owners = np.array([registrants.of(record.registrant) for record in self._records], INT64)
            numbers, session_ids, principals = zip(*registrants.values, strict=True)
            columns["session_number"] = repeated(np.array(numbers, INT64)[owners], counts, pa.int64())
            for name, values in (("session_id", session_ids), ("principal", principals)):
                labels = Places()
                own = np.array([labels.of(value) for value in values], INT64)
                columns[name] = dictionary_encoded(repeated(own[owners], counts, pa.int32()), list(labels.values))
        return columns

    def _take_operations(self, columns: dict[str, pa.Array]) -> None:
        """The columns of operations, each repeated for the rows of its operation, and `item`, which counts these."""
        if not self.operation_columns:
            return
        counts = [record.operation_count for record in self._records]
        row_counts = joined(
            [one.operations.get("row_count", one.operations["item_count"]) for one in self._records], counts
        )
        operation_of = None
        if len(row_counts) == self.rows:
            columns["item"] = constant(0, pa.int32(), self.rows)
        else:
            own = np.repeat(np.arange(len(row_counts)), row_counts)
            first_row = np.cumsum(row_counts) - row_counts
            columns["item"] = arrow((np.arange(self.rows) - first_row[own]).astype(np.int32), None, pa.int32())
            operation_of = arrow(own, None, pa.int64())
        for name in self.operation_columns:
            parts = [record.operations.get(name) for record in self._records]
            column = column_of(parts, counts, self._numeric_type(name))
            columns[name] = self._labelled(name, column if operation_of is None else column.take(operation_of))

    # Names.

    def _own_places(self, record: Record, names: Sequence[PartitionName]) -> Packed:
        """Where the names of a record's rows stand among our own, or NAMELESS. Only those that are used are entered."""
        if names is not self._frame_names:
            self._frame_names, self._own = names, np.full(len(names) + 1, NOT_ENTERED, INT64)
            self._own[NAMELESS] = NAMELESS  # the last one
        dictionary, places = record.names, record.places
        if isinstance(places, int):
            place = NAMELESS if places == NAMELESS else entry_at(dictionary, places)
            return int(self._enter(names, np.array([place]))[0])
        if isinstance(dictionary, int):
            if places is None:
                return int(self._enter(names, np.array([dictionary]))[0])
            given = np.frombuffer(places, INT64)
            return self._enter(names, np.where(given < 0, NAMELESS, dictionary)).tobytes()
        entries = np.frombuffer(dictionary or b"", INT64)
        if places is not None:
            entries = np.append(entries, NAMELESS)[np.frombuffer(places, INT64)]
        return self._enter(names, entries).tobytes()

    def _enter(self, names: Sequence[PartitionName], places: Numbers) -> Numbers:
        own = self._own[places]
        if own.min(initial=0) == NOT_ENTERED:
            for place in np.unique(places[own == NOT_ENTERED]).tolist():
                self._own[place] = self._names.of(names[place])
            own = self._own[places]
        return own

    def _take_names(self, counts: list[int]) -> tuple[pa.Array, pa.Array]:
        """The columns `topic` and `partition`; null where rows have no name."""
        places = joined(self._name_places, counts)
        nameless = places == NAMELESS
        mask = nameless if nameless.any() else None
        topics = Places()
        # Rows without a name are at place -1, and the mask hides what they find there.
        topic_of = np.array([*(topics.of(topic) for topic, _ in self._names.values), 0], np.int32)
        partition_of = np.array([*(partition for _, partition in self._names.values), 0], INT64)
        partition_of = partition_of.clip(-INT32_MAX, INT32_MAX).astype(np.int32)
        topic = dictionary_encoded(arrow(topic_of.take(places), mask, pa.int32()), list(topics.values))
        return topic, arrow(partition_of.take(places), mask, pa.int32())


def names_of(level: str) -> list[str]:
    """Columns of registrations that some kinds have."""
    return [column.name for column in COLUMNS_BY_NAME.values() if column.level == level]


class RegistrationRows(TableRows):
    """Rows of `registrations`."""

    table = REGISTRATIONS
    operation_columns = ("operation_id", "timeout_ms", "refusal_code", "item_count", *names_of(OPERATION))
    columns = ("kind", *names_of(ITEM))

    def add_batch(
        self,
        stamp: CallStamp,
        registrant: Registrant,
        kind: int,
        batch: OperationBatch,
        receipt: RegisterReceipt,
        timeout_ms_default: int,
    ) -> None:
        """A batch and what became of it. Operations that were known already make no rows."""
        names: Names = {}
        for record in registration_records(names, stamp, registrant, kind, batch, receipt, timeout_ms_default):
            self.add(record, list(names))


class OutcomeRows(TableRows):
    """Rows of `outcomes`."""

    table = OUTCOMES
    operation_columns = tuple(name for name, _ in OUTCOME_OPERATION_COLUMNS)
    columns = tuple(name for name, _ in OUTCOME_ITEM_COLUMNS if name != "pace_per_second")

    def add_completions(self, stamp: CallStamp, registrant: Registrant, completions: Completions) -> None:
        """What a call ended of one registrant's."""
        names: Names = {}
        self.add(completion_record(names, stamp, registrant, completions), list(names))

    def _take_extras(self, columns: dict[str, pa.Array], counts: list[int]) -> None:
        columns["estimated_remaining_ms"] = null_below_zero(columns["estimated_remaining_ms"])
        paces = [record.columns["pace_per_second"] for record in self._records]
        if set(paces) == {NO_PACE}:
            columns["pace_per_second"] = constant(None, pa.float64(), self.rows)
        else:
            numbers = joined(paces, counts).view(np.float64)
            columns["pace_per_second"] = null_below_zero(arrow(numbers, None, pa.float64()))
        fetched = [part for record in self._records for part in record.extra or ()]
        is_fetch = plain(columns["kind"].indices, INT32) == FETCH
        for place, name in enumerate(FETCH_COLUMNS):
            arrow_type = self._types[name]
            if not fetched:
                columns[name] = constant(None, arrow_type, self.rows)
                continue
            values = np.zeros(self.rows, dtype=arrow_type.to_pandas_dtype())
            values[is_fetch] = [part[place] for part in fetched]
            columns[name] = arrow(values, None if is_fetch.all() else ~is_fetch, arrow_type)


class EventRows(TableRows):
    """Rows of `events`."""

    table = EVENTS
    columns = ("type", "refusal_code", "ended", *(name for name, _ in EVENT_COLUMNS))

    def add_slice(self, stamp: CallStamp, batch: EventBatch, start: int, receipt: EventsReceipt) -> None:
        """The events from `start` to `receipt.next_index`, and what they did."""
        names: Names = {}
        self.add(event_record(names, stamp, batch, start, receipt), list(names))

    def _take_extras(self, columns: dict[str, pa.Array], counts: list[int]) -> None:
        starts = np.cumsum(counts) - counts
        columns["row"] = arrow((np.arange(self.rows) - np.repeat(starts, counts)).astype(np.int32), None, pa.int32())
        has_sets = any(record.extra for record in self._records)
        for place, name in enumerate(REPLICA_COLUMNS):
            if not has_sets:
                columns[name] = constant(None, self._types[name], self.rows)
                continue
            values: list[Any] = []
            for record in self._records:
                values += [sets and sets[place] for sets in record.extra or [None] * record.rows]
            columns[name] = pa.array(values, self._types[name])


class SingleRows:
    """Rows that come one by one: calls or markers."""

    def __init__(self, table: str) -> None:
        self._schema: Final = SCHEMAS[table]
        self._rows: Final[list[Row]] = []

    @property
    def rows(self) -> int:
        """Added and not taken."""
        return len(self._rows)

    def add(self, record: Record, names: Sequence[PartitionName] = ()) -> None:
        """The row of a record."""
        del names
        self.add_row(record.stamp, record.extra)

    def add_row(self, stamp: CallStamp, values: Row) -> None:
        """One row: of `call_values` or `marker_values`."""
        run_id, call_number, time_ms, at_ms = stamp
        self._rows.append({"run_id": run_id, "call_number": call_number, "time_ms": time_ms, "at": at_ms} | values)

    def take(self) -> pa.RecordBatch:
        """All that was added. There must be some."""
        columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema]
        self._rows.clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


NEW_ROWS: Final[dict[str, Callable[[], TableRows | SingleRows]]] = {
    REGISTRATIONS: RegistrationRows,
    OUTCOMES: OutcomeRows,
    EVENTS: EventRows,
    CALLS: functools.partial(SingleRows, CALLS),
    MARKERS: functools.partial(SingleRows, MARKERS),
}


def new_table_rows(table: str) -> TableRows | SingleRows:
    """An empty collector of a table's records."""
    return NEW_ROWS[table]()
