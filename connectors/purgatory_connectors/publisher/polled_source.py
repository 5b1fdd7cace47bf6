"""A source that asks its targets at intervals: often while an operation waits for their marks, otherwise seldom.

A target that fails or does not answer does not delay the others: each has a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from purgatory_connectors.errors import SourceStale, SourceUriInvalid
from purgatory_connectors.publisher.observation import Observation, SourceState, StaleMarks
from purgatory_connectors.publisher.publisher import Publisher, Source
from purgatory_connectors.uri import SourceUri

LOG: Final = logging.getLogger(__name__)

POLL_OPTIONS: Final = ("name", "config", "poll_ms", "idle_poll_ms", "timeout_ms")
_RETRY_S: Final = 0.5
"""Shortest interval at which a target that cannot be read is asked again."""
_CONNECTED_POLL_S: Final = 0.05

Reading = TypeVar("Reading")


class Unreadable(SourceStale):
    """A target cannot be read now. `is_refused`: an administrator must fix it, such as a login, a right or a query."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason[:300])
        self.is_refused: Final = is_refused


class PollTimes(NamedTuple):
    """Intervals with and without waits, and the time that an answer may take, all in seconds."""

    poll_s: float
    idle_poll_s: float
    timeout_s: float

    @classmethod
    def of_uri(cls, uri: SourceUri, poll_ms: int) -> PollTimes:
        """Read them from an address; `poll_ms` is the default. Raises SourceUriInvalid."""
        defaults = {"poll_ms": poll_ms, "idle_poll_ms": 1000, "timeout_ms": 1500}
        return cls(*(uri.number(option, value, most=3_600_000) / 1000 for option, value in defaults.items()))


def checked_name(uri: SourceUri) -> str:
    """The option `name`, which is part of the names of all marks. Raises SourceUriInvalid."""
    name = uri.options.get("name", "main")
    if not name or "/" in name or len(name) > 100:
        raise SourceUriInvalid(f"source {uri.text!r}: name={name!r}; 1 to 100 characters, and no slash")
    return name


class PolledSource(Source, Generic[Reading]):
    """Asks each target with `read` and passes the answer to `take`.

    Args:
        name: See `Source`.
        prefix: Prefix of its marks, with a slash at the end.
        targets: What is asked; opaque here.
        times: When to ask.
    """

    publisher: Publisher

    def __init__(self, name: str, prefix: str, targets: Sequence[str], times: PollTimes) -> None:
        self.name = name[:249]
        self.prefix: Final = prefix
        self.topic_prefixes = (prefix,)
        self._times: Final = times
        self._wanted: frozenset[str] = frozenset()
        self._wake: Final = {target: asyncio.Event() for target in targets}
        self._failed: Final[dict[str, Unreadable]] = {}
        self._asked: Final[set[str]] = set()

    @abstractmethod
    async def read(self, target: str) -> Reading:
        """Ask a target. It is cancelled when the time is up. Raises Unreadable."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. The source may run again and then opens others."""

    @abstractmethod
    def begin(self, told: Mapping[str, int]) -> None:
        """A run begins. `told`: the positions that daemons have, by mark without the prefix."""

    @abstractmethod
    def take(self, target: str, reading: Reading | Unreadable, now: float) -> list[Observation]:
        """Apply an answer. Returns what has changed."""

    @abstractmethod
    def stale(self) -> Mapping[str, tuple[float, str]]:
        """The marks that cannot be seen: when they were last seen, and why. "" stands for all marks."""

    def needs(self, mark: str) -> Iterable[str]:  # noqa: ARG002 - for subclasses
        """The targets whose answers move this mark."""
        return self._wake

    async def asked(self, target: str) -> Reading:
        """`read` within the permitted time. Raises Unreadable."""
        try:
            async with asyncio.timeout(self._times.timeout_s):
                return await self.read(target)
        except TimeoutError:
            raise Unreadable("it does not answer") from None

    async def run(self, publisher: Publisher) -> None:
        """Watch until cancelled."""
        self.publisher = publisher
        publisher.report(SourceState.LOADING, "not connected to a daemon yet")
        # Only daemons know which marks existed before this run.
        while not publisher.daemons_connected:  # noqa: ASYNC110 - the publisher has no event for it
            await asyncio.sleep(_CONNECTED_POLL_S)
        marks = publisher.published(self.prefix)
        told = {topic.removeprefix(self.prefix): mark.offset for (topic, _), mark in marks.items()}
        self.begin({mark: offset for mark, offset in told.items() if offset >= 0})
        self._asked.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_demand())
                for target in self._wake:
                    tasks.create_task(self._follow(target))
        finally:
            await self.close()

    async def _follow(self, target: str) -> None:
        while True:
            began = time.monotonic()
            self._wake[target].clear()
            answer: Reading | Unreadable
            try:
                answer = await self.asked(target)
            except Unreadable as error:
                answer = error
            self._note(target, answer)
            if changes := self.take(target, answer, time.monotonic()):
                self.publisher.observe(changes)
            self._report()
            interval = self._times.poll_s if target in self._wanted else self._times.idle_poll_s
            if isinstance(answer, Unreadable):
                interval = max(interval, _RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began + interval - time.monotonic())):
                    await self._wake[target].wait()

    def _note(self, target: str, answer: Reading | Unreadable) -> None:
        before = self._failed.pop(target, None)
        self._asked.add(target)
        if isinstance(answer, Unreadable):
            self._failed[target] = answer
        if str(before or "") != str(self._failed.get(target, "")):
            LOG.warning("%s%s: %s", self.prefix, target, self._failed.get(target, "it can be read again"))

    def _report(self) -> None:
        now, stale, failed = time.monotonic(), self.stale(), self._failed.values()
        marks = [
            StaleMarks(self.prefix + mark, bool(mark), (), round((now - seen_at) * 1000), reason)
            for mark, (seen_at, reason) in stale.items()
        ]
        if len(self._asked) < len(self._wake):
            state = SourceState.LOADING
        elif not stale:
            state = SourceState.LIVE
        elif len(failed) == len(self._wake) and all(one.is_refused for one in failed):
            state = SourceState.REFUSED
        else:
            state = SourceState.STALE
        self.publisher.report(state, "; ".join(sorted({reason for _, reason in stale.values()}))[:1000], marks)

    async def _follow_demand(self) -> None:
        while True:
            marks = {topic.removeprefix(self.prefix) for topic, _ in self.publisher.demand}
            wanted = frozenset().union(*map(self.needs, marks))
            for target in wanted - self._wanted:
                self._wake[target].set()
            self._wanted = wanted
            await self.publisher.demand_changed()
