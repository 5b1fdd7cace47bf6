"""The state of a primary and its replicas, and the marks derived from it. No I/O; times are passed in.

A replication offset counts the bytes of one history, which its replication id names. A promotion begins another history
at an offset that the new primary states; what the old one had above it is lost. All marks belong to the history of the
primary, so a promotion breaks all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from purgatory_connectors.publisher.mark_rules import DERIVED, CountedReplica, Derived, derive
from purgatory_connectors.publisher.observation import Observation

_UNSEEN: Final = "it has not answered yet"


class ServerState(NamedTuple):
    """The answer of a server. `earlier`: the history that it continued, up to the offset `fork`."""

    is_primary: bool
    history: str
    position: int
    earlier: str = ""
    fork: int = 0


@dataclass(slots=True)
class _Server:
    position: int
    seen_at: float
    stale: str = _UNSEEN
    state: ServerState | None = None


class ReplicaGroup:
    """The servers of one name.

    Args:
        servers: Their names.
        quorum: Number of replicas in a quorum; None: the majority.
        published: Positions that daemons have, by mark.
        histories: The last history of an earlier run, if it is known, after the abandoned ones.
        now: Start time of this run.
    """

    def __init__(
        self,
        servers: Sequence[str],
        quorum: int | None,
        published: Mapping[str, int],
        histories: Sequence[str],
        now: float,
    ) -> None:
        self._servers: Final = {name: _Server(published.get(name, -1), now) for name in servers}
        self._quorum: Final = quorum
        self._positions: Final = dict(published)
        self._stale: dict[str, tuple[float, str]] = {}
        self._abandoned: Final = set(histories[:-1])
        self._leader: str | None = None
        """The primary of the current history, seen or not."""
        self._is_split = False
        self.history = histories[-1] if histories else ""
        self._settle(now)

    def observe(self, name: str, state: ServerState, now: float) -> list[Observation]:
        """A server has answered. Returns what has changed, with the marks as topics."""
        server = self._servers[name]
        server.state, server.seen_at = state, now
        is_new = self._find_primary()
        for one in self._servers.values():
            if one.state is not None:
                one.stale = self._why_stale(one.state)
        if not server.stale:
            server.position = state.position
        return self._settle(now, is_new=is_new)

    @property
    def primary(self) -> str | None:
        return self._leader if self._leader and not self._servers[self._leader].stale else None

    def mark_stale(self, name: str, reason: str, now: float) -> list[Observation]:
        self._servers[name].state, self._servers[name].stale = None, reason
        return self._settle(now, is_new=self._find_primary())

    def stale(self) -> Mapping[str, tuple[float, str]]:
        """The marks that cannot be seen: when they were last seen, and why."""
        return self._stale

    def _find_primary(self) -> bool:
        """Find the primary. Returns whether its history is another one than before."""
        seen = {name: one.state for name, one in self._servers.items() if one.state is not None}
        primaries = {name: one for name, one in seen.items() if one.is_primary and one.history not in self._abandoned}
        continued = {one.earlier for one in primaries.values()}
        newest = [name for name, one in primaries.items() if one.history not in continued]
        self._is_split = len(newest) > 1
        if len(newest) != 1:
            return False
        state = primaries[newest[0]]
        continues = self.history in {"", state.history, state.earlier}
        if not continues and any(one.state is None and one.stale == _UNSEEN for one in self._servers.values()):
            return False  # the known primary may be among the servers that have not answered yet
        self._leader = newest[0]
        if state.history == self.history:
            return False
        fork = state.fork if state.earlier == self.history else 0
        if self.history:
            self._abandoned.add(self.history)
            for server in self._servers.values():
                server.position = min(server.position, fork)
            for mark, position in self._positions.items():
                self._positions[mark] = min(position, fork)
        self.history = state.history
        return True

    def _why_stale(self, state: ServerState) -> str:
        if state.history in self._abandoned:
            return "its history was ended by a promotion; make it a replica of the new primary, or restart it"
        if self._is_split:
            return "two servers are primaries, and neither continues the history of the other"
        return "" if state.history == self.history else "it follows another history than the last known primary"

    def _settle(self, now: float, *, is_new: bool = False) -> list[Observation]:
        """Compute the marks and return those that have changed, or all of them for a new history."""
        replicas = {name: one for name, one in self._servers.items() if name != self._leader}
        members = [CountedReplica(name, one.position, one.seen_at, one.stale) for name, one in replicas.items()]
        marks = {name: (one.position, one.seen_at, one.stale) for name, one in self._servers.items()}
        for kind in DERIVED:
            derived = derive(kind, members, self._quorum)
            if self._leader is None:  # any of them may be the primary, which does not count
                derived = Derived(-1, "no primary is known yet", now)
            marks[kind] = (derived.position, min(derived.seen_at, now), derived.stale)
        before = dict(self._positions)
        self._positions.update({mark: at for mark, (at, _, _) in marks.items() if at >= 0})
        # A server whose answers do not count has just been seen, but its mark has been stale since it last counted.
        self._stale = {
            mark: (min(seen_at, self._stale[mark][0]) if mark in self._stale else seen_at, reason)
            for mark, (_, seen_at, reason) in marks.items()
            if reason
        }
        return [
            Observation(mark, 0, at, self.history, not is_new and at < before.get(mark, -1))
            for mark, at in self._positions.items()
            if is_new or at != before.get(mark)
        ]
