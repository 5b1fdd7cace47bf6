"""The lineage of a mark, and the rules that decide whether an observation continues the lineage or breaks it.

The epoch of a lineage is the partition's leader epoch in the daemons. Each break increments it, so that waits and
tokens that name the old epoch fail (error 74) instead of being answered from another history.

Another source, or an earlier run of this one, may have published more than this run has seen. The mark is then
*unsettled*: nothing is published until this source has caught up, or until enough time has passed that its readings are
certainly newer than the published mark. Without this rule, a source that reads a second late would complete waits of
the new lineage with offsets of the old one, or would mistake its own delay for a break.
"""

from dataclasses import dataclass
from typing import Final

from purgatory_connectors.publisher.observation import Observation

RETIRED_MAX: Final = 16
"""Number of identities of earlier lineages to remember. They distinguish a late reading from a new lineage."""


@dataclass(slots=True)
class MarkLineage:
    """The state of one mark. `epoch` and `identity` belong to its current lineage."""

    epoch: int
    identity: str = ""
    floor: int = -1
    """The offset that a daemon has or an earlier run saw, and that this run has not reached yet; -1: none."""
    is_gone: bool = False
    """The mark existed and has been removed."""
    retired: tuple[str, ...] = ()
    """Identities of its earlier lineages."""
    offset: int = -1
    """The newest offset seen by this run; -1: none."""
    is_seen: bool = False
    """This run has seen the mark."""
    is_foreign: bool = False
    """The break that began this epoch was published by another source."""
    unsettled_until: float = 0.0
    """Time from which this source's readings must be newer than `floor`; seconds of the replicator's clock."""

    def apply(self, seen: Observation) -> bool:
        """Apply an observation. Returns False if it is already known or older than the current state."""
        offset = seen.offset
        identity = seen.identity
        if identity and identity in self.retired:
            return False
        if offset is None:
            return self._apply_removal()
        was_seen = self.is_seen
        self.is_seen = True
        if self.is_gone or (identity and self.identity and identity != self.identity):
            self.is_gone = False
            # A mark that this run had not seen before may have changed at any time since the last run. If it had
            # seen the mark, the source that published the foreign break saw this same change.
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
        """A daemon has more than this run has seen: offset `mark` in `epoch`."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.is_foreign = True
            self.floor = mark
        else:
            self.floor = max(self.floor, mark)
        self.unsettled_until = until

    def settle(self, now: float, sees_since: float) -> bool:
        """Whether the mark may be published. An offset that stays below the floor begins a new lineage.

        Args:
            now: Seconds of the replicator's clock.
            sees_since: Time from which readings are newer than the last outage; in the future during an outage.
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

    def _apply_removal(self) -> bool:
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
