"""Which sources there are, how they fare, and which marks nobody can see.

A mark is *stale* when every source that feeds it is gone, has been silent, or says that it cannot see it. It has been
stale since the last moment at which one of them did see it; marks that no source ever fed are never stale. Sources that
are gone are remembered, for that is when their marks are stale.

What a source says of the time before its stream began is a *claim*: a source that has just been started knows nothing
of earlier times, and if one is started again and again, each start would otherwise make its marks look fresher. So what
this daemon has seen itself counts before any claim.

Times are milliseconds on the host's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from purgatory.engine.batches import PartitionName
from purgatory.service.sources.stale_index import StaleIndex, Unseen

SILENT_MS_MAX: Final = 3_000
"""A source that has not reported for longer does not count as seeing anything."""

ENTRY_BYTES: Final = 200
"""What an entry or a partition of a report takes, at most, estimated."""

LOADING: Final = 1
LIVE: Final = 2
BEHIND: Final = 3
HELD: Final = 4
STALE: Final = 5
REFUSED: Final = 6
SILENT: Final = 7
DETACHED: Final = 8
"""States: the first six are reported, as on the wire."""
SEEING: Final = (LIVE, BEHIND, HELD)
BEST_FIRST: Final = (LIVE, BEHIND, HELD, LOADING, STALE, REFUSED, SILENT, DETACHED)
LONG_AGO_MS: Final = -(2**62)

STATE_NAMES: Final = {
    LOADING: "loading",
    LIVE: "live",
    BEHIND: "behind",
    HELD: "held",
    STALE: "stale",
    REFUSED: "refused",
    SILENT: "silent",
    DETACHED: "detached",
}


class ManagedSource(Protocol):
    """A source that the daemon runs itself, as a child process."""

    name: str
    restarts: int
    is_running: bool
    ending: str
    """How its last process ended. Empty: none has ended."""
    changed: float
    """When `is_running` last changed, in monotonic seconds."""


class Staleness(NamedTuple):
    """Since when a mark has been stale (the last moment at which a source saw it), and why."""

    since_ms: int
    reason: str

    def ms(self, now_ms: int) -> int:
        """For how long."""
        return max(0, now_ms - self.since_ms)


class _Evidence(NamedTuple):
    """When a mark was last seen on a stream. `is_claim`: so its source says, of the time before."""

    is_claim: bool
    since_ms: int
    reason: str


class SourceStream:
    """What one stream of a source has said. Once it has ended, what it said last."""

    def __init__(self, source_name: str, topic_prefixes: Sequence[str], now_ms: int) -> None:
        self.topic_prefixes: Final = tuple(dict.fromkeys(topic_prefixes))
        self.state = LOADING
        self.reason = ""
        self.lag_ms = 0
        self.attached_ms: Final = now_ms
        self.heard_ms = now_ms
        self.ended_ms: int | None = None
        self.stale = StaleIndex()
        self.has_seen = False
        """Whether it ever saw any of its marks."""
        self._source_name: Final = source_name
        self._first_report_ms: int | None = None
        self._stale_since_ms: int | None = None
        """Since when it has said that it sees nothing, without naming marks."""

    def report(self, state: int, reason: str, lag_ms: int, stale: StaleIndex, now_ms: int) -> None:
        """Replaces what was reported before. `stale` is taken over: without an entry, stale or refused means all."""
        if state not in (STALE, REFUSED) or stale.size:
            self._stale_since_ms = None
        else:
            if self._stale_since_ms is None:
                self._stale_since_ms = self.heard_ms
            stale.add("", False, [], Unseen(self._stale_since_ms, reason))
        self.state, self.reason, self.lag_ms, self.stale = state, reason, lag_ms, stale
        self.heard_ms = now_ms
        self.has_seen = self.has_seen or not stale.has_all
        if self._first_report_ms is None:
            self._first_report_ms = now_ms

    @property
    def is_seeing(self) -> bool:
        """Whether its last report says that it sees its marks."""
        return self.state in SEEING

    def state_at(self, now_ms: int) -> int:
        """The state that it reported, unless it is gone or silent."""
        if self.ended_ms is not None:
            return DETACHED
        return SILENT if now_ms - self.heard_ms > SILENT_MS_MAX else self.state

    def why(self, now_ms: int) -> str:
        """What there is to say of its state, for people."""
        state = self.state_at(now_ms)
        if state == DETACHED:
            return f"the source {self._source_name} is not attached"
        if state == SILENT:
            return f"the source {self._source_name} has been silent"
        if self._first_report_ms is None:
            return f"the source {self._source_name} has not reported yet"
        return self.reason

    def stale_since_ms(self, now_ms: int) -> int | None:
        """Since when it has not seen all of its marks. None: it sees them all."""
        if self._first_report_ms is None:
            return self.attached_ms
        oldest_ms = self.stale.oldest_ms
        if oldest_ms is not None:
            return oldest_ms
        return self._away_since_ms(now_ms)

    def evidence(self, name: PartitionName, now_ms: int) -> _Evidence | None:
        """When it saw a mark that it feeds. None: it sees it now."""
        if self._first_report_ms is None:
            return _Evidence(True, self.attached_ms, self.why(now_ms))
        unseen = self.stale.find(name)
        away_since_ms = self._away_since_ms(now_ms)
        if unseen is None:
            return None if away_since_ms is None else _Evidence(False, away_since_ms, self.why(now_ms))
        reason = self.why(now_ms) if away_since_ms is not None else unseen.reason or self.reason
        if unseen.since_ms > self._first_report_ms:
            return _Evidence(False, unseen.since_ms, reason)
        return _Evidence(True, min(unseen.since_ms, self.attached_ms), reason)

    def _away_since_ms(self, now_ms: int) -> int | None:
        """Since when nothing is known of anything that it feeds. None: it is there."""
        state = self.state_at(now_ms)
        if state == SILENT:
            return self.heard_ms
        if state == DETACHED:
            assert self.ended_ms is not None, "it has ended"
            return self.heard_ms if self.ended_ms - self.heard_ms > SILENT_MS_MAX else self.ended_ms
        return None


class KnownSource:
    """All streams of one name and principal: those that are attached, and the last one that saw anything."""

    def __init__(self, name: str, principal: str) -> None:
        self.name: Final = name
        self.principal: Final = principal
        self.streams: Final[list[SourceStream]] = []
        self.ended: SourceStream | None = None
        self.state = LOADING
        self.state_since_ms = -1
        self.logged_state = 0
        self.logged_ms = LONG_AGO_MS
        """See `SourceLog`."""

    def leading(self, now_ms: int) -> SourceStream:
        """The one of its streams that fares best."""
        return min(self.all_streams(), key=lambda stream: BEST_FIRST.index(stream.state_at(now_ms)))

    @property
    def topic_prefixes(self) -> tuple[str, ...]:
        """What any of its streams feeds, or fed."""
        return tuple(dict.fromkeys(prefix for stream in self.all_streams() for prefix in stream.topic_prefixes))

    def state_at(self, now_ms: int) -> int:
        return self.leading(now_ms).state_at(now_ms)

    def all_streams(self) -> Iterator[SourceStream]:
        yield from self.streams
        if self.ended is not None:
            yield self.ended

    def end(self, stream: SourceStream, now_ms: int) -> None:
        self.streams.remove(stream)
        stream.ended_ms = now_ms
        # One that saw nothing tells less than the one before it. Where there was none, it is kept for when it began.
        if stream.has_seen or self.ended is None:
            self.ended = stream

    def evidence(self, name: PartitionName, now_ms: int) -> tuple[bool, _Evidence | None]:
        """Whether it feeds a mark; and if so when it saw it last, None: it sees it now."""
        found = []
        for stream in self.all_streams():
            if name[0].startswith(stream.topic_prefixes):
                one = stream.evidence(name, now_ms)
                if one is None:
                    return True, None
                found.append(one)
        proven = [one for one in found if not one.is_claim]
        if proven:
            return True, max(proven, key=_since)
        return bool(found), min(found, key=_since, default=None)


class SourceTable:
    """The sources that are attached, and those that were."""

    def __init__(self, remembered_max: int = 64) -> None:
        self._remembered_max: Final = remembered_max
        """Sources that are kept without being attached."""
        self._sources: Final[dict[tuple[str, str], KnownSource]] = {}
        """By principal and name. Those without a stream come first, in the order in which they went."""
        self._prefixes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[KnownSource]:
        yield from self._sources.values()

    def __bool__(self) -> bool:
        """Whether any source is known: without, nothing can be stale."""
        return bool(self._sources)

    @property
    def attached(self) -> int:
        """Streams."""
        return sum(len(source.streams) for source in self)

    @property
    def held_bytes(self) -> int:
        """What its entries take, estimated."""
        return sum(ENTRY_BYTES * stream.stale.size for source in self for stream in source.all_streams())

    def attach(self, name: str, principal: str, topic_prefixes: Sequence[str], now_ms: int) -> SourceStream:
        """A new stream of a source, which may have others."""
        source = self._sources.pop((principal, name), None) or KnownSource(name, principal)
        self._sources[principal, name] = source
        stream = SourceStream(name, topic_prefixes, now_ms)
        source.streams.append(stream)
        self._note_prefixes()
        return stream

    def detach(self, name: str, principal: str, stream: SourceStream, now_ms: int) -> None:
        """A stream has ended; its marks are stale if nobody else sees them."""
        source = self._sources[principal, name]
        source.end(stream, now_ms)
        if not source.streams:
            self._sources.pop((principal, name))
            self._sources[principal, name] = source
            self._forget_some()
        self._note_prefixes()

    def stale(self, name: PartitionName, now_ms: int) -> Staleness | None:
        """Since when and why a mark cannot be seen. None: a source sees it, or none ever fed it."""
        if not self._prefixes or not name[0].startswith(self._prefixes):
            return None
        found: list[_Evidence] = []
        for source in self:
            feeds, one = source.evidence(name, now_ms)
            if feeds and one is None:
                return None
            if one is not None:
                found.append(one)
        found = [one for one in found if not one.is_claim] or found
        if not found:
            return None
        last = max(found, key=_since)
        return Staleness(min(last.since_ms, now_ms), last.reason)

    def _forget_some(self) -> None:
        gone = [key for key, source in self._sources.items() if not source.streams]
        for key in gone[: len(gone) - self._remembered_max] if len(gone) > self._remembered_max else ():
            del self._sources[key]

    def _note_prefixes(self) -> None:
        streams = (stream for source in self for stream in source.all_streams())
        self._prefixes = tuple({prefix for stream in streams for prefix in stream.topic_prefixes})


def _since(evidence: _Evidence) -> int:
    return evidence.since_ms
