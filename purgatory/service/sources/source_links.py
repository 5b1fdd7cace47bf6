"""The attached sources: the messages pending for each, and the questions it has been asked."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from google.rpc import code_pb2

from purgatory import sizes
from purgatory.engine.batches import PartitionName
from purgatory.engine.engine import Engine
from purgatory.service.errors import RpcError, quoted, resource_exhausted, unavailable
from purgatory.service.sources import source_table
from purgatory.service.sources.ends_asked import EndsAsked, EndsQuestion, LogEnd, MayAdd

LOGGER: Final = logging.getLogger(__name__)

SOURCES_MAX: Final = 32
"""Attached sources of marks."""
LOST_CHECK_S: Final = 0.5
NAME_BYTES: Final = 200
"""Estimated maximum memory of a name that was sent to one source, bytes."""


class DemandOfStream:
    """The names in demand, as sent to one source."""

    def __init__(self, stream: source_table.SourceStream, woken: asyncio.Event) -> None:
        self.stream: Final = stream
        self.names: Final[set[PartitionName]] = set()
        self._untold: Final[dict[PartitionName, bool]] = {}
        """Changes since the last message: gained (True) or lost."""
        self._woken: Final = woken

    def gain(self, name: PartitionName) -> None:
        if name not in self.names:
            # Recorded before it is sent: from now on `drop_lost` looks whether the name still has waits.
            self.names.add(name)
            self._change(name, gained=True)

    def lose(self, name: PartitionName) -> None:
        if name in self.names:
            self.names.remove(name)
            self._change(name, gained=False)

    def take(self, count_max: int) -> tuple[list[PartitionName], list[PartitionName]]:
        """Return and clear the names gained and lost since the last call, at most `count_max` of them."""
        gained: list[PartitionName] = []
        lost: list[PartitionName] = []
        while self._untold and len(gained) + len(lost) < count_max:
            name, is_gained = self._untold.popitem()
            (gained if is_gained else lost).append(name)
        return gained, lost

    @property
    def has_untold(self) -> bool:
        return bool(self._untold)

    def _change(self, name: PartitionName, *, gained: bool) -> None:
        if self._untold.pop(name, None) is None:  # otherwise the name is back in the state that was sent
            self._untold[name] = gained
        self._woken.set()


class Demand:
    """The demand of all attached sources.

    Which of the names that sources feed have pending waits. The engine's hot path is not involved: each batch of
    registrations has a dictionary of its partitions, which is read at once, and only while a source is attached. Names
    without waits are found by querying the engine for the names already sent, a slice at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine: Final = engine
        self._attached: Final[list[DemandOfStream]] = []
        self.is_wanted = False
        """Whether any source is attached, so that demand has to be tracked."""

    @property
    def held_bytes(self) -> int:
        return sum(NAME_BYTES * len(demand.names) for demand in self._attached)

    def attach(self, stream: source_table.SourceStream, woken: asyncio.Event) -> DemandOfStream:
        """Track the demand of a source from now on; `begin` adds existing waits. `woken` is set when there is a change
        to send.
        """
        demand = DemandOfStream(stream, woken)
        self._attached.append(demand)
        self.is_wanted = True
        return demand

    def detach(self, demand: DemandOfStream) -> None:
        self._attached.remove(demand)
        self.is_wanted = bool(self._attached)

    async def begin(self, demand: DemandOfStream) -> None:
        """Add all names that have pending waits now. Call after `attach`: registrations between slices count too."""
        names = self._engine.inspection.partition_names()
        for start in range(0, len(names), sizes.DEMAND_NAMES_PER_SLICE):
            self._note(demand, names[start : start + sizes.DEMAND_NAMES_PER_SLICE])
            await asyncio.sleep(0)

    def registered(self, names: Iterable[PartitionName]) -> None:
        """A batch of operations that name these partitions was registered."""
        for demand in self._attached:
            self._note(demand, names)

    async def drop_lost(self) -> None:
        """Find names that no longer have any waits."""
        for demand in list(self._attached):
            # A copy: `lose` changes the set, and other tasks run between two slices.
            names = list(demand.names)
            for start in range(0, len(names), sizes.DEMAND_NAMES_PER_SLICE):
                for name in names[start : start + sizes.DEMAND_NAMES_PER_SLICE]:
                    if not self._engine.inspection.has_waits(name):
                        demand.lose(name)
                await asyncio.sleep(0)

    def _note(self, demand: DemandOfStream, names: Iterable[PartitionName]) -> None:
        prefixes, known, has_waits = demand.stream.topic_prefixes, demand.names, self._engine.inspection.has_waits
        for name in names:
            # The engine is asked last: it is the most expensive of the three, and an operation that ended at once has
            # left no wait.
            if name not in known and name[0].startswith(prefixes) and has_waits(name):
                demand.gain(name)


INTERVAL_MS: Final = 1_000
"""Minimum time between two lines about the same source, milliseconds; the next check logs the state at that time."""
GOOD: Final = (source_table.LIVE, source_table.LOADING, source_table.BEHIND, source_table.HELD)


class SourceLog:
    def __init__(self, table: source_table.SourceTable) -> None:
        self._table: Final = table

    def tell(self, now_ms: int) -> None:
        """Log what has changed. Called after a change, and periodically."""
        for source in self._table:
            state = source.state_at(now_ms)
            if state != source.state or source.state_since_ms < 0:
                source.state, source.state_since_ms = state, now_ms
            # Compared with what was logged and not with the last state: a source that flaps has one line a second, with
            # its state at that time.
            if state != source.logged_state and now_ms - source.logged_ms >= INTERVAL_MS:
                source.logged_state, source.logged_ms = state, now_ms
                _log(source, now_ms)


def _log(source: source_table.KnownSource, now_ms: int) -> None:
    stream = source.leading(now_ms)
    why, prefixes = stream.why(now_ms), ", ".join(f"{prefix}*" for prefix in stream.topic_prefixes[:3])
    level = logging.INFO if source.state in GOOD else logging.WARNING
    # Quoted with repr because names and reasons are untrusted: they must not inject control sequences into a terminal.
    reason = f": {why[:300]!r}" if why else ""
    LOGGER.log(level, "source %r (%r) is %s%s", source.name, prefixes, source_table.STATE_NAMES[source.state], reason)


SHUTTING_DOWN: Final = "the daemon is shutting down"


class AttachedSource:
    """One attached source: its row of the table, its demand, and its questions."""

    def __init__(
        self, name: str, principal: str, stream: source_table.SourceStream, demand: Demand, may_add: MayAdd
    ) -> None:
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
    def __init__(
        self, engine: Engine, table: source_table.SourceTable, now_ms: Callable[[], int], may_add: MayAdd
    ) -> None:
        self.table: Final = table
        self.demand: Final = Demand(engine)
        self.log: Final = SourceLog(table)
        self.restarts: Final[dict[str, int]] = {}
        """Restarts of sources that the daemon runs itself, by name."""
        self.supervised: Sequence[source_table.ManagedSource] = ()
        """Sources that the daemon runs itself."""
        self.supervised_as = ""
        """Their principal, which has no share of sources."""
        self._now_ms: Final = now_ms
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
        if len(self._links) >= SOURCES_MAX:
            raise resource_exhausted("sources", f"{SOURCES_MAX} sources are attached; no more are allowed", None)
        own = sum(link.principal == principal for link in self._links)
        if principal != self.supervised_as and not self._may_add(principal, SOURCES_MAX, len(self._links), own):
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

    async def ends(
        self, topics: Sequence[str], principal: str, as_of_ms: int | None = None, limit_s: float | None = None
    ) -> list[LogEnd]:
        """Return where topics end, or ended at a time (milliseconds since the epoch), as determined by their sources
        after this call of a principal. Raises `RpcError`, also if this takes longer than `limit_s`.
        """
        topics_of: defaultdict[tuple[AttachedSource, ...], list[str]] = defaultdict(list)
        for topic in topics:
            topics_of[self._to_ask(topic)].append(topic)
        questions = [(links, EndsQuestion(frozenset(asked), as_of_ms)) for links, asked in topics_of.items()]
        try:
            async with asyncio.timeout(limit_s):
                answers = await asyncio.gather(*(_first_answer(*asked, principal) for asked in questions))
        except TimeoutError:
            raise unavailable(f"the source has not answered within {limit_s:g} s where the logs end") from None
        return [end for answer in answers for end in answer]

    def _to_ask(self, topic: str) -> tuple[AttachedSource, ...]:
        """Return the sources that feed a topic, in the order in which to ask them, without silent ones."""
        now_ms = self._now_ms()
        feeding = [link for link in self._links if topic.startswith(link.stream.topic_prefixes)]
        if not feeding:
            raise unavailable(f"no source that publishes {quoted(topic)} is attached")
        there = [link for link in feeding if link.stream.state_at(now_ms) != source_table.SILENT]
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
