"""The attached sources: the messages pending for each, and the questions it has been asked."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from google.rpc import code_pb2

from purgatory.engine.engine import Engine
from purgatory.service.errors import RpcError, quoted, resource_exhausted, unavailable
from purgatory.service.sources.demand import LOST_CHECK_S, Demand
from purgatory.service.sources.ends_asked import EndsAsked, EndsQuestion, LogEnd, MayAdd
from purgatory.service.sources.source_log import SourceLog
from purgatory.service.sources.source_table import SILENT, ManagedSource, SourceStream, SourceTable

LOGGER: Final = logging.getLogger(__name__)
SHUTTING_DOWN: Final = "the daemon is shutting down"


class AttachedSource:
    """One attached source: its row of the table, its demand, and its questions."""

    def __init__(self, name: str, principal: str, stream: SourceStream, demand: Demand, may_add: MayAdd) -> None:
        self.name: Final = name
        self.principal: Final = principal
        self.stream: Final = stream
        self.woken: Final = asyncio.Event()
        """Set when there may be something to write."""
        self.demand: Final = demand.attach(stream, self.woken)
        self.asks: Final = EndsAsked(name, self.woken, may_add)
        self.ending: Exception | None = None
        """The error to end the stream with."""
        self.is_over = False
        """The stream has ended, or should end."""

    def finish(self, error: Exception | None) -> None:
        """End the stream: with an error, or because the source will send nothing more."""
        if not self.is_over:
            self.is_over, self.ending = True, error
            self.woken.set()


class SourceLinks:
    """All sources attached to a daemon."""

    def __init__(
        self, engine: Engine, table: SourceTable, now_ms: Callable[[], int], sources_max: int, may_add: MayAdd
    ) -> None:
        self.table: Final = table
        self.demand: Final = Demand(engine)
        self.log: Final = SourceLog(table)
        self.restarts: Final[dict[str, int]] = {}
        """Restarts of sources that the daemon runs itself, by name."""
        self.supervised: Sequence[ManagedSource] = ()
        """Sources that the daemon runs itself."""
        self.supervised_as = ""
        """Their principal, which has no share of sources."""
        self._now_ms: Final = now_ms
        self._sources_max: Final = sources_max
        self._may_add: Final = may_add
        self._links: Final[list[AttachedSource]] = []
        self._watching: asyncio.Task[None] | None = None
        self._is_shut_down = False
        self.is_used = False
        """Whether a source was ever attached."""

    def held_bytes(self) -> int:
        return self.table.held_bytes + self.demand.held_bytes

    def count_restart(self, name: str) -> None:
        """The daemon has restarted a source that it runs itself."""
        self.restarts[name] = self.restarts.get(name, 0) + 1

    def attach(self, name: str, principal: str, topic_prefixes: Sequence[str]) -> AttachedSource:
        """Add a source. Raises `RpcError` if there are too many, in total or of this principal."""
        if self._is_shut_down:
            raise unavailable(SHUTTING_DOWN)
        if len(self._links) >= self._sources_max:
            raise resource_exhausted("sources", f"{self._sources_max} sources are attached; no more are allowed", None)
        own = sum(link.principal == principal for link in self._links)
        if principal != self.supervised_as and not self._may_add(principal, self._sources_max, len(self._links), own):
            message = f"you have {own} sources attached, which is your current share; detach one, or try again later"
            raise resource_exhausted("sources", message, None)
        # Never reset: detached sources are remembered, and their reports take memory.
        self.is_used = True
        now_ms = self._now_ms()
        stream = self.table.attach(name, principal, topic_prefixes, now_ms)
        link = AttachedSource(name, principal, stream, self.demand, self._may_add)
        self._links.append(link)
        self.log.tell(now_ms)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="sources")
        return link

    def detach(self, link: AttachedSource) -> None:
        link.finish(None)
        now_ms = self._now_ms()
        self._links.remove(link)
        self.demand.detach(link.demand)
        self.table.detach(link.name, link.principal, link.stream, now_ms)
        link.asks.end()
        self.log.tell(now_ms)
        if not self._links and self._watching is not None:
            # Nothing is left to watch: without sources, the daemon must have no periodic work because of them.
            self._watching.cancel()
            self._watching = None

    def shut_down(self) -> None:
        """End all streams and accept no more."""
        self._is_shut_down = True
        for link in self._links:
            link.finish(unavailable(SHUTTING_DOWN))

    async def ends(self, topics: Sequence[str], principal: str, as_of_ms: int | None = None) -> list[LogEnd]:
        """Return where topics end, or ended at a time (milliseconds since the epoch), as determined by their sources
        after this call of a principal. Raises `RpcError`.
        """
        topics_of: defaultdict[tuple[AttachedSource, ...], list[str]] = defaultdict(list)
        for topic in topics:
            topics_of[self._to_ask(topic)].append(topic)
        questions = [(links, EndsQuestion(frozenset(asked), as_of_ms)) for links, asked in topics_of.items()]
        answers = await asyncio.gather(*(_first_answer(links, question, principal) for links, question in questions))
        return [end for answer in answers for end in answer]

    def _to_ask(self, topic: str) -> tuple[AttachedSource, ...]:
        """Return the sources that feed a topic, in the order in which to ask them, without silent ones."""
        now_ms = self._now_ms()
        feeding = [link for link in self._links if topic.startswith(link.stream.topic_prefixes)]
        if not feeding:
            raise unavailable(f"no source that publishes {quoted(topic)} is attached")
        there = [link for link in feeding if link.stream.state_at(now_ms) != SILENT]
        if not there:
            raise unavailable(feeding[0].stream.why(now_ms))
        # Those that see their marks first, because an answer of the others may take until they see again.
        return tuple(sorted(there, key=lambda link: not link.stream.is_seeing))

    async def _watch(self) -> None:
        """Find names that are no longer waited on, and sources that have become silent; an exception does not end the
        task.
        """
        while True:
            await asyncio.sleep(LOST_CHECK_S)
            try:
                await self.demand.drop_lost()
                self.log.tell(self._now_ms())
            except Exception:
                LOGGER.exception("checking the sources failed; will be retried")


async def _first_answer(links: Sequence[AttachedSource], question: EndsQuestion, principal: str) -> list[LogEnd]:
    """Ask one source after another until one has answered. Raises `RpcError` if none has."""
    unanswered = []
    for link in links:
        answer = await link.asks.ask(question, principal)
        if not answer.error:
            return [end for end in answer.ends if end.name[0] in question.topics]
        unanswered.append(answer)
    errors = "; ".join(answer.error for answer in unanswered)
    if all(answer.is_impossible for answer in unanswered):
        raise RpcError(code_pb2.FAILED_PRECONDITION, errors)
    raise unavailable(errors)
