"""Feeds an archive's calls to a new engine, in order and at their times, and collects the outcomes.

Written from the archive's schema (purgatory.extensions.archive.schema) with lists and loops, one row at a time.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.engine import calls, codes
from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, ReplicaSets
from purgatory.engine.calls import (
    Apply,
    Cancel,
    CancelAll,
    CancelName,
    Extend,
    FailStale,
    PassTime,
    Pause,
    Register,
    ShutDown,
)
from purgatory.engine.engine import Engine
from purgatory.engine.kinds.operation_columns import OPERATION, columns_of
from purgatory.engine.waiting.tables import Owner
from purgatory.extensions.archive import schema
from purgatory.extensions.archive.records import REPLICA_COLUMNS, Names, completion_records
from purgatory.extensions.archive.rows import make_rows
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.vocabulary import CallStamp, Registrant

Row = dict[str, Any]

CALL_OF = {name: call for call, name in schema.CALL_NAMES.items()}
KIND_OF = {name: kind for kind, name in codes.KIND_NAMES.items()}
EVENT_OF = {name: event_type for event_type, name in codes.EVENT_NAMES.items()}


def read_table(folder: Path, table: str) -> pa.Table:
    paths = sorted((folder / table).rglob("*.parquet"))
    tables = [pq.ParquetFile(path).read() for path in paths]
    whole = pa.concat_tables(tables) if tables else schema.SCHEMAS[table].empty_table()
    assert [(field.name, field.type) for field in whole.schema] == [
        (field.name, field.type) for field in schema.SCHEMAS[table]
    ]
    return whole


def rows_of(folder: Path, table: str) -> list[Row]:
    """The rows as dictionaries. Calls are in order within a file, and files in the order of their names."""
    rows: list[Row] = read_table(folder, table).to_pylist()
    return sorted(rows, key=lambda row: (row["run_id"], row["call_number"]))


def without(rows: Iterable[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


class Replay:
    """One run replayed on a new engine; `outcomes` are the rows of the operations that ended."""

    def __init__(self, folder: Path) -> None:
        self.outcomes: list[Row] = []
        started = next(row for row in rows_of(folder, schema.MARKERS) if row["marker"] == schema.STARTED)
        self._details = RunDetails.from_json(started["detail"])
        self._engine: Engine = self._details.make_engine(started["time_ms"])
        self._owners: dict[int, Owner] = {}
        self._registrants: dict[int, Registrant] = {}
        # Clock calls have no rows of their own, only outcomes, which are sorted after other rows of the same call.
        tables = (schema.REGISTRATIONS, schema.EVENTS, schema.CALLS, schema.OUTCOMES)
        rows = [row | {"table": table} for table in tables for row in rows_of(folder, table)]
        rows.sort(key=lambda row: row["call_number"])
        for _, call in itertools.groupby(rows, key=lambda row: row["call_number"]):
            self._replay(list(call))

    def _replay(self, rows: list[Row]) -> None:
        first = rows[0]
        now_ms = first["time_ms"]
        cause = [row for row in rows if row["table"] == first["table"]]
        if first["table"] == schema.REGISTRATIONS:
            self._register(cause, now_ms)
        elif first["table"] == schema.EVENTS:
            self._engine.perform(None, Apply(events_of(cause)), now_ms, 10**9)
        elif first["table"] == schema.CALLS:
            self._call(first, now_ms, {(row["topic"], row["partition"]) for row in cause})
        else:
            expired = {(row["session_number"], row["operation_id"]) for row in rows}
            self._engine.perform(None, PassTime(len(expired)), now_ms)
        stamp = CallStamp(first["run_id"], first["call_number"], now_ms, 0)
        for completions in self._engine.take_completions():
            number = next(n for n, owner in self._owners.items() if owner.owner_id == completions.owner_id)
            names: Names = {}
            ended = completion_records(names, stamp, self._registrants[number], completions)
            self.outcomes += make_rows(schema.OUTCOMES, ended, list(names)).to_pylist()

    def _register(self, rows: list[Row], now_ms: int) -> None:
        first = rows[0]
        number = first["session_number"]
        self._registrants[number] = Registrant(number, first["session_id"], first["principal"])
        owner = self._owner(first)
        accepted = [row for row in rows if row["refusal_code"] == schema.ACCEPTED]
        if accepted:
            batch = operations_of(accepted)
            receipt = self._engine.perform(owner, Register(KIND_OF[first["kind"]], batch), now_ms)
            assert receipt.accepted == len(batch.operation_ids), [refusal.message for refusal in receipt.refusals]

    def _call(self, row: Row, now_ms: int, names: set[PartitionName]) -> None:
        ended = repeat_call(self._engine, lambda: self._owner(row), row, names, now_ms)
        assert ended == row["ended"], f"{row}: {ended} ended"

    def _owner(self, row: Row) -> Owner:
        number = row["session_number"]
        if number not in self._owners:
            self._owners[number] = self._engine.add_owner()
        return self._owners[number]


def repeat_call(
    engine: Engine, owner: Callable[[], Owner], row: Row, names: set[PartitionName], now_ms: int, limit: int = 0
) -> int:
    """Make the call of a row of `calls`; returns how many operations it ended.

    `names` are the stale marks of a call that has several rows. `limit`: how many operations a shutdown may end, if not
    as many as recorded.
    """
    match CALL_OF[row["call"]]:
        case calls.Cancel:
            return engine.perform(owner(), Cancel(row["operation_ids"]), now_ms).ended
        case calls.CancelAll:
            return engine.perform(owner(), CancelAll(), now_ms).ended
        case calls.CancelName:
            return engine.perform(None, CancelName((row["topic"], row["partition"])), now_ms).ended
        case calls.Extend:
            engine.perform(owner(), Extend(row["operation_ids"], row["timeout_ms"]), now_ms)
            return 0
        case calls.Pause:
            engine.perform(None, Pause(row["timeout_ms"]), now_ms)
            return 0
        case calls.FailStale:
            return engine.perform(owner(), FailStale(row["operation_ids"], names), now_ms).ended
        case call:
            assert call is ShutDown, call
            return engine.perform(None, ShutDown(limit or row["ended"]), now_ms).ended


def operations_of(rows: list[Row]) -> OperationBatch:
    """A batch made of the rows of its operations, with every value given explicitly."""
    heads = [row for row in rows if row["item"] == 0]
    given = {(row["topic"], row["partition"]) for row in rows}
    partitions = sorted(name for name in given if name[1] != schema.NO_PARTITION)
    keys = sorted(key for key, partition in given if partition == schema.NO_PARTITION)
    names: list[PartitionName] = [*partitions, *((key, schema.NO_PARTITION) for key in keys)]
    places = [names.index((row["topic"], row["partition"])) for row in rows]
    kind = KIND_OF[rows[0]["kind"]]

    def column(of: list[Row], name: str, default: Any) -> list[Any]:  # noqa: ANN401 - any column
        return [default if row[name] is None else row[name] for row in of]

    details = {
        of.batch_name: column(heads if of.level == OPERATION else rows, of.name, of.default) for of in columns_of(kind)
    }
    return OperationBatch(
        column(heads, "operation_id", None),
        partitions=partitions,
        keys=keys,
        timeouts_ms=column(heads, "timeout_ms", None),
        item_counts=column(heads, "item_count", None),
        item_indexes=places,
        **details,
    )


def events_of(rows: list[Row]) -> EventBatch:
    rows = [row for row in rows if row["refusal_code"] == schema.ACCEPTED]
    names = [(row["topic"], row["partition"]) for row in rows]

    def column(name: str, default: int) -> list[int]:
        return [default if row[name] is None else row[name] for row in rows]

    return EventBatch(
        [EVENT_OF[row["type"]] for row in rows],
        partitions=names,
        keys=[topic for topic, _ in names],
        item_indexes=list(range(len(rows))),
        offsets=column("offset", -1),
        leader_epochs=column("leader_epoch", -1),
        replica_ids=column("replica_id", -1),
        byte_positions=column("byte_position", -1),
        segment_base_offsets=column("segment_base_offset", -1),
        log_start_offsets=column("log_start_offset", -1),
        flags=column("flags", 0),
        replica_sets=[
            None if row["leader_id"] is None else ReplicaSets(**{name: row[name] for name in REPLICA_COLUMNS})
            for row in rows
        ],
    )
