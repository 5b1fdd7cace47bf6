"""The results of one session, as they come: received by a thread, held until they are acknowledged."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

import grpc
import pyarrow as pa

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_pipeline.datasource.daemon_options import DaemonOptions
from purgatory_pipeline.datasource.result_rows import RESULT_ROWS, rows_of
from purgatory_pipeline.errors import PipelineError

CALL_S: Final = 30.0
RETRY_S: Final = 0.5
WAIT_S: Final = 120.0
"""For results that Spark has had before; they are there unless the daemon has lost the session."""
HOPELESS: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
AHEAD: Final = 2
"""Micro-batches that are held; more stay with the daemon."""


class ResultsLost(PipelineError):
    """The daemon's results do not follow on from those that Spark has had: the session is lost, or another's."""


class SessionResults:
    """Holds the stream of a session, for one reader. `after`: the sequence number that Spark has committed.

    A daemon without a journal that was restarted numbers anew. That is seen as long as it has given out fewer results
    than Spark has had; later the wire cannot tell.
    """

    def __init__(self, options: DaemonOptions, session: str, after: int) -> None:
        self._options: Final = options
        self._session: Final = session
        self._acknowledged = after
        self._newest = after
        self._wanted = after
        """Spark has asked for what lies below, however much that is."""
        self._held: list[pa.Table] = []
        self._failure: PipelineError | None = None
        self._changed: Final = threading.Condition()
        self._ended: Final = threading.Event()
        self._connection = options.connect()
        self._thread: Final = threading.Thread(target=self._run, name=f"results of {session}", daemon=True)
        self._thread.start()

    @property
    def newest(self) -> int:
        """The highest sequence number that is here. Raises what has ended the stream for good."""
        with self._changed:
            self._raise_failure()
            return self._newest

    def first_after(self, sequence: int) -> int:
        """The lowest sequence number here that is above this one."""
        with self._changed:
            firsts = [int(table.column("sequence")[0].as_py()) for table in self._held]
            return max(min(firsts, default=sequence + 1), sequence + 1)

    def rows(self, after: int, up_to: int) -> pa.Table:
        """The results from one sequence number (exclusive) to another. Waits for those that are not here yet."""
        with self._changed:
            self._wanted = up_to
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._newest >= up_to or self._failure is not None, WAIT_S):
                raise ResultsLost(f"session {self._session}: result {up_to} does not come from {self._options.address}")
            if self._newest < up_to:
                self._raise_failure()
            rows = pa.concat_tables([RESULT_ROWS.empty_table(), *self._held])
        sequence = rows.column("sequence").to_numpy()
        return rows.filter(pa.array((sequence > after) & (sequence <= up_to)))

    def acknowledge(self, sequence: int) -> None:
        """Spark has committed everything up to here. The daemon may forget it, and so do we."""
        with self._changed:
            if sequence <= self._acknowledged:
                return
            self._acknowledged = sequence
            self._held = [table for table in self._held if table.column("sequence")[-1].as_py() > sequence]
            self._changed.notify_all()
        request = wire.AcknowledgeRequest(session_id=self._session, sequence=sequence)
        with contextlib.suppress(grpc.RpcError):  # the next opening of the stream says it again
            self._connection.stub.Acknowledge(request, timeout=CALL_S, metadata=self._connection.metadata)

    def close(self) -> None:
        """Ends the stream."""
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

    def _run(self) -> None:
        while not self._ended.is_set() and self._failure is None:
            try:
                self._receive()
            except PipelineError as error:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
            except grpc.RpcError as error:
                if error.code() in HOPELESS:
                    with self._changed:
                        self._failure = ResultsLost(f"session {self._session}: {error.details()}")
                        self._changed.notify_all()
            except Exception as error:
                if self._ended.is_set():  # the channel was closed
                    return
                with self._changed:
                    self._failure = ResultsLost(f"session {self._session}: {error!r}")
                    self._changed.notify_all()
                raise
            time.sleep(RETRY_S)

    def _receive(self) -> None:
        after = self._acknowledged
        request = wire.StreamResultsRequest(session_id=self._session, last_sequence=after, columns=True)
        # The daemon begins with what is not acknowledged. Where nothing was, that may be any number.
        due = after + 1 if after else 0
        for answer in self._connection.stub.StreamResults(request, metadata=self._connection.metadata):
            if answer.HasField("going_away"):
                if answer.going_away.reason == wire.GoingAway.REASON_TAKEN_OVER:
                    raise ResultsLost(f"session {self._session}: another reader has opened it")
                return
            if answer.HasField("results"):
                due = self._take(answer.results, due)

    def _take(self, batch: wire.ResultBatch, due: int) -> int:
        """Takes a message, which begins with the number that is due. Returns the number after it."""
        first = batch.first_sequence
        if due and first != due:
            raise ResultsLost(
                f"session {self._session}: result {due} was to come next, not {first}: the daemon has lost the "
                "session; begin anew with another checkpoint"
            )
        rows = rows_of(self._session, first, batch.columns)
        after = int(first + rows.num_rows)
        with self._changed:
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
