"""Marks derived from several replicas: the position that any, all or a quorum of them have replayed."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

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


class Derived(NamedTuple):
    position: int
    """-1: not known yet."""
    stale: str
    """Why the mark cannot move; empty: it can."""
    seen_at: float
    """Last time at which it could have moved; infinite if no replica can move it."""


def majority(count: int) -> int:
    """The smallest number of members that is a majority."""
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
