"""The transactions of each source that servers have executed, and the marks derived from them. No I/O.

On MySQL a source is a server's UUID, so a promotion begins another source and the numbers of the old one keep their
meaning. They lose it only if the server that writes them forgets some (RESET, a crash without `sync_binlog`). On
MariaDB the source is a domain, whose numbers continue under another server after a promotion; what the old one had
above them is lost. Either begins a new lineage of the marks of this source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from purgatory_client.sources.gtids import Executed

from purgatory_connectors.publisher.mark_rules import DERIVED, CountedReplica, StaleMark, derive
from purgatory_connectors.publisher.observation import Observation

_UNSEEN: Final = "it has not answered yet"
_GAP_S: Final = 5.0
"""Time after which a gap is no longer taken for one that parallel appliers are about to fill."""
_ENDED_S: Final = 2.0
"""Replicas may still be executing transactions of the old primary for this long after the new one has written."""


class ServerState(NamedTuple):
    """The answer of a server. `own`: its UUID, or its server id. `group`: the one that it is in, by UUID."""

    own: str
    executed: Mapping[str, Executed]
    group: str = ""
    is_in_blocks: bool = False
    """Whether each member of the group numbers its transactions in a block of its own."""


@dataclass(slots=True)
class _Server:
    seen_at: float
    stale: str = _UNSEEN
    state: ServerState | None = None
    """Its last answer; None while it cannot be read."""
    own: str = ""


@dataclass(slots=True)
class _Share:
    """The position of a server in a source, as far as it counts."""

    position: int
    counted_at: float
    stale: str = ""
    gap_since: float | None = None
    above: int | None = None
    """Its numbers are those of before a reset until it has fewer than this."""


@dataclass(slots=True)
class _Source:
    shares: dict[str, _Share]
    derived: dict[str, StaleMark] = field(default_factory=dict)
    """Derived marks that cannot be seen."""
    writer: str = ""
    replaced: set[str] = field(default_factory=set)
    """Earlier writers that have not been seen to follow since. Their last transactions may be lost."""
    lineage: int = 0
    moved_at: float = 0.0

    @property
    def identity(self) -> str:
        return f"{self.lineage}/{self.writer}"


class GtidGroup:
    """The servers of one name.

    Args:
        servers: Their names.
        quorum: Number of replicas in a quorum; None: the majority.
        published: Positions that daemons have, by mark.
        identities: The newest identity that an earlier run published, by source.
        now: Start time of this run.
    """

    def __init__(
        self,
        servers: Sequence[str],
        quorum: int | None,
        published: Mapping[str, int],
        identities: Mapping[str, str],
        now: float,
    ) -> None:
        self._servers: Final = {name: _Server(now) for name in servers}
        self._quorum: Final = quorum
        self._positions: Final = dict(published)
        self._sources: Final[dict[str, _Source]] = {}
        self._wrote_at: Final[dict[str, float]] = {}
        """When each server, by UUID, was last seen to have written."""
        for key in {mark.partition("/")[2] for mark in published}:
            source = self._source(key, now)
            lineage, _, source.writer = identities.get(key, "0/").partition("/")
            source.lineage = int(lineage)

    def observe(self, name: str, state: ServerState, now: float) -> list[Observation]:
        """A server has answered. Returns what has changed, with the marks as topics."""
        server = self._servers[name]
        if server.own == state.own and any(
            one.writer == state.own and key not in self._sources for key, one in state.executed.items()
        ):
            self._wrote_at[state.own] = now  # its first transaction
        server.state, server.own, server.seen_at, server.stale = state, state.own, now, ""
        for key in state.executed:
            self._source(key, now)
        return self._settle(now)

    def mark_stale(self, name: str, reason: str, now: float) -> list[Observation]:
        """A server cannot be read."""
        self._servers[name].state, self._servers[name].stale = None, reason
        return self._settle(now)

    def stale(self, wanted: frozenset[str], now: float) -> list[StaleMark]:
        """The marks that cannot be seen. Of sources that no longer write, only `wanted` ones."""
        marks = [
            StaleMark(f"{name}/", one.seen_at, one.stale, True) for name, one in self._servers.items() if one.stale
        ]
        for key, source in self._sources.items():
            marks += source.derived.values()
            for name, share in source.shares.items():
                if share.stale and not self._servers[name].stale:
                    marks.append(StaleMark(f"{name}/{key}", share.counted_at, share.stale))
        for mark in wanted - {one.mark for one in marks}:
            key = mark.partition("/")[2]
            if ended := self._why_ended(key, now):
                marks.append(StaleMark(mark, self._sources[key].moved_at, ended))
        return marks

    def origin(self, key: str) -> str | None:
        """The server that writes the transactions of this source, if it is listed and can be seen."""
        source = self._sources.get(key)
        return None if source is None else next((name for name in self._servers if self._writes(name, key)), None)

    def writers(self, key: str) -> list[str]:
        """The servers of which one writes this source: its origin, or all of a group that can all be seen."""
        origin, states = self.origin(key), [one.state for one in self._servers.values()]
        if origin is None and all(state and state.group == key.partition(":")[0] for state in states):
            return list(self._servers)
        return [origin] if origin else []

    def _source(self, key: str, now: float) -> _Source:
        if key not in self._sources:
            shares = {name: _Share(self._positions.get(f"{name}/{key}", -1), now) for name in self._servers}
            self._sources[key] = _Source(shares, moved_at=now)
        return self._sources[key]

    def _executed(self, name: str, key: str) -> Executed | None:
        state = self._servers[name].state
        return None if state is None else state.executed.get(key, Executed(0, 0, ""))

    def _writes(self, name: str, key: str) -> bool:
        """Whether the server is the one that this source's newest transactions are from."""
        executed, source = self._executed(name, key), self._sources[key]
        return executed is not None and executed.writer == source.writer == self._servers[name].own

    def _settle(self, now: float) -> list[Observation]:
        """Compute the marks. Returns those that have changed, and all those of a source with a new lineage."""
        changes = []
        for key, source in self._sources.items():
            is_new = self._find_writer(key, source) or self._was_reset(key, source)
            if is_new:
                source.lineage += 1
            for name, share in source.shares.items():
                executed = self._executed(name, key)
                if executed is not None:
                    self._count(name, source, share, executed, now, is_new=is_new)
                elif is_new:
                    share.position = 0
            changes += self._marks(key, source, now, is_new=is_new)
        return changes

    def _find_writer(self, key: str, source: _Source) -> bool:
        """Find the server that writes now. Returns whether it has replaced another one."""
        seen = {name: one for name in self._servers if (one := self._executed(name, key)) and one.writer}
        source.replaced -= {self._servers[name].own for name, one in seen.items() if one.writer == source.writer}
        seen = {name: one for name, one in seen.items() if one.writer not in source.replaced}
        if not seen or any(self._writes(name, key) for name in seen):
            return False
        # A server that has written the newest transaction itself is the primary, or was one.
        newest = max(seen, key=lambda name: (seen[name].writer == self._servers[name].own, seen[name].position))
        before, writer = source.writer, seen[newest].writer
        if before == writer or (before and any(one.stale == _UNSEEN for one in self._servers.values())):
            return False
        source.writer = writer
        if before:
            source.replaced.add(before)
        return bool(before)

    def _was_reset(self, key: str, source: _Source) -> bool:
        """Whether the writer has forgotten transactions: it gives their numbers to others."""
        name = next((name for name, one in self._servers.items() if one.own == source.writer), None)
        executed = None if name is None else self._executed(name, key)
        if name is None or executed is None or source.shares[name].position <= executed.position:
            return False
        for other, share in source.shares.items():
            share.above = share.position if other != name and share.position > executed.position else None
        return True

    def _count(
        self, name: str, source: _Source, share: _Share, executed: Executed, now: float, *, is_new: bool
    ) -> None:
        state, before = self._servers[name].state, share.position
        assert state is not None
        if share.above is not None and executed.position < share.above:
            share.above = None
        is_gap = executed.newest > executed.position
        if not is_gap or executed.position != before or share.gap_since is None:
            share.gap_since = now if is_gap else None
        share.stale = ""
        if executed.writer not in ("", source.writer):
            share.stale = f"its last transaction is of server {executed.writer}; that of the group is {source.writer}"
        elif share.above is not None:
            share.stale = "it has transactions of before the reset of their source; rebuild it"
        else:
            share.position = executed.position
        if share.stale and is_new:
            share.position = 0
        elif not share.stale and is_gap and state.is_in_blocks and state.group == executed.writer:
            share.stale = "the group assigns numbers in blocks; set group_replication_gtid_assignment_block_size=1"
        elif not share.stale and share.gap_since is not None and now - share.gap_since > _GAP_S:
            share.stale = f"it lacks transaction {executed.position + 1}, but has later ones; see docs/mysql.md"
        if not share.stale:
            share.counted_at = now
        if share.position != before:
            source.moved_at = now
            if executed.writer == self._servers[name].own and before >= 0:
                self._wrote_at[executed.writer] = now

    def _why_ended(self, key: str, now: float) -> str:
        """Why no more transactions of a source come; empty if they may."""
        source = self._sources.get(key)
        if source is None or self.origin(key) is not None:
            return ""
        after = {own: at for own, at in self._wrote_at.items() if at > source.moved_at and own != source.writer}
        is_uuid = "-" in source.writer  # a domain of MariaDB goes on under another server
        if not is_uuid or not after or now - min(after.values()) < _ENDED_S:
            return ""
        return f"this source no longer writes; newer transactions are of {' and '.join(sorted(after))}"

    def _marks(self, key: str, source: _Source, now: float, *, is_new: bool) -> list[Observation]:
        marks = {name: share.position for name, share in source.shares.items()}
        members = [
            CountedReplica(
                name, share.position, min(share.counted_at, self._servers[name].seen_at),
                self._servers[name].stale or share.stale,
            )
            for name, share in source.shares.items()
            if self._servers[name].own != source.writer
        ]  # fmt: skip
        for kind in DERIVED:
            derived = derive(kind, members, self._quorum)
            marks[kind] = derived.position
            mark = f"{kind}/{key}"
            if derived.stale:
                since = source.derived[mark].seen_at if mark in source.derived else min(derived.seen_at, now)
                source.derived[mark] = StaleMark(mark, since, derived.stale)
            else:
                source.derived.pop(mark, None)
        changes = []
        for name, known in marks.items():
            mark = f"{name}/{key}"
            before = self._positions.get(mark, -1)
            if known < 0 and (before < 0 or not is_new):  # not known: it keeps what was published
                continue
            position = max(known, 0)
            if is_new or position != before:
                changes.append(Observation(mark, 0, position, source.identity, position < before))
                self._positions[mark] = position
        return changes
