"""Rules for positions: those that only rise, and marks derived from several replicas."""

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


class MarkMove(NamedTuple, Generic[Key]):
    """A mark's position; None: it is gone. `is_set_back`: it has become lower, or is gone."""

    mark: Key
    position: int | None
    is_set_back: bool = False


class RisingMarks(Generic[Key]):
    """Believes a position that is lower or missing once it was so twice: one such reading may come from a server that
    lags behind the one that answered before.

    Args:
        published: The positions that daemons have.
    """

    def __init__(self, published: Mapping[Key, int]) -> None:
        self._known = dict(published)
        self._lower: frozenset[Key] = frozenset()
        """Marks that were lower or missing in the last reading."""

    def apply(self, reading: Mapping[Key, int]) -> list[MarkMove[Key]]:
        """Apply a reading of all marks. Returns those that are believed, whether or not they have moved."""
        lower = frozenset(mark for mark, known in self._known.items() if reading.get(mark, -1) < known)
        doubted = lower - self._lower
        believed = (self._known.keys() | reading.keys()) - doubted
        self._known = {mark: self._known[mark] for mark in doubted} | {
            mark: reading[mark] for mark in believed & reading.keys()
        }
        self._lower = doubted
        return [MarkMove(mark, reading.get(mark), mark in lower) for mark in believed]


ANY: Final = "any"
ALL: Final = "all"
QUORUM: Final = "quorum"
DERIVED: Final = (ANY, ALL, QUORUM)


class CountedReplica(NamedTuple):
    """A replica that counts in derived marks."""

    name: str
    position: int
    """Last known replay position; -1: never seen."""
    seen_at: float
    """Time of the last reading."""
    stale: str
    """Why it cannot be seen now; empty: it can."""


class StaleMark(NamedTuple):
    """A mark that cannot be seen now, when it was last seen, and why. With `is_prefix`: all marks with this prefix."""

    mark: str
    seen_at: float
    reason: str
    is_prefix: bool = False


class Derived(NamedTuple):
    position: int
    """-1: not known yet."""
    stale: str
    """Why the mark cannot move; empty: it can."""
    seen_at: float
    """Last time at which it could have moved; infinite if no replica can move it."""


def majority(count: int) -> int:
    return count // 2 + 1


def derive(kind: str, members: Sequence[CountedReplica], quorum: int | None) -> Derived:
    """Compute a derived mark. `quorum` is the number of replicas in a quorum; None: the majority.

    The last position of a member that cannot be seen still counts, because it has replayed that much. The mark is stale
    if only such members could move it.
    """
    if not members:
        return Derived(-1, "there is no replica", inf)
    needed = {ANY: 1, ALL: len(members)}.get(kind, majority(len(members)) if quorum is None else quorum)
    if needed > len(members):
        return Derived(-1, f"a quorum is {needed} replicas, and there are {len(members)}", inf)
    position = sorted((member.position for member in members), reverse=True)[needed - 1]
    seen_at = sorted((member.seen_at for member in members), reverse=True)[needed - 1]
    stale = [member for member in members if member.stale]
    if len(members) - len(stale) >= needed:
        return Derived(position, "", seen_at)
    return Derived(position, "; ".join(f"{member.name}: {member.stale}" for member in stale), seen_at)
