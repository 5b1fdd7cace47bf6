"""Reads results as a stream, exactly once.

Only one stream of a session can be open at a time, so tasks cannot fetch results themselves: Spark's planner process
receives them and hands the rows to tasks. Results of committed micro-batches are acknowledged. The daemon keeps all
others, and sends them again after a kill.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from purgatory_pipeline.datasource.daemon_options import SESSION, DaemonOptions
from purgatory_pipeline.datasource.session_results import BEGINNING, SessionOffset, SessionResults, sequence_in
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.stream.shard_state import table_bytes

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
