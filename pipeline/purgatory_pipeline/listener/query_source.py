"""One streaming query as a source of marks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from purgatory_sources.errors import SourceStale
from purgatory_sources.publisher.observation import Observation
from purgatory_sources.publisher.publisher import Publisher
from purgatory_sources.publisher.reports import End, SourceState
from purgatory_sources.publisher.source import Source

from purgatory_pipeline.listener.end_offsets import Marks

PREFIX: Final = "spark"


class QuerySource(Source):
    """Tells what a query has committed. Its methods are called on the publisher's loop."""

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
        """The query's id, which lives as long as its checkpoint: one that starts anew begins a new lineage."""
        if identity != self._identity:
            self._identity, self._marks = identity, {}
            self._is_running, self._stopped = False, ""

    def started(self, identity: str) -> None:
        """It begins, or goes on."""
        self.is_of(identity)
        self._stopped = ""
        self._news.set()

    def had_committed(self, marks: Marks, identity: str) -> None:
        """What a checkpoint says, read while other things went on: nothing is taken from it once another query has the
        name, or this one has stopped.
        """
        if marks and identity == self._identity and not self._stopped:
            self.committed(marks)

    def committed(self, marks: Marks) -> None:
        """So far has the query come."""
        for name, mark in marks.items():
            self._marks[name] = max(mark, self._marks.get(name, mark))
        self._is_running, self._stopped = True, ""
        self._news.set()

    def stopped(self, reason: str) -> None:
        """It does not go on; its marks are stale until it does."""
        self._stopped = reason
        self._news.set()

    async def run(self, publisher: Publisher) -> None:
        """Hands over what it is told."""
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
                publisher.report(SourceState.LOADING, "it has committed nothing yet")
            await self._news.wait()
            self._news.clear()

    async def ends(self, names: Sequence[str]) -> list[End]:
        """Spark says where its inputs end only with the batches that read them."""
        raise SourceStale(f"{self.name} cannot say where {', '.join(names)} end: ask the system that Spark reads from")
