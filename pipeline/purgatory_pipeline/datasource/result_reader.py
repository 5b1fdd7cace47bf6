"""Reads results as a stream, exactly once.

Only one stream of a session can be open at a time, so tasks cannot fetch results themselves: Spark's planner process
receives them in a thread, holds them as Arrow rows, and hands these to tasks. Results of committed micro-batches are
acknowledged. The daemon keeps all others, and sends them again after a kill.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import grpc
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from purgatory.engine.codes import KIND_NAMES
from purgatory.engine.completions import FETCHED_COLUMNS, OPTIONAL_COLUMNS, RESULT_COLUMNS
from purgatory.extensions.archive.schema import OUTCOME_LABELS, RESULT_ITEM
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import result_pb2
from purgatory_pipeline.datasource.daemon_options import SESSION, DaemonConnection, DaemonOptions
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream.outcome_rows import words
from purgatory_pipeline.stream.shard_state import table_bytes

NUMBERS: Final = [
    one.name for one in RESULT_COLUMNS if one.name not in ("operation_id", "kind", "outcome", "item_count")
]
RESULT_ROWS: Final = pa.schema(
    [
        ("session", pa.string()),
        ("incarnation", pa.string()),  # of the session; sequence numbers are unique within it
        ("sequence", pa.int64()),
        ("operation_id", pa.int64()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        *((name, pa.int64()) for name in NUMBERS),
        ("items", pa.list_(RESULT_ITEM)),
        ("refusal", pa.string()),
    ]
)
"""The columns of a stream of results."""

_FETCHED: Final = frozenset(column.name for column in FETCHED_COLUMNS)


def rows_of(session: str, incarnation: str, first_sequence: int, columns: result_pb2.ResultColumns) -> pa.Table:
    count = len(columns.operation_id)
    outcomes = _values(columns.outcome, count, np.int64)
    item_counts = _values(columns.item_count or [1], count, np.int64)
    refusals: list[str | None] = [None] * count
    for place, refusal in zip(
        np.flatnonzero(outcomes == result_pb2.OUTCOME_REFUSED).tolist(), columns.refusals, strict=True
    ):
        refusals[place] = f"{refusal.field}: {refusal.message}"
    starts = pa.array(np.concatenate([[0], np.cumsum(item_counts)]), pa.int32())
    return pa.table(
        {
            "session": pa.repeat(pa.scalar(session), count),
            "incarnation": pa.repeat(pa.scalar(incarnation), count),
            "sequence": np.arange(first_sequence, first_sequence + count),
            "operation_id": np.array(columns.operation_id, np.uint64).astype(np.int64),
            "kind": pa.repeat(pa.scalar(KIND_NAMES.get(columns.kind), pa.string()), count),
            "outcome": words(outcomes, OUTCOME_LABELS),
            **{name: _values(getattr(columns, name), count, np.int64) for name in NUMBERS},
            "items": pa.ListArray.from_arrays(starts, _items(columns, int(item_counts.sum()))),
            "refusal": pa.array(refusals, pa.string()),
        },
        schema=RESULT_ROWS,
    )


def _items(columns: result_pb2.ResultColumns, count: int) -> pa.StructArray:
    names = [*(name.topic for name in columns.partitions), *columns.keys]
    numbers = [*(name.partition for name in columns.partitions), *[None] * len(columns.keys)]
    places = pa.array(_values(columns.item_index, count, np.int32))
    arrays: dict[str, Any] = {
        "topic": pa.array(names, pa.string()).take(places) if names else pa.nulls(count, pa.string()),
        "partition": pa.array(numbers, pa.int32()).take(places) if names else pa.nulls(count, pa.int32()),
    }
    for field in RESULT_ITEM:
        if field.name in arrays:
            continue
        given = getattr(columns, field.name)
        if field.name in _FETCHED and not given:
            arrays[field.name] = pa.nulls(count, field.type)
            continue
        values = _values(given, count, field.type.to_pandas_dtype())
        arrays[field.name] = pa.array(values, field.type, mask=values < 0 if field.name in OPTIONAL_COLUMNS else None)
    return pa.StructArray.from_arrays([arrays[field.name] for field in RESULT_ITEM], fields=list(RESULT_ITEM))


def _values(given: Any, count: int, kind: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - a packed column, numpy's types
    """A column of the wire. It may be empty (all zeros), or have one value for all rows."""
    if len(given) == count:
        return np.array(given, kind)
    return np.full(count, given[0] if given else 0, kind)


CALL_S: Final = 30.0
RETRY_S: Final = 0.5
WAIT_S: Final = 120.0
"""For results that the daemon has, and for its first answer."""
HOPELESS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
AHEAD: Final = 2
"""Micro-batches that are held; more stay with the daemon."""


class SessionOffset(TypedDict):
    """The last result that was read from a session. Sequence numbers of different incarnations are unrelated."""

    incarnation: str
    sequence: int


BEGINNING: Final = SessionOffset(incarnation="", sequence=0)


def sequence_in(offset: SessionOffset, incarnation: str) -> int:
    return offset["sequence"] if offset["incarnation"] == incarnation else 0


class SessionResults:
    """Reads the incarnation of the last committed offset (`BEGINNING`: the present one, from its first unacknowledged
    result) of a session, for one reader.
    """

    def __init__(self, options: DaemonOptions, session: str, since: SessionOffset) -> None:
        self._options: Final = options
        self._session: Final = session
        self.incarnation = since["incarnation"]
        """Empty until the stream is open, if it was not given."""
        self.is_replaced = False
        """The session was created again; results that are held can still be read."""
        self.first = 0
        """The sequence number of the first result that was received."""
        self._acknowledged = since["sequence"]
        self._newest = since["sequence"]
        self._at_opening = math.inf
        """The highest sequence number that the daemon had when the stream was first opened."""
        self._wanted = since["sequence"]
        """Results up to here are received, whatever is held."""
        self._held: list[pa.Table] = []
        self._failure: PipelineError | None = None
        self._last_error = ""
        self._changed: Final = threading.Condition()
        self._ended: Final = threading.Event()
        self._connection: Final = DaemonConnection(options)
        self._thread: Final = threading.Thread(target=self._run, name=f"results of {session}", daemon=True)
        self._thread.start()

    @property
    def newest(self) -> int:
        """The highest sequence number that is here. Raises what has ended the stream for good."""
        with self._changed:
            self._raise_failure()
            return self._newest

    def newest_at_opening(self) -> int:
        """The highest sequence number that the daemon had when the stream was first opened; of a session that was
        replaced, the highest that is here. Waits until the stream is open, and its first result is here.
        """
        with self._changed:
            self._wait(
                lambda: self.is_replaced or self._newest >= min(self._at_opening, self._acknowledged + 1), "not opened"
            )
            return self._newest if self.is_replaced else int(self._at_opening)

    def rows(self, after: int, last: SessionOffset) -> pa.Table:
        """The results from a sequence number (exclusive) to an offset. Waits until they are here."""
        up_to = last["sequence"]
        with self._changed:
            self._wanted = up_to
            self._changed.notify_all()
            self._wait(lambda: self._newest >= up_to or self.is_replaced, f"result {up_to} not received")
            if self._newest < up_to or self.incarnation != last["incarnation"]:
                raise PipelineError(
                    f"session {self._session}: results {after + 1} to {up_to} of a micro-batch that is not committed "
                    f"are lost: incarnation {last['incarnation']} of the session is gone; start the query with another "
                    "checkpoint"
                )
            rows = pa.concat_tables(self._held)
        sequence = rows.column("sequence").to_numpy()
        return rows.filter(pa.array((sequence > after) & (sequence <= up_to)))

    def acknowledge(self, offset: SessionOffset) -> None:
        """Spark has committed everything up to here, so neither the daemon nor this object keeps it."""
        sequence = sequence_in(offset, self.incarnation)
        with self._changed:
            if sequence <= self._acknowledged:
                return
            self._acknowledged = sequence
            self._held = [table for table in self._held if table.column("sequence")[-1].as_py() > sequence]
            self._changed.notify_all()
        request = wire.AcknowledgeRequest(session_id=self._session, sequence=sequence, incarnation=self.incarnation)
        with contextlib.suppress(grpc.RpcError):  # the next opening of the stream acknowledges it too
            self._connection.stub.Acknowledge(request, timeout=CALL_S, metadata=self._connection.metadata)

    def close(self) -> None:
        with self._changed:
            self._ended.set()
            self._changed.notify_all()
        self._connection.close()
        self._thread.join(CALL_S)

    @property
    def _held_rows(self) -> int:
        return sum(table.num_rows for table in self._held)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait(self, reached: Callable[[], bool], missing: str) -> None:
        self._changed.wait_for(lambda: reached() or self._failure is not None, WAIT_S)
        if not reached():
            self._raise_failure()
            where = f"session {self._session} at {self._options.address}"
            raise PipelineError(f"{where}: {missing} within {WAIT_S:.0f} s{self._last_error}")

    def _fail(self, failure: PipelineError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._ended.is_set() and self._failure is None and not self.is_replaced:
            try:
                self._receive()
            except PipelineError as error:
                self._fail(error)
            except grpc.RpcError as error:
                self._last_error = f" ({error.code().name}: {error.details()})"
                if error.code() in HOPELESS:
                    self._fail(PipelineError(f"session {self._session}: {error.details()}"))
            except Exception as error:
                if self._ended.is_set():  # the channel was closed
                    return
                self._fail(PipelineError(f"session {self._session}: {error!r}"))
                raise
            self._ended.wait(RETRY_S)

    def _receive(self) -> None:
        after = self._acknowledged
        request = wire.StreamResultsRequest(
            session_id=self._session, last_sequence=after, columns=True, incarnation=self.incarnation
        )
        # The daemon begins with the first unacknowledged result. If we have acknowledged none, that can be any number.
        due = after + 1 if after else 0
        for answer in self._connection.stub.StreamResults(request, metadata=self._connection.metadata):
            if answer.HasField("opened") and not self._is_open(answer.opened):
                return
            if answer.HasField("going_away"):
                if answer.going_away.reason == wire.GoingAway.REASON_TAKEN_OVER:
                    raise PipelineError(f"session {self._session}: another reader has opened it")
                return
            if answer.HasField("results"):
                due = self._accept(answer.results, due)

    def _is_open(self, opened: wire.SessionOpened) -> bool:
        """Whether the session still has the incarnation that is read here."""
        with self._changed:
            self.is_replaced = self.incarnation not in ("", opened.incarnation)
            if not self.is_replaced:
                self.incarnation = opened.incarnation
                self._at_opening = min(self._at_opening, opened.newest_sequence)
            self._changed.notify_all()
            return not self.is_replaced

    def _accept(self, batch: wire.ResultBatch, due: int) -> int:
        """Accepts a message, which begins with the number that is due. Returns the number after it."""
        first = batch.first_sequence
        if due and first != due:
            raise PipelineError(
                f"session {self._session}: the next result is {first}, not {due}: another reader has acknowledged "
                "the results in between; start the query with another checkpoint"
            )
        rows = rows_of(self._session, self.incarnation, first, batch.columns)
        after = int(first + rows.num_rows)
        with self._changed:
            self.first = self.first or first
            fresh = rows.slice(max(self._newest + 1 - first, 0)) if self._newest else rows
            if fresh.num_rows:
                self._held.append(fresh)
                self._newest = after - 1
                self._changed.notify_all()
            limit = AHEAD * self._options.rows_max
            self._changed.wait_for(
                lambda: self._ended.is_set() or self._held_rows < limit or self._newest < self._wanted
            )
        return after


Offsets = dict[str, SessionOffset]


@dataclass
class ResultPart(InputPartition):
    """The rows of one session in a micro-batch, as an Arrow stream."""

    octets: bytes


class ResultReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset has the last result of each session: `{"nightly": {"incarnation": "5e0c", "sequence": 12}}`.

    If a session was created again, its sequence numbers start over. Results of the old incarnation that were received
    are read first, then the new incarnation from its beginning.
    """

    def __init__(self, options: DaemonOptions) -> None:
        if not options.sessions:
            raise PipelineError(f'choose the results to read: .option("{SESSION}", NAMES)')
        self._options: Final = options
        self._sessions: Final[dict[str, SessionResults]] = {}
        """In the planner process only."""
        self._ends_with_present = False
        """Results that arrive after the sessions were opened are left to the next query."""

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        return dict.fromkeys(self._options.sessions, BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """The query ends once it has read the results that the daemon has now."""
        self._ends_with_present = True

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """The newest results that fit a micro-batch.

        Results up to `start` are committed, so they are acknowledged here: Spark calls `commit` only once the next
        micro-batch has rows, so the last results before a pause would not be acknowledged.
        """
        return {name: self._end(name, start.get(name, BEGINNING), limit) for name in self._options.sessions}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        parts = []
        for name, last in end.items():
            after = sequence_in(start.get(name, BEGINNING), last["incarnation"])
            if last["sequence"] > after:
                since = SessionOffset(incarnation=last["incarnation"], sequence=after)
                parts.append(ResultPart(table_bytes(self._session(name, since).rows(after, last))))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ResultPart), f"not a part of ours: {partition!r}"
        yield from pa.ipc.open_stream(partition.octets).read_all().to_batches()

    def commit(self, end: Offsets) -> None:
        for name, last in end.items():
            if name in self._sessions:
                self._sessions[name].acknowledge(last)

    def stop(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _end(self, name: str, start: SessionOffset, limit: ReadLimit) -> SessionOffset:
        """Where a micro-batch ends in a session: at `start`, if nothing has arrived."""
        takes_all = isinstance(limit, ReadAllAvailable)
        waits = takes_all or self._ends_with_present
        session = self._session(name, start)
        session.acknowledge(start)
        newest = session.newest_at_opening() if waits else session.newest
        if session.is_replaced and newest <= sequence_in(start, session.incarnation):
            self._sessions.pop(name).close()
            session = self._session(name, BEGINNING)
            newest = session.newest_at_opening() if waits else session.newest
        after = sequence_in(start, session.incarnation)
        if newest <= after:
            return start
        if not takes_all:
            newest = min(newest, max(after, session.first - 1) + self._options.rows_max)
        return SessionOffset(incarnation=session.incarnation, sequence=newest)

    def _session(self, name: str, since: SessionOffset) -> SessionResults:
        if name not in self._sessions:
            self._sessions[name] = SessionResults(self._options, name, since)
        return self._sessions[name]
