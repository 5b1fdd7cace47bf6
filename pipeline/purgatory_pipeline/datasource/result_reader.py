"""Results as a stream of Spark, exactly once.

Spark's planner process holds each session's stream and gives the rows to tasks: only one stream of a session may be
open at a time, so tasks cannot fetch for themselves. What a committed batch has had is acknowledged; the rest the
daemon keeps, and sends again to whoever comes after a kill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from purgatory_pipeline.datasource.daemon_options import SESSION, DaemonOptionInvalid, DaemonOptions
from purgatory_pipeline.datasource.session_results import SessionResults
from purgatory_pipeline.stream.shard.shard_bytes import table_bytes


@dataclass
class ResultPart(InputPartition):
    """The rows of one session in a micro-batch, as an Arrow stream."""

    octets: bytes


class ResultReader(DataSourceStreamReader):
    """Offsets are the sequence number of each session: `{"nightly": 12}`."""

    def __init__(self, options: DaemonOptions) -> None:
        if not options.sessions:
            raise DaemonOptionInvalid(f'say which results to read: .option("{SESSION}", NAMES)')
        self._options: Final = options
        self._sessions: dict[str, SessionResults] = {}
        """In the planner process only."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_sessions": {}}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Before all results."""
        return dict.fromkeys(self._options.sessions, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """So many results of all sessions."""
        return ReadMaxRows(self._options.rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The newest results that fit a micro-batch.

        What lies before `start` is committed. `commit` says so too, but only once the next batch has rows: the last
        results before a pause would never be acknowledged.
        """
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_max
        end: dict[str, int] = {}
        for name in self._options.sessions:
            after = start.get(name, 0)
            session = self._session(name, after)
            session.acknowledge(after)
            end[name] = after
            newest = session.newest
            if newest > after:
                first = session.first_after(after)
                end[name] = min(newest, first - 1 + rows_max)
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """A task for each session that has something."""
        parts = []
        for name, last in end.items():
            after = start.get(name, 0)
            if last > after:
                parts.append(ResultPart(table_bytes(self._session(name, after).rows(after, last))))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, ResultPart), f"not a part of ours: {partition!r}"
        yield from pa.ipc.open_stream(partition.octets).read_all().to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Everything up to here has been written by the sink."""
        for name, last in end.items():
            if name in self._sessions:
                self._sessions[name].acknowledge(last)

    def stop(self) -> None:
        """The query has ended."""
        for session in self._sessions.values():
            session.close()
        self._sessions = {}

    def _session(self, name: str, after: int) -> SessionResults:
        if name not in self._sessions:
            self._sessions[name] = SessionResults(self._options, name, after)
        return self._sessions[name]
