"""The table of sources: which ones exist, the state of each, and which marks are stale.

A mark is *stale* when every source that feeds it is detached, silent, or reports that it cannot see the mark. It has
been stale since the last time that any of them saw it; marks that no source has ever fed are never stale. Detached
sources are remembered, because their marks are stale from then on.

A *claim* is a statement of a source about the time before its stream began. A source that has just started knows
nothing of earlier times; if it is restarted repeatedly, each start would make its marks look fresher. So observations
made by this daemon take precedence over any claim.

Times are listening time (`Host.listening`), in milliseconds: a pause of the daemon makes no source silent.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from purgatory.engine.batches import PartitionName

ALL_PARTITIONS: Final = -1


class Unseen(NamedTuple):
    """Listening time at which a source last saw a mark, and the reason why it does not see it now."""

    since_ms: int
    reason: str


class StaleIndex:
    """Stale marks by topic or topic prefix. If several entries match a mark, the oldest applies."""

    def __init__(self) -> None:
        self.size = 0
        """Number of entries and partitions; used to estimate memory."""
        self._exact: Final[dict[str, dict[int, Unseen]]] = {}
        """Entries by topic, then by partition."""
        self._by_prefix: Final[dict[str, dict[int, Unseen]]] = {}
        self._lengths: Final[set[int]] = set()
        """Distinct prefix lengths, normally few."""

    def add(self, topic_prefix: str, exact: bool, partitions: list[int], unseen: Unseen) -> None:
        """Add an entry. `exact`: it applies only to the topic of exactly this name. No partitions: to all of them."""
        if exact:
            places = self._exact.setdefault(topic_prefix, {})
        else:
            places = self._by_prefix.setdefault(topic_prefix, {})
            self._lengths.add(len(topic_prefix))
        # An entry without partitions covers the whole topic, and `find` looks for both.
        for partition in partitions or (ALL_PARTITIONS,):
            known = places.get(partition)
            if known is None or unseen.since_ms < known.since_ms:
                places[partition] = unseen
        self.size += 1 + len(partitions)

    @property
    def has_all(self) -> bool:
        """Whether an entry covers all marks."""
        return ALL_PARTITIONS in self._by_prefix.get("", ())

    @property
    def oldest_ms(self) -> int | None:
        """The time since which the longest-stale mark has been stale; None if nothing is stale."""
        places = [*self._exact.values(), *self._by_prefix.values()]
        return min((unseen.since_ms for place in places for unseen in place.values()), default=None)

    def find(self, name: PartitionName) -> Unseen | None:
        """Return the entry that applies to a mark; None if the mark is not stale."""
        if not self.size:
            return None
        topic, partition = name
        # A report may have prefixes of more lengths than the topic has characters.
        lengths = self._lengths if len(self._lengths) <= len(topic) else range(len(topic) + 1)
        places = [self._exact.get(topic), *(self._by_prefix.get(topic[:length]) for length in lengths)]
        found = [place.get(at) for place in places if place for at in (partition, ALL_PARTITIONS)]
        return min((unseen for unseen in found if unseen is not None), default=None)


SILENT_MS_MAX: Final = 3_000
"""A source that has not reported for longer than this does not count as seeing anything, milliseconds."""

ENTRY_BYTES: Final = 200
"""Estimated maximum memory of an entry or partition of a report, bytes."""

LOADING: Final = 1
LIVE: Final = 2
BEHIND: Final = 3
HELD: Final = 4
STALE: Final = 5
REFUSED: Final = 6
SILENT: Final = 7
DETACHED: Final = 8
"""States. The first six are reported by sources, with the same numbers as on the wire."""
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
    """How its last process ended; empty if none has ended."""
    changed: float
    """Time of the last change of `is_running`, in monotonic seconds."""


class Staleness(NamedTuple):
    """When a mark became stale (the last time at which a source saw it), and why."""

    since_ms: int
    reason: str

    def ms(self, now_ms: int) -> int:
        """How long the mark has been stale, milliseconds."""
        return max(0, now_ms - self.since_ms)


class _Evidence(NamedTuple):
    """When a mark was last seen on a stream. `is_claim`: the source reported it about a time before its stream."""

    is_claim: bool
    since_ms: int
    reason: str


class SourceStream:
    """The reports of one stream of a source; after its end, the last of them."""

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
        """Whether it has ever seen any of its marks."""
        self._source_name: Final = source_name
        self._first_report_ms: int | None = None
        self._stale_since_ms: int | None = None
        """Time since which it has reported that it sees nothing, without naming marks; None otherwise."""

    def report(self, state: int, reason: str, lag_ms: int, stale: StaleIndex, now_ms: int) -> None:
        """Replace the previous report. Takes ownership of `stale`; if it has no entries, STALE or REFUSED means all
        marks.
        """
        if state not in (STALE, REFUSED) or stale.size:
            self._stale_since_ms = None
        else:
            if self._stale_since_ms is None:
                # The time of the previous report: `heard_ms` must not be updated before this.
                self._stale_since_ms = self.heard_ms
            stale.add("", False, [], Unseen(self._stale_since_ms, reason))
        self.state, self.reason, self.lag_ms, self.stale = state, reason, lag_ms, stale
        self.heard_ms = now_ms
        # A stream that never saw anything must not replace the one before it, see `KnownSource.end`.
        self.has_seen = self.has_seen or not stale.has_all
        if self._first_report_ms is None:
            self._first_report_ms = now_ms

    @property
    def is_seeing(self) -> bool:
        """Whether its last report says that it sees its marks."""
        return self.state in SEEING

    def state_at(self, now_ms: int) -> int:
        """Return the state that it reported, unless it is detached or silent."""
        if self.ended_ms is not None:
            return DETACHED
        return SILENT if now_ms - self.heard_ms > SILENT_MS_MAX else self.state

    def why(self, now_ms: int) -> str:
        """Return a description of its state for people."""
        state = self.state_at(now_ms)
        if state == DETACHED:
            return f"the source {self._source_name} is not attached"
        if state == SILENT:
            return f"the source {self._source_name} has been silent"
        if self._first_report_ms is None:
            return f"the source {self._source_name} has not reported yet"
        return self.reason

    def stale_since_ms(self, now_ms: int) -> int | None:
        """Return the time since which it has not seen all of its marks; None if it sees them all."""
        if self._first_report_ms is None:
            return self.attached_ms
        oldest_ms = self.stale.oldest_ms
        if oldest_ms is not None:
            return oldest_ms
        return self._away_since_ms(now_ms)

    def evidence(self, name: PartitionName, now_ms: int) -> _Evidence | None:
        """Return when it last saw a mark that it feeds; None if it sees the mark now."""
        if self._first_report_ms is None:
            return _Evidence(True, self.attached_ms, self.why(now_ms))
        unseen = self.stale.find(name)
        away_since_ms = self._away_since_ms(now_ms)
        if unseen is None:
            return None if away_since_ms is None else _Evidence(False, away_since_ms, self.why(now_ms))
        reason = self.why(now_ms) if away_since_ms is not None else unseen.reason or self.reason
        if unseen.since_ms > self._first_report_ms:
            # The source saw the mark while it was attached here, so this is an observation and not a claim.
            return _Evidence(False, unseen.since_ms, reason)
        return _Evidence(True, min(unseen.since_ms, self.attached_ms), reason)

    def _away_since_ms(self, now_ms: int) -> int | None:
        """Return since when nothing is known of any mark that it feeds; None if it is attached and reporting."""
        state = self.state_at(now_ms)
        if state == SILENT:
            return self.heard_ms
        if state == DETACHED:
            assert self.ended_ms is not None, "it has ended"
            # A source that was silent before it detached saw nothing in that time either.
            return self.heard_ms if self.ended_ms - self.heard_ms > SILENT_MS_MAX else self.ended_ms
        return None


class KnownSource:
    """All streams of one name and principal: those attached, and the last one that saw anything."""

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
        """Return its stream in the best state."""
        return min(self.all_streams(), key=lambda stream: BEST_FIRST.index(stream.state_at(now_ms)))

    @property
    def topic_prefixes(self) -> tuple[str, ...]:
        """All prefixes that any of its streams feeds or has fed."""
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
        # A stream that saw nothing adds no information to the one before it. The first is kept for its start time.
        if stream.has_seen or self.ended is None:
            self.ended = stream

    def evidence(self, name: PartitionName, now_ms: int) -> tuple[bool, _Evidence | None]:
        """Return whether it feeds a mark, and when it last saw it (None: it sees it now)."""
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
        # Among claims of the same source, the earliest: each restart claims a later time.
        return bool(found), min(found, key=_since, default=None)


class SourceTable:
    """The sources that are or were attached."""

    def __init__(self, remembered_max: int = 64) -> None:
        self._remembered_max: Final = remembered_max
        """Maximum number of detached sources that are remembered."""
        # By principal too: two principals may use the same name, and must not refresh the marks of the other.
        self._sources: Final[dict[tuple[str, str], KnownSource]] = {}
        """Sources by principal and name. Detached ones come first, in the order in which they detached."""
        self._prefixes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[KnownSource]:
        yield from self._sources.values()

    def __bool__(self) -> bool:
        """Whether any source is known. Without one, nothing can be stale."""
        return bool(self._sources)

    @property
    def attached(self) -> int:
        return sum(len(source.streams) for source in self)

    @property
    def held_bytes(self) -> int:
        return sum(ENTRY_BYTES * stream.stale.size for source in self for stream in source.all_streams())

    def attach(self, name: str, principal: str, topic_prefixes: Sequence[str], now_ms: int) -> SourceStream:
        """Add a stream of a source, which may have others."""
        # Taken out and added again, so that attached sources are behind the detached ones, see `_forget_one`.
        source = self._sources.pop((principal, name), None) or KnownSource(name, principal)
        self._sources[principal, name] = source
        stream = SourceStream(name, topic_prefixes, now_ms)
        source.streams.append(stream)
        self._note_prefixes()
        return stream

    def detach(self, name: str, principal: str, stream: SourceStream, now_ms: int) -> None:
        """A stream has ended; its marks are stale unless another source sees them."""
        source = self._sources[principal, name]
        source.end(stream, now_ms)
        if not source.streams:
            self._sources.pop((principal, name))
            self._sources[principal, name] = source
            self._forget_one()
        self._note_prefixes()

    def stale(self, name: PartitionName, now_ms: int) -> Staleness | None:
        """Return since when, and why, a mark is stale; None if a source sees it, or none has ever fed it."""
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
        # Among different sources, the latest: any of them may have been the last one to see the mark.
        last = max(found, key=_since)
        return Staleness(min(last.since_ms, now_ms), last.reason)

    def _forget_one(self) -> None:
        # Of the principal that has the most: otherwise one could make the marks of another no longer stale.
        gone = [key for key, source in self._sources.items() if not source.streams]
        if len(gone) > self._remembered_max:
            principals = [principal for principal, _ in gone]
            most = max(principals, key=principals.count)
            del self._sources[gone[principals.index(most)]]

    def _note_prefixes(self) -> None:
        streams = (stream for source in self for stream in source.all_streams())
        self._prefixes = tuple({prefix for stream in streams for prefix in stream.topic_prefixes})


def _since(evidence: _Evidence) -> int:
    return evidence.since_ms
