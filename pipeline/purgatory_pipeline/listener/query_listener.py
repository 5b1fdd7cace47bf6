"""`PurgatoryListener` publishes the committed offsets of Spark's streaming queries to daemons."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from purgatory_client import AsyncClient
from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.publisher.mark_lineage import LineageStore
from purgatory_connectors.publisher.observation import End, Observation, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from purgatory_pipeline.location import open_location
from purgatory_pipeline.spark.spark_session import OBSERVED_MARKS, root_cause

SEQUENCE: Final = "sequence"
"""Field of an offset of the format `purgatory`: the last result read from a session."""
NO_OFFSET: Final = "-"
"""Entry of the log for a source without any data yet."""

Marks = dict[tuple[str, int], int]
"""Marks by topic (without the query's prefix) and partition."""


def marks_of(ends: Sequence[str | None]) -> Marks:
    """The marks of a query, from the end offset of each of its sources, in order.

    Kafka partitions keep their names; if two sources read the same partition, the lower offset counts. Any other source
    at index N is the topic `sourceN`, partition 0.

    A mark is always exclusive, as Kafka's are: at 43, everything up to record 42 is committed.
    """
    marks: Marks = {}
    for place, end_offset in enumerate(ends):
        for name, mark in _marks_of_source(place, end_offset).items():
            marks[name] = min(mark, marks.get(name, mark))
    return marks


def _marks_of_source(place: int, end_offset: str | None) -> Marks:
    if end_offset is None or end_offset == NO_OFFSET:
        return {}
    end = json.loads(end_offset)
    whole = (f"source{place}", 0)
    if isinstance(end, int):
        return {whole: end}
    if not isinstance(end, dict):
        return {}
    if "logOffset" in end:  # files: the number of the last set of files that was taken, itself included
        return {whole: int(end["logOffset"]) + 1}
    if all(isinstance(partitions, Mapping) and SEQUENCE not in partitions for partitions in end.values()):
        return {
            (topic, int(partition)): offset
            for topic, partitions in end.items()
            for partition, offset in partitions.items()
            if isinstance(offset, int) and offset >= 0
        }
    parts = [value.get(SEQUENCE) if isinstance(value, Mapping) else value for value in end.values()]
    numbers = [value for value in parts if isinstance(value, int)]
    return {whole: numbers[0]} if len(numbers) == 1 else {}


def committed_marks(checkpoint: str) -> Marks:
    """The marks of the last commit in a checkpoint. Empty if there is no commit or it cannot be read (logged).

    This is needed because a restarted query without new input sends no progress event.
    """
    place = open_location(checkpoint)
    try:
        last = place.child("commits").last_number()
        return {} if last is None else marks_of(ends_of_log(place.child(f"offsets/{last}").read().decode()))
    except (OSError, ValueError, pa.ArrowException) as error:
        _logger.warning(
            "cannot read the checkpoint %s: %s; its marks will be published after the next batch", checkpoint, error
        )
        return {}


def ends_of_log(text: str) -> list[str | None]:
    """The end offsets in an entry of a checkpoint's `offsets`: a version, metadata, and a line for each source."""
    version, _, *lines = text.splitlines()
    if version.strip() == "v1":
        return [None if line == NO_OFFSET else line for line in lines]
    found: list[Any] = [json.loads(line) for line in lines if line != NO_OFFSET]
    return [json.dumps(end) for end in found]


PREFIX: Final = "spark"


class QuerySource(Source):
    """Publishes the committed marks of a query. All methods must be called on the publisher's loop."""

    def __init__(self, query: str) -> None:
        self.query: Final = query
        self.name = f"{PREFIX}://{query}"
        self.topic_prefixes = (f"{PREFIX}/{query}/",)
        self._identity = ""
        self._news: Final = asyncio.Event()
        self._marks: Marks = {}
        self._stopped = ""
        self._is_running = False

    def is_of(self, identity: str) -> None:
        """Set the query id. It is stored in the checkpoint; a new checkpoint has a new id and a new lineage."""
        if identity != self._identity:
            self._identity, self._marks = identity, {}
            self._is_running, self._stopped = False, ""

    def started(self, identity: str) -> None:
        self.is_of(identity)
        self._stopped = ""
        self._news.set()

    def had_committed(self, marks: Marks, identity: str) -> None:
        """Add marks from a checkpoint, which was read in the background. They are ignored if the name now belongs to
        another query, or the query has stopped.
        """
        if marks and identity == self._identity and not self._stopped:
            self.committed(marks)

    def committed(self, marks: Marks) -> None:
        for name, mark in marks.items():
            self._marks[name] = max(mark, self._marks.get(name, mark))
        self._is_running, self._stopped = True, ""
        self._news.set()

    def stopped(self, reason: str) -> None:
        """The query stopped; its marks are stale until it resumes."""
        self._stopped = reason
        self._news.set()

    async def run(self, publisher: Publisher) -> None:
        while True:
            prefix = self.topic_prefixes[0]
            publisher.observe(
                [
                    Observation(prefix + topic, partition, mark, self._identity)
                    for (topic, partition), mark in self._marks.items()
                ]
            )
            if self._stopped:
                publisher.report(SourceState.STALE, self._stopped)
            elif self._is_running:
                publisher.report(SourceState.LIVE)
            else:
                publisher.report(SourceState.LOADING, "nothing committed yet")
            await self._news.wait()
            self._news.clear()

    async def ends(self, names: Sequence[str]) -> list[End]:
        """Not supported: Spark reports the end of its inputs only with the batches that read them."""
        raise SourceStale(
            f"{self.name} does not know the ends of {', '.join(names)}: query the system that Spark reads from"
        )


CLOSE_S: Final = 5.0

_logger = logging.getLogger("purgatory_pipeline.listener")


class PurgatoryListener(StreamingQueryListener):
    """Publishes the progress of streaming queries after each micro-batch. The mark `spark/QUERY/TOPIC-P` is the offset
    up to which partition P of TOPIC is committed, exclusive: to wait until record 42 is processed, wait for 43.

    Only named queries are published. A source other than Kafka appears as the topic `sourceN` (N is its index in the
    query, from 0), partition 0, with its own offsets. Whole numbers that a query observes under the name `marks`, as by
    `frame.observe("marks", max("version").alias("version"))`, are marks too, of the topic `version`, partition 0. A
    background thread does all the work: a slow or unreachable daemon never delays a query, and receives the latest
    marks when it is back.

    Create the listener in the process of the session and pass it to `spark.streams.addListener`.

    Args:
        daemons: gRPC addresses, "host:port". All marks are sent to each daemon.
        state: Folder for lineages. With it, a query that was restarted from scratch while no listener ran is recognised
            as new even if it has overtaken its old offsets. Without it, only a lower mark reveals the restart.
        checkpoints: Checkpoint locations by query name; needed with Spark Connect, where Spark cannot provide them.
        client: Keyword arguments of `AsyncClient` except the address: `tls_ca`, `token` and so on.

    Raises:
        ValueError: No daemon is given.
    """

    def __init__(
        self,
        *daemons: str,
        state: Path | str | None = None,
        checkpoints: Mapping[str, str] | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        if not daemons:
            raise ValueError("no daemon given: pass at least one host:port")
        self._daemons: Final = daemons
        self._state: Final = None if state is None else Path(state)
        self._checkpoints: Final = dict(checkpoints or {})
        self._client: Final = dict(client or {})
        self._session: Final = SparkSession.getActiveSession()
        self._names: Final[dict[str, str]] = {}
        """Names of running queries, by query id."""
        self._loop: Final = asyncio.new_event_loop()
        self._sources: Final[dict[str, QuerySource]] = {}
        self._publishers: Final[dict[str, asyncio.Task[None]]] = {}
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="purgatory-listener", daemon=True)
        self._thread.start()

    # Called by Spark on its only listener thread: these methods must not block.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        if not event.name:
            _logger.warning("a query without a name is not published: call queryName(...) on its writer")
            return
        self._names[str(event.id)] = event.name
        self._on_loop(self._started, event.name, str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if progress.name:
            self._names[str(progress.id)] = progress.name
            ends = [source.endOffset for source in progress.sources]
            observed = progress.observedMetrics.get(OBSERVED_MARKS)
            self._on_loop(self._progressed, progress.name, str(progress.id), ends, observed and observed.asDict())

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing new to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        name = self._names.pop(str(event.id), None)
        if name is not None:
            stopped = "the query has stopped"
            why = stopped if event.exception is None else f"the query failed: {root_cause(event.exception)}"
            self._on_loop(self._stopped, name, why)

    def close(self) -> None:
        """Disconnect from the daemons, which makes all marks stale. Takes at most CLOSE_S seconds for each step."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)

    # Called on the loop.

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def _started(self, name: str, identity: str) -> None:
        source = self._source(name, identity)
        source.started(identity)
        self._run(self._read_checkpoint(source, identity), f"checkpoint of {name}")

    def _progressed(self, name: str, identity: str, ends: list[str | None], observed: Mapping[str, Any] | None) -> None:
        try:
            marks = marks_of(ends)
        except ValueError as error:
            _logger.warning("cannot read the offsets %s of %s: %s", ends, name, error)
            return
        own = {(topic, 0): mark for topic, mark in (observed or {}).items() if isinstance(mark, int) and mark >= 0}
        self._source(name, identity).committed(marks | own)

    def _stopped(self, name: str, why: str) -> None:
        source = self._sources.get(name)
        if source is not None:
            source.stopped(why)

    def _source(self, name: str, identity: str) -> QuerySource:
        """The source of a query name. A new id means a new query, which starts from scratch."""
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = QuerySource(name)
            self._publishers[name] = self._run(self._publish(source), source.name)
        source.is_of(identity)
        return source

    async def _publish(self, source: QuerySource) -> None:
        folder = None if self._state is None else self._state / source.query.replace("/", "_")
        openers = {address: partial(AsyncClient, address, **self._client) for address in self._daemons}
        try:
            await Publisher(source, openers, LineageStore(folder)).run()
        except SourceRefused as error:
            _logger.error("%s is no longer published: %s", source.name, error)  # noqa: TRY400 - no traceback needed

    async def _read_checkpoint(self, source: QuerySource, identity: str) -> None:
        place = self._checkpoints.get(source.query)
        source.had_committed(await self._loop.run_in_executor(None, self._committed, place, identity), identity)

    def _committed(self, checkpoint: str | None, identity: str) -> Marks:
        place = checkpoint or self._checkpoint_of(identity)
        return committed_marks(place) if place else {}

    def _checkpoint_of(self, identity: str) -> str | None:
        """Location of a query's checkpoint. PySpark has no public API for it."""
        query = None if self._session is None else self._session.streams.get(identity)
        wrapped = getattr(query, "_jsq", None)
        return None if wrapped is None else str(wrapped.streamingQuery().resolvedCheckpointRoot())

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(_log_failure)
        return task

    async def _close(self) -> None:
        feeds = list(self._publishers.values())
        for task in feeds:
            task.cancel()
        if feeds:
            await asyncio.wait(feeds, timeout=CLOSE_S)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.error("%s failed", task.get_name(), exc_info=task.exception())
