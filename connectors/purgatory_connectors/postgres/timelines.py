"""The history shared by the servers of one name: the system they were created from, and its timelines.

A promotion begins a new timeline at a position called the fork. Everything on the old timeline above the fork is lost,
and positions there mean something else from then on. All marks of a name belong to one lineage, named by its
`identity`. The position of a server on an older timeline counts up to the fork, because both timelines contain the same
records up to there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

from purgatory_client.sources.log_positions import lsn_of_offset, offset_of_lsn

_IDENTITY: Final = re.compile(r"(([0-9]+)/([0-9]+)(?:\.([0-9]+))?)(?:#[0-9]+)?")


def forks_of(history: str) -> dict[int, int]:
    """The end of each ancestor timeline, from the text of a .history file."""
    lines = (line.split("#")[0].split() for line in history.splitlines())
    return {int(words[0]): offset_of_lsn(words[1]) for words in lines if len(words) >= 2}


def newest_identity(identities: Iterable[str]) -> str:
    """The identity of the most recent break published by an earlier run; empty if there is none."""
    found = [(int(match[3]), int(match[4] or 0), match[1]) for one in identities if (match := _IDENTITY.fullmatch(one))]
    return max(found, default=(0, 0, ""))[2]


class Timelines:
    """The system and timeline of the marks, and the forks between its timelines."""

    def __init__(self, system_id: int, timeline: int) -> None:
        self.system_id: Final = system_id
        self.timeline = timeline
        """The newest timeline seen."""
        self._broken_at = timeline
        self._renewals = 0
        self._forks: dict[int, int] = {}

    @classmethod
    def of_identity(cls, identity: str) -> Self | None:
        """The lineage with this identity; None if the identity has another form."""
        match = _IDENTITY.fullmatch(identity)
        if match is None:
            return None
        lineage = cls(int(match[2]), int(match[3]))
        lineage._renewals = int(match[4] or 0)
        return lineage

    @property
    def identity(self) -> str:
        """SYSTEM/TIMELINE, followed by .N after N further breaks on the same timeline. Changes with each break."""
        name = f"{self.system_id}/{self._broken_at}"
        return f"{name}.{self._renewals}" if self._renewals else name

    def other_system(self, system_id: int) -> str:
        """Why a server of this system does not belong to the group; empty if it does."""
        if system_id == self.system_id:
            return ""
        return f"another system answers at this address: its identifier is {system_id}, not {self.system_id}"

    def switch(self, timeline: int, forks: Mapping[int, int] | None, fork_at_least: int) -> int:
        """Move to a newer timeline. Returns the end of the previous one; 0 if it is unknown.

        Args:
            timeline: The new timeline.
            forks: The ends of earlier timelines from its history file; None if the file may not be read.
            fork_at_least: Used without `forks`: the last position seen of the promoted server on the old timeline.
        """
        assert timeline > self.timeline, (timeline, self.timeline)
        known = {**self._forks, self.timeline: fork_at_least} if forks is None else dict(forks)
        self._forks = known
        fork = known.get(self.timeline, 0)
        self.timeline = timeline
        return fork

    def learn_forks(self, forks: Mapping[int, int] | None) -> None:
        """Store the current timeline's history if it was read only after the switch."""
        if forks is not None and not self._forks:
            self._forks = dict(forks)

    def break_here(self) -> None:
        """Begin a new lineage: values published until now do not apply to later ones."""
        if self._broken_at == self.timeline:
            self._renewals += 1
        else:
            self._broken_at, self._renewals = self.timeline, 0

    def shared(self, timeline: int, position: int) -> int:
        """The part of `position` on this timeline that belongs to the current history; 0 if it is unknown."""
        return position if timeline == self.timeline else min(position, self._forks.get(timeline, 0))

    def left_behind(self, timeline: int) -> str:
        """Why a server on an older timeline does not count."""
        fork = self._forks.get(timeline)
        where = f", which was left at {lsn_of_offset(fork)}" if fork else ""
        return f"it is on timeline {timeline}{where}; the newest is {self.timeline}"
