"""The marks of several replicas together: what any, all and a quorum of them have replayed."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

ANY: Final = "any"
ALL: Final = "all"
QUORUM: Final = "quorum"
DERIVED: Final = (ANY, ALL, QUORUM)


class CountedReplica(NamedTuple):
    """A replica that counts."""

    name: str
    position: int
    """What it has replayed, as last seen; -1 if it was never seen."""
    seen_at: float
    """When."""
    stale: str
    """Why it cannot be seen now; empty if it can."""


class Derived(NamedTuple):
    position: int
    """-1: unknown yet."""
    stale: str
    """Why it stands still; empty if it does not."""
    seen_at: float
    """When it could last have moved; infinite if there is nothing it could come from."""


def majority(count: int) -> int:
    """The smallest number of members that is more than half of them."""
    return count // 2 + 1


def derive(kind: str, members: Sequence[CountedReplica], quorum: int | None) -> Derived:
    """A derived mark of these members. `quorum` is how many make one; None: the majority.

    Positions of members that cannot be seen count as they were: they have replayed that much. The mark is stale where
    it could move only by those.
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
