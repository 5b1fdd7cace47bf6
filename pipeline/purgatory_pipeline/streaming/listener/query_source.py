"""One streaming query as a source of marks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from purgatory_connectors.errors import SourceStale
from purgatory_connectors.publisher.observation import End, Observation, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source

from purgatory_pipeline.streaming.listener.end_offsets import Marks

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
        """The query starts or resumes."""
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
        """Record committed marks."""
        for name, mark in marks.items():
            self._marks[name] = max(mark, self._marks.get(name, mark))
        self._is_running, self._stopped = True, ""
        self._news.set()

    def stopped(self, reason: str) -> None:
        """The query stopped; its marks are stale until it resumes."""
        self._stopped = reason
        self._news.set()

    async def run(self, publisher: Publisher) -> None:
        """Publish marks and state whenever they change."""
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
