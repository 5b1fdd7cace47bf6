"""A source that asks its targets at intervals: often while an operation waits for their marks, otherwise seldom.

A target that fails or does not answer does not delay the others: each has a task of its own.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from purgatory_client.session.backoff import set_within

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceStale
from purgatory_connectors.publisher.mark_rules import DERIVED, StaleMark
from purgatory_connectors.publisher.observation import Observation, SourceState, StaleMarks
from purgatory_connectors.publisher.publisher import Publisher, Source

POLL_OPTIONS: Final = ("name", "config", "poll_ms", "idle_poll_ms", "timeout_ms")
POSITION_MAX: Final = 2**61 - 1
"""The highest offset of a mark."""
_RETRY_S: Final = 0.5
"""Shortest interval at which a target that cannot be read is asked again."""
_CONNECTED_POLL_S: Final = 0.05
_MS_MAX: Final = 3_600_000

_logger = logging.getLogger(__name__)

Reading = TypeVar("Reading")


class Unreadable(SourceStale):
    """A target cannot be read now. `is_refused`: an administrator must fix it, such as a login, a right or a query."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason[:300])
        self.is_refused: Final = is_refused


def named_servers(uri: SourceUri) -> dict[str, str]:
    """The hosts of an address by the names that the option `servers` gives them. Raises SourceUriInvalid."""
    names = uri.listed("servers") or uri.hosts
    allowed = {name for name in names if "/" not in name} - set(DERIVED)  # a slash separates the parts of a mark's name
    if len(names) != len(uri.hosts) or len(allowed) != len(names):
        raise SourceUriInvalid(
            f"source {uri.text!r}: servers={','.join(names)!r}; give a different name to each of the "
            f"{len(uri.hosts)} hosts, without a slash, other than {', '.join(DERIVED)}"
        )
    return dict(zip(names, uri.hosts, strict=True))


class PolledSource(Source, Generic[Reading]):
    """Asks each target with `read` and passes the answer to `apply`.

    Args:
        kind: The first part of the names of its marks, "KIND/NAME/".
        uri: The address, with `name` and the times to ask at.
        targets: The servers to ask, by any names.
        poll_ms: Interval while operations wait, unless the address has another one.

    Raises:
        SourceUriInvalid: An option is wrong.
    """

    publisher: Publisher

    def __init__(self, kind: str, uri: SourceUri, targets: Sequence[str], poll_ms: int) -> None:
        name = uri.options.get("name", "main")
        if not name or "/" in name or len(name) > 100:
            raise SourceUriInvalid(f"source {uri.text!r}: name={name!r}; 1 to 100 characters, and no slash")
        self.name = f"{uri.scheme}://{','.join(uri.hosts)}"[:249]
        self.prefix: Final = f"{kind}/{name}/"
        self.topic_prefixes = (self.prefix,)
        self._poll_s: Final = uri.number("poll_ms", poll_ms, most=_MS_MAX) / 1000
        self._idle_poll_s: Final = uri.number("idle_poll_ms", 1000, most=_MS_MAX) / 1000
        self._timeout_s: Final = uri.number("timeout_ms", 1500, most=_MS_MAX) / 1000
        self._wanted: frozenset[str] = frozenset()
        self._wake: Final = {target: asyncio.Event() for target in targets}
        self._failed: Final[dict[str, Unreadable | None]] = {}
        """For each target that was asked: why it could not be read."""
        self._reasons: dict[str, str] = {}
        """Stale marks of the last report, except derived ones."""
        self._reads: Final[set[asyncio.Task[Reading]]] = set()
        """Those that have not ended yet, although they may have been cancelled."""

    @abstractmethod
    async def read(self, target: str) -> Reading:
        """Ask a target. It is cancelled when the time is up; the next call must wait until it has ended. Raises
        Unreadable.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. The source may run again and then opens others."""

    @abstractmethod
    def begin(self, published: Mapping[str, int]) -> None:
        """A run begins. `published`: the positions that daemons have, by mark without the prefix."""

    @abstractmethod
    def apply(self, target: str, reading: Reading | Unreadable, now: float) -> list[Observation]:
        """Apply an answer. Returns what has changed."""

    @abstractmethod
    def stale(self) -> Sequence[StaleMark]:
        """The marks that cannot be seen."""

    def needs(self, mark: str) -> Iterable[str]:  # noqa: ARG002 - for subclasses
        """The targets whose answers move this mark."""
        return self._wake

    async def asked(self, target: str) -> Reading:
        """`read` within the permitted time. Raises Unreadable.

        A read that takes longer is cancelled, but its end is not awaited: a driver may ask the server to cancel the
        query, and wait for that answer too.
        """
        reading = asyncio.ensure_future(self.read(target))
        self._reads.add(reading)
        reading.add_done_callback(self._read_ended)
        try:
            if (await asyncio.wait((reading,), timeout=self._timeout_s))[0]:
                return reading.result()
        finally:
            reading.cancel()
        raise Unreadable("it does not answer")

    def _read_ended(self, reading: asyncio.Task[Reading]) -> None:
        self._reads.discard(reading)
        if not reading.cancelled():
            reading.exception()  # mark it as retrieved, or asyncio would log it

    async def run(self, publisher: Publisher) -> None:
        self.publisher = publisher
        publisher.report(SourceState.LOADING, "not connected to a daemon yet")
        # Only daemons know which marks existed before this run.
        while not publisher.daemons_connected:  # noqa: ASYNC110 - the publisher has no event for it
            await asyncio.sleep(_CONNECTED_POLL_S)
        marks = publisher.published(self.prefix)
        published = {topic.removeprefix(self.prefix): mark.offset for (topic, _), mark in marks.items()}
        self.begin({mark: offset for mark, offset in published.items() if offset >= 0})
        self._failed.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_demand())
                for target in self._wake:
                    tasks.create_task(self._follow(target))
        finally:
            if self._reads:  # each has a connection, which `close` would not find
                await asyncio.wait(self._reads, timeout=self._timeout_s)
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
            self._failed[target] = answer if isinstance(answer, Unreadable) else None
            if changes := self.apply(target, answer, time.monotonic()):
                self.publisher.observe(changes)
            self._report()
            least_s = max(self._poll_s, _RETRY_S) if isinstance(answer, Unreadable) else self._poll_s
            await asyncio.sleep(began + least_s - time.monotonic())
            if target not in self._wanted:
                await set_within(self._wake[target], began + self._idle_poll_s - time.monotonic())

    def _report(self) -> None:
        now, stale = time.monotonic(), self.stale()
        marks = [
            StaleMarks(self.prefix + one.mark, not one.is_prefix, (), round((now - one.seen_at) * 1000), one.reason)
            for one in stale
        ]
        state = SourceState.STALE if stale else SourceState.LIVE
        if len(self._failed) < len(self._wake):
            state = SourceState.LOADING
        elif stale and all(failed is not None and failed.is_refused for failed in self._failed.values()):
            state = SourceState.REFUSED
        reasons = {one.mark: one.reason for one in stale if one.mark.partition("/")[0] not in DERIVED}
        if state is not SourceState.LOADING:
            self._log_changes(reasons)
        text = "; ".join(f"{mark}: {reason}" if mark else reason for mark, reason in reasons.items())
        self.publisher.report(state, text[:1000], marks)

    def _log_changes(self, reasons: Mapping[str, str]) -> None:
        for mark, reason in reasons.items():
            if reason != self._reasons.get(mark):
                _logger.warning("%s%s is stale: %s", self.prefix, mark, reason)
        for mark in self._reasons.keys() - reasons.keys():
            _logger.info("%s%s is current again", self.prefix, mark)
        self._reasons = dict(reasons)

    async def _follow_demand(self) -> None:
        while True:
            marks = {topic.removeprefix(self.prefix) for topic, _ in self.publisher.demand}
            wanted = frozenset().union(*map(self.needs, marks))
            for target in wanted - self._wanted:
                self._wake[target].set()
            self._wanted = wanted
            await self.publisher.demand_changed()
