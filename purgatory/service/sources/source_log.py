"""Logs a line whenever a source attaches, detaches or changes its state, and since when it has been in that state."""

import logging
from typing import Final

from purgatory.service.sources.source_table import BEHIND, HELD, LIVE, LOADING, STATE_NAMES, KnownSource, SourceTable

LOGGER: Final = logging.getLogger(__name__)
INTERVAL_MS: Final = 1_000
"""Minimum time between two lines about the same source, milliseconds; the next check logs the state at that time."""
GOOD: Final = (LIVE, LOADING, BEHIND, HELD)


class SourceLog:
    """Logs the state changes of sources."""

    def __init__(self, table: SourceTable) -> None:
        self._table: Final = table

    def tell(self, now_ms: int) -> None:
        """Log what has changed. Called after a change, and periodically."""
        for source in self._table:
            state = source.state_at(now_ms)
            if state != source.state:
                source.state, source.state_since_ms = state, now_ms
            # Compared with what was logged and not with the last state: a source that flaps has one line a second, with
            # its state at that time.
            if state != source.logged_state and now_ms - source.logged_ms >= INTERVAL_MS:
                source.logged_state, source.logged_ms = state, now_ms
                _log(source, now_ms)


def _log(source: KnownSource, now_ms: int) -> None:
    stream = source.leading(now_ms)
    why, prefixes = stream.why(now_ms), ", ".join(f"{prefix}*" for prefix in stream.topic_prefixes[:3])
    level = logging.INFO if source.state in GOOD else logging.WARNING
    # Quoted with repr because names and reasons are untrusted: they must not inject control sequences into a terminal.
    reason = f": {why[:300]!r}" if why else ""
    LOGGER.log(level, "source %r (%r) is %s%s", source.name, prefixes, STATE_NAMES[source.state], reason)
