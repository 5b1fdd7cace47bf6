"""Committed offsets of consumer groups as marks: decides which value counts if the records and a coordinator differ.

No I/O: readers pass in their readings, and changes are returned. Names are (group, topic, partition).

There are two readers. The records of `__consumer_offsets` arrive in order but may be late: an open transaction delays
everything after it, and a broker that is down delays its partitions. A group's coordinator knows the current offset,
but its answer cannot be ordered relative to the records. An answer therefore counts only while the records are known to
be older. It is passed with a *fence*: the end of the group's partition of `__consumer_offsets`, read after the answer.
Once the records have been read up to the fence, they count again. An answer that would move a mark back is accepted
only if the next answer repeats it.

A mark may be above the committed offset if it was *proved* that no visible record exists between the two. A later
commit at or above the last committed offset is then not a reset.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from purgatory_connectors.kafka.offset_records import CommitName
from purgatory_connectors.publisher.mark_rules import MarkMove

GroupMove = MarkMove[CommitName]
NO_COMMIT: Final = -1
"""Replaces a committed offset if the group has none, but there is nothing to read below its mark."""


class UncertainOffset(NamedTuple):
    """A daemon has a mark above the committed offset, and it is not known yet whether the group was reset."""

    name: CommitName
    committed: int
    published: int


@dataclass(slots=True)
class _Mark:
    committed: int
    """The offset that counts."""
    moved_at: float
    proved: int
    streamed: int | None = None
    """The last offset in the records. It is held back until they have been read up to `fence`."""
    fence: int = 0
    ignored: int = -1
    published_above: int | None = None
    """Uncertain: the mark that a daemon has, above the committed offset."""


class GroupMarks:
    """The marks of all groups of a cluster. `partition_count`: of `__consumer_offsets`; 0 if the topic is not read."""

    def __init__(self, partition_count: int = 0) -> None:
        self.partition_count = partition_count
        self._marks: Final[dict[CommitName, _Mark]] = {}
        self._by_group: Final[defaultdict[str, set[CommitName]]] = defaultdict(set)
        self._by_topic: Final[defaultdict[str, set[CommitName]]] = defaultdict(set)
        self._fenced: Final[defaultdict[int, set[CommitName]]] = defaultdict(set)
        self._positions: Final[dict[int, int]] = {}
        self._steps_back: Final[dict[CommitName, int | None]] = {}
        self._published: Final[dict[CommitName, int]] = {}

    def remember_published(self, published: Mapping[CommitName, int]) -> None:
        """Set the marks that daemons have from an earlier run. Call this before anything is read."""
        self._published.update(published)

    def loaded(
        self, partition: int, values: Mapping[CommitName, int], position: int, now: float
    ) -> tuple[list[GroupMove], list[UncertainOffset]]:
        """A partition of `__consumer_offsets` was read from its beginning to `position`; `values` is its whole content.

        Marks that daemons have above these values are kept and returned as uncertain, to be settled. Names without a
        value are gone.
        """
        changes, doubts = [], []
        known = [name for name, mark in self._marks.items() if mark.committed != NO_COMMIT]
        for name in {name for name in known if self.partition_of(name[0]) == partition} - values.keys():
            changes += self._move(name, None, now)
        for name in [name for name in self._published if self.partition_of(name[0]) == partition]:
            published = self._published.pop(name)
            offset = values.get(name)
            if offset is None:
                changes.append(MarkMove(name, None))
            elif name not in self._marks and offset < published:
                self._add(name, offset, now).published_above = published
                doubts.append(UncertainOffset(name, offset, published))
        for name, offset in values.items():
            mark = self._marks.get(name)
            if mark is None or mark.published_above is None:
                changes += self._move(name, offset, now)
        return changes + self.read_to(partition, position, now), doubts

    def settled(self, doubt: UncertainOffset, *, is_drained: bool, now: float) -> list[GroupMove]:
        """Settle an uncertain mark. `is_drained`: no visible record exists between the committed offset and the mark,
        so it stays.
        """
        mark = self._marks.get(doubt.name)
        if mark is None or mark.published_above != doubt.published:
            return []  # settled by a later commit
        # Commits below the daemon's mark settle nothing, and need not: if the group was never reset, no visible
        # record is above any offset that it has committed since.
        mark.published_above = None
        if is_drained:
            mark.proved = doubt.published
            return []
        mark.moved_at = now
        return [MarkMove(doubt.name, mark.committed, is_set_back=True)]

    def committed(self, partition: int, values: Mapping[CommitName, int | None], now: float) -> list[GroupMove]:
        """Apply the last record of each name in a partition of `__consumer_offsets`, in order. None: a tombstone."""
        changes = []
        fenced = self._fenced.get(partition)
        for name, offset in values.items():
            if fenced and name in fenced:
                self._marks[name].streamed = offset
            else:
                changes += self._move(name, offset, now)
        return changes

    def read_to(self, partition: int, position: int, now: float) -> list[GroupMove]:
        """All records of a partition of `__consumer_offsets` below `position` have been passed in."""
        self._positions[partition] = position
        changes = []
        for name in [name for name in self._fenced.get(partition, ()) if self._marks[name].fence <= position]:
            self._fenced[partition].discard(name)
            changes += self._move(name, self._marks[name].streamed, now)
        return changes

    def position(self, partition: int) -> int:
        """Position up to which a partition of `__consumer_offsets` has been read; -1: not read yet."""
        return self._positions.get(partition, -1)

    def differs(self, group: str, values: Mapping[CommitName, int]) -> bool:
        """Whether a coordinator's answer differs from the current offsets."""
        names = self._by_group.get(group, set())
        known = {name: mark.committed for name in names if (mark := self._marks[name]).committed != NO_COMMIT}
        return known != dict(values)

    def polled(self, group: str, values: Mapping[CommitName, int], fence: int | None, now: float) -> list[GroupMove]:
        """Apply all offsets of a group from its coordinator. `fence`: see the module; None if the topic is not read."""
        partition = self.partition_of(group)
        if fence is not None and self.position(partition) >= fence:
            return []
        changes = []
        for name in self._by_group.get(group, set()) | values.keys():
            offset = values.get(name)
            published = self._published.pop(name, None) if fence is None else None
            mark = self._marks.get(name)
            if mark is None and offset is not None and published is not None and offset < published:
                mark = self._add(name, offset, now)
                mark.published_above = published
                continue
            if not self._is_believed(name, mark, offset):
                continue
            if fence is not None and (offset is not None or mark is not None):
                self._set_fence(name, offset, fence, partition, now)
            changes += self._move(name, offset, now)
        return changes

    def question(self, name: CommitName, published: int) -> list[UncertainOffset]:
        """A daemon that connected later has this mark, above the known value. Empty if it is uncertain already."""
        mark = self._marks.get(name)
        if mark is None or mark.published_above is not None or published <= max(mark.committed, mark.proved):
            return []
        mark.published_above = published
        return [UncertainOffset(name, mark.committed, published)]

    def doubts(self, groups: Iterable[str]) -> list[UncertainOffset]:
        names = (name for group in groups for name in self._by_group.get(group, ()))
        marks = ((name, self._marks[name]) for name in names)
        return [
            UncertainOffset(name, mark.committed, published)
            for name, mark in marks
            if (published := mark.published_above) is not None
        ]

    def prove(self, name: CommitName, committed: int, end: int) -> list[GroupMove]:
        """Record a proof that no visible record exists from `committed` (NO_COMMIT: the beginning) up to `end`."""
        mark = self._marks.get(name)
        if mark is None:
            if committed != NO_COMMIT:
                return []
            mark = self._add(name, NO_COMMIT, 0)
        if mark.published_above is not None or mark.committed < committed or end <= max(mark.committed, mark.proved):
            return []
        mark.proved = end
        return [MarkMove(name, end)]

    def cut(self, topic: str, partition: int, end: int, now: float) -> list[GroupMove]:
        """A log was truncated: offsets committed above its new end belong to records that are gone."""
        changes = []
        for name in self._by_topic.get(topic, ()):
            mark = self._marks[name]
            if name[2] == partition and max(mark.committed, mark.proved) > end:
                # Its consumers may commit the old offset once more before they notice that their position is gone.
                mark.ignored = mark.committed if mark.committed > end else -1
                mark.committed = min(mark.committed, end)
                mark.proved, mark.moved_at, mark.published_above = mark.committed, now, None
                changes.append(MarkMove(name, mark.committed, is_set_back=True))
        return changes

    def forget_topic(self, topic: str, now: float) -> tuple[list[GroupMove], set[str]]:
        """A topic was deleted or replaced: remove all marks on it. Also returns the groups that had some."""
        names, groups = list(self._by_topic.get(topic, ())), self.groups_on(topic)
        return [change for name in names for change in self._move(name, None, now)], groups

    def get(self, name: CommitName) -> tuple[int, int, float] | None:
        """(committed offset, mark, time of the last move) of a name."""
        mark = self._marks.get(name)
        return None if mark is None else (mark.committed, max(mark.committed, mark.proved), mark.moved_at)

    def committed_names(self, group: str) -> set[CommitName]:
        return {name for name in self._by_group.get(group, ()) if self._marks[name].committed != NO_COMMIT}

    def groups_on(self, topic: str) -> set[str]:
        return {name[0] for name in self._by_topic.get(topic, ())}

    def groups(self) -> set[str]:
        return set(self._by_group)

    def partition_of(self, group: str) -> int:
        """Partition of `__consumer_offsets` for a group, from Java's hash of its id; -1: the topic is not read."""
        return -1 if self.partition_count == 0 else _java_hash(group) % self.partition_count

    def _move(self, name: CommitName, offset: int | None, now: float) -> list[GroupMove]:
        """Apply an offset that counts."""
        mark = self._marks.get(name)
        if offset is None:
            return [] if mark is None else self._remove(name)
        if mark is None:
            self._add(name, offset, now)
            return [MarkMove(name, offset)]
        if offset == mark.ignored:
            return []
        mark.ignored = -1
        if mark.published_above is not None:
            return self._move_in_doubt(name, mark, offset, now)
        if offset < mark.committed:
            mark.committed = mark.proved = offset
            mark.moved_at = now
            return [MarkMove(name, offset, is_set_back=True)]
        if offset == mark.committed:
            return []
        mark.committed, mark.moved_at = offset, now
        if offset <= mark.proved:
            return []
        mark.proved = offset
        return [MarkMove(name, offset)]

    @staticmethod
    def _move_in_doubt(name: CommitName, mark: _Mark, offset: int, now: float) -> list[GroupMove]:
        published = mark.published_above
        assert published is not None, f"{name} is not in doubt"
        mark.moved_at = now if offset != mark.committed else mark.moved_at
        is_set_back, mark.committed = offset < mark.committed, offset
        if offset >= published or is_set_back:
            mark.published_above, mark.proved = None, offset
            return [MarkMove(name, offset, is_set_back=is_set_back)]
        return []

    def _is_believed(self, name: CommitName, mark: _Mark | None, offset: int | None) -> bool:
        """Whether a coordinator's answer counts: a move forward at once, a move back once it has been repeated."""
        if mark is not None and mark.committed == NO_COMMIT and offset is None:
            return False
        if mark is None or (offset is not None and offset >= mark.committed):
            self._steps_back.pop(name, None)
            return True
        if name in self._steps_back and self._steps_back[name] == offset:
            del self._steps_back[name]
            return True
        self._steps_back[name] = offset
        return False

    def _set_fence(self, name: CommitName, offset: int | None, fence: int, partition: int, now: float) -> None:
        mark = self._marks.get(name)
        if mark is None:
            assert offset is not None, f"{name} has no mark"
            mark = self._add(name, NO_COMMIT, now)  # the records do not contain it yet
        elif not mark.fence or name not in self._fenced[partition]:
            mark.streamed = mark.committed
        mark.fence = fence
        self._fenced[partition].add(name)

    def _add(self, name: CommitName, offset: int, now: float) -> _Mark:
        mark = self._marks[name] = _Mark(offset, now, offset)
        self._by_group[name[0]].add(name)
        self._by_topic[name[1]].add(name)
        return mark

    def _remove(self, name: CommitName) -> list[GroupMove]:
        del self._marks[name]
        for index, key in ((self._by_group, name[0]), (self._by_topic, name[1])):
            index[key].discard(name)
            if not index[key]:
                del index[key]
        self._fenced[self.partition_of(name[0])].discard(name)
        self._steps_back.pop(name, None)
        return [MarkMove(name, None)]


def _java_hash(text: str) -> int:
    """The absolute value of Java's string hash, as Kafka computes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return 0 if value == -(1 << 31) else abs(value)
