"""The history that a mark belongs to, and the rules by which an observation goes on with it or breaks it.

A lineage's epoch is the partition's leader epoch in the daemons. It goes up by one at each break, so that waits and
tokens which name it end (74) instead of being answered from another history.

Another source, or an earlier run of this one, may have told a daemon more than this one has seen. Then nothing is
told of the mark until this source has caught up with that, or enough time has passed that what it sees must be newer:
it is *unsettled*. Without that, a source that reads a second late would answer waits of the new lineage by offsets of
the old, or take its own delay for a break.
"""

from __future__ import annotations

from typing import Final

from purgatory_sources.publisher.observation import Observation

RETIRED_MAX: Final = 16
"""Identities of earlier lineages that are remembered, to know what is late from what is new."""


class MarkLineage:
    """What is known of one mark. `epoch` and `identity` are of its present lineage.

    Attributes:
        offset: The newest seen, by this run; -1: nothing.
        is_seen: This run has seen it.
        is_gone: It was there once and is not now.
        retired: Identities of its earlier lineages.
        floor: What a daemon has, or an earlier run saw, and this run not yet; -1: nothing.
        is_foreign: Somebody else told of the break with which the epoch began.
        unsettled_until: When what this source sees must be newer than `floor`, in the replicator's seconds.
    """

    __slots__ = (
        "epoch",
        "floor",
        "identity",
        "is_foreign",
        "is_gone",
        "is_seen",
        "offset",
        "retired",
        "unsettled_until",
    )

    def __init__(
        self, epoch: int, identity: str = "", *, floor: int = -1, is_gone: bool = False, retired: tuple[str, ...] = ()
    ) -> None:
        self.epoch = epoch
        self.identity = identity
        self.offset = -1
        self.is_seen = False
        self.is_gone = is_gone
        self.retired = retired
        self.floor = floor
        self.is_foreign = False
        self.unsettled_until = 0.0

    def take(self, seen: Observation) -> bool:
        """Go on with what was seen. False: it is known already, or older than what is."""
        offset = seen.offset
        identity = seen.identity
        if identity and identity in self.retired:
            return False
        if offset is None:
            return self._take_gone()
        was_seen = self.is_seen
        self.is_seen = True
        if self.is_gone:
            self.is_gone = False
            self._begin(identity, offset, is_break=not (self.is_foreign and was_seen))
            return True
        if identity and self.identity and identity != self.identity:
            # What this run has not seen before may have changed at any time since; of what it has seen, whoever told of
            # the foreign break saw the same change.
            self._begin(identity, offset, is_break=not (self.is_foreign and was_seen))
            return True
        if was_seen and offset < self.offset:
            if not seen.is_set_back_to:
                return False
            self._begin(identity or self.identity, offset, is_break=not self.is_foreign)
            return True
        self.identity = self.identity or identity
        if was_seen and offset == self.offset:
            return False
        self.offset = offset
        return True

    def fast_forward(self, epoch: int, mark: int, until: float) -> None:
        """A daemon has more than this run has seen: `mark` in `epoch`."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.is_foreign = True
            self.floor = mark
        else:
            self.floor = max(self.floor, mark)
        self.unsettled_until = until

    def settle(self, now: float, sees_since: float) -> bool:
        """Whether it may be told. What turns out to be lower than the floor for good begins a new lineage.

        Args:
            now: In the replicator's seconds.
            sees_since: From then on what the source sees is newer than it; in the future while it sees nothing.
        """
        if self.floor < 0 and not self.is_foreign:
            return True
        if not self.is_seen:
            return False
        if self.is_foreign or self.is_gone or self.offset < self.floor:
            if now < self.unsettled_until or now < sees_since:
                return False
            if self.offset < self.floor and not self.is_gone:
                self._begin(self.identity, self.offset, is_break=True)
        self.floor = -1
        self.is_foreign = False
        return True

    def _take_gone(self) -> bool:
        if self.is_gone and self.is_seen:
            return False
        self.is_seen = True
        self.is_gone = True
        self.offset = -1
        self._retire()
        self.identity = ""
        return True

    def _begin(self, identity: str, offset: int, *, is_break: bool) -> None:
        if identity != self.identity:
            self._retire()
        self.identity = identity
        self.offset = offset
        if is_break:
            self.epoch += 1
            self.floor = -1
            self.is_foreign = False

    def _retire(self) -> None:
        if self.identity:
            self.retired = (*self.retired, self.identity)[-RETIRED_MAX:]
