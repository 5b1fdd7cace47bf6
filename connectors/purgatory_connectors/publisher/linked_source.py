"""The state of one source that its links to daemons share: marks, lineages, health."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from purgatory_client.sources.source_link import EndsWanted

from purgatory_connectors.publisher.lineage_store import LineageStore
from purgatory_connectors.publisher.mark_replicator import MarkReplicator
from purgatory_connectors.publisher.observation import EndsFound, MarkName, SourceState, StaleMarks

_logger = logging.getLogger("purgatory_connectors")


class LinkedSource:
    """A source as a link sees it. `ends` answers requests; `demand_changed` is called when a link's demand changes."""

    def __init__(
        self,
        name: str,
        topic_prefixes: Sequence[str],
        store: LineageStore,
        ends: Callable[[EndsWanted], Awaitable[EndsFound]],
        demand_changed: Callable[[], None],
    ) -> None:
        self.name: Final = name
        self.topic_prefixes: Final = tuple(topic_prefixes)
        self.store: Final = store
        self.ends: Final = ends
        self.demand_changed: Final = demand_changed
        self.replicator: Final = MarkReplicator(store.load(), time.monotonic())
        self._state = SourceState.LOADING
        self._reason = "it has just started"
        self._stale: Sequence[StaleMarks] = ()
        self._lag_ms = 0
        self._reported_at = time.monotonic()

    def report(self, state: SourceState, reason: str, stale: Sequence[StaleMarks], lag_ms: int) -> bool:
        """Set the health, as in `Publisher.report`. Returns whether it has changed, apart from ages and lag."""
        marks = [one[:3] for one in stale]
        is_news = (state, reason, marks) != (self._state, self._reason, [one[:3] for one in self._stale])
        if state != self._state:
            level = logging.WARNING if state in {SourceState.STALE, SourceState.REFUSED} else logging.INFO
            _logger.log(level, "%s is %s%s", self.name, state.name.lower(), f": {reason}" if reason else "")
        self._state, self._reason, self._stale, self._lag_ms = state, reason, tuple(stale), lag_ms
        self._reported_at = time.monotonic()
        sees = state in {SourceState.LIVE, SourceState.BEHIND}
        self.replicator.set_health(self._reported_at, sees=sees, stale=stale, lag_s=lag_ms / 1_000)
        return is_news

    def health(self) -> tuple[SourceState, str, list[StaleMarks], int]:
        """State, reason, stale marks and lag (ms). The ages of stale marks are as of now, not of the last report."""
        more_ms = round((time.monotonic() - self._reported_at) * 1_000)
        stale = [one._replace(stale_ms=one.stale_ms + more_ms) for one in self._stale]
        return self._state, self._reason, stale, self._lag_ms

    def store_lineages(self) -> None:
        """Store new lineages. Call before any daemon receives their events."""
        self._store(self.replicator.unsaved)

    def store_all(self) -> None:
        """Store new lineages and moved offsets."""
        self._store(self.replicator.unsaved)
        self._store(self.replicator.moved)

    def _store(self, names: dict[MarkName, None]) -> None:
        self.store.keep((name, one) for name in names if (one := self.replicator.lineage(name)) is not None)
        names.clear()
