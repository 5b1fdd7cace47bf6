"""Which history the servers of one name share: the system they were made of, and its timelines.

A promotion begins a new timeline at some position, the fork. What the old timeline had above it is lost, and positions
there mean something else from then on. All marks of a name belong to one lineage, named by its `identity`; positions of
servers that are still on an older timeline count as far as the fork, because up to there both have the same records.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Self

from purgatory_client.sources.log_positions import lsn_of_offset, offset_of_lsn

_IDENTITY: Final = re.compile(r"(([0-9]+)/([0-9]+)(?:\.([0-9]+))?)(?:#[0-9]+)?")


def forks_of(history: str) -> dict[int, int]:
    """Where each timeline before was left, from the text of a timeline's .history file."""
    lines = (line.split("#")[0].split() for line in history.splitlines())
    return {int(words[0]): offset_of_lsn(words[1]) for words in lines if len(words) >= 2}


def newest_identity(identities: Iterable[str]) -> str:
    """That of the last break among those that an earlier run has told; empty if there is none."""
    found = [(int(match[3]), int(match[4] or 0), match[1]) for one in identities if (match := _IDENTITY.fullmatch(one))]
    return max(found, default=(0, 0, ""))[2]


class Timelines:
    """The system and timeline that marks belong to, and where its timelines forked."""

    def __init__(self, system_id: int, timeline: int) -> None:
        self.system_id: Final = system_id
        self.timeline = timeline
        """The newest one seen."""
        self._broken_at = timeline
        self._renewals = 0
        self._forks: dict[int, int] = {}

    @classmethod
    def of_identity(cls, identity: str) -> Self | None:
        """The lineage that an earlier run gave this name. None if it is no such name."""
        match = _IDENTITY.fullmatch(identity)
        if match is None:
            return None
        lineage = cls(int(match[2]), int(match[3]))
        lineage._renewals = int(match[4] or 0)
        return lineage

    @property
    def identity(self) -> str:
        """Changes with each break: "SYSTEM/TIMELINE", and how often that had to be renewed."""
        name = f"{self.system_id}/{self._broken_at}"
        return f"{name}.{self._renewals}" if self._renewals else name

    def other_system(self, system_id: int) -> str:
        """Why a server of this system does not belong here; empty if it does."""
        if system_id == self.system_id:
            return ""
        return f"another system answers at this address: its identifier is {system_id}, not {self.system_id}"

    def switch(self, timeline: int, forks: Mapping[int, int] | None, fork_at_least: int) -> int:
        """A newer timeline was seen. Returns where it left the one before: 0 if nobody can say.

        `forks` are those of its history file, None if that may not be read. Then `fork_at_least` counts: what
        the promoted server was seen to have of the old timeline.
        """
        assert timeline > self.timeline, (timeline, self.timeline)
        known = {**self._forks, self.timeline: fork_at_least} if forks is None else dict(forks)
        self._forks = known
        fork = known.get(self.timeline, 0)
        self.timeline = timeline
        return fork

    def learn_forks(self, forks: Mapping[int, int] | None) -> None:
        """The current timeline's history, read after the switch to it."""
        if forks is not None and not self._forks:
            self._forks = dict(forks)

    def break_here(self) -> None:
        """What was said of the history until now does not hold for what comes: a new identity."""
        if self._broken_at == self.timeline:
            self._renewals += 1
        else:
            self._broken_at, self._renewals = self.timeline, 0

    def shared(self, timeline: int, position: int) -> int:
        """How much of what a server on this timeline has at `position` is of the current history. 0: nobody can say."""
        return position if timeline == self.timeline else min(position, self._forks.get(timeline, 0))

    def left_behind(self, timeline: int) -> str:
        """Why a server on an older timeline does not count."""
        fork = self._forks.get(timeline)
        where = f", which was left at {lsn_of_offset(fork)}" if fork else ""
        return f"it is on timeline {timeline}{where}; the newest is {self.timeline}"
