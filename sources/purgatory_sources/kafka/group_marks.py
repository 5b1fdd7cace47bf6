"""What consumer groups have committed, as marks: which word counts where a topic's records and a coordinator differ.

No input or output: readers bring what they saw, changes come out. Names are (group, topic, partition).

Two readers bring offsets. The records of `__consumer_offsets` come in order, but may come late: an open transaction
holds back all that follows it, and a broker that is away all of its partition. A group's coordinator knows what counts
now, but its answer says nothing of the order in which it and the records came to be. So an answer counts only while the
records are known to be behind it: it is given with a *fence*, the end of the group's partition of `__consumer_offsets`
as seen after the answer; once the records have been read up to there, they count again. An answer that a mark should go
back is believed when the next one says the same.

A mark may stand above the offset that was committed: where it was *proved* that no visible record lies between. A later
commit at or above the last committed offset is then no step back.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from purgatory_sources.kafka.offset_records import CommitName

NO_COMMIT: Final = -1
"""In place of a committed offset: the group has none, but nothing that it could read lies below its mark."""


class MarkMove(NamedTuple):
    """A mark that has moved. `offset` None: it is gone."""

    name: CommitName
    offset: int | None
    is_set_back: bool = False


class UncertainOffset(NamedTuple):
    """A daemon has a mark above what is committed, and nobody knows yet whether the group was set back meanwhile."""

    name: CommitName
    committed: int
    published: int


class _Mark:
    """`committed` is what counts; `streamed` what the records said last, while `fence` keeps them from counting."""

    __slots__ = ("committed", "fence", "ignored", "moved_ms", "proved", "published_above", "streamed")

    def __init__(self, committed: int, moved_ms: int) -> None:
        self.committed = committed
        self.proved = committed
        self.moved_ms = moved_ms
        self.fence = 0
        self.streamed: int | None = None
        self.ignored = -1
        self.published_above: int | None = None  # in doubt: the mark that a daemon has, above what is committed


class GroupMarks:
    """The marks of all groups of a cluster. `partition_count`: of `__consumer_offsets`, 0 where it is not read."""

    def __init__(self, partition_count: int = 0) -> None:
        self.partition_count = partition_count
        self._marks: Final[dict[CommitName, _Mark]] = {}
        self._by_group: Final[defaultdict[str, set[CommitName]]] = defaultdict(set)
        self._by_log: Final[defaultdict[tuple[str, int], set[CommitName]]] = defaultdict(set)
        self._fenced: Final[defaultdict[int, set[CommitName]]] = defaultdict(set)
        self._positions: Final[dict[int, int]] = {}
        self._steps_back: Final[dict[CommitName, int | None]] = {}
        self._published: Final[dict[CommitName, int]] = {}

    def remember_published(self, published: Mapping[CommitName, int]) -> None:
        """What daemons have of an earlier run of a source. Call before anything was read."""
        self._published.update(published)

    def loaded(
        self, partition: int, values: Mapping[CommitName, int], position: int, now_ms: int
    ) -> tuple[list[MarkMove], list[UncertainOffset]]:
        """A partition of `__consumer_offsets` was read from its beginning to `position`: `values` is all that it has.

        What daemons have above that is left alone and given as doubts, to be settled; what is not there any more is
        gone.
        """
        changes, doubts = [], []
        known = [name for name, mark in self._marks.items() if mark.committed != NO_COMMIT]
        for name in {name for name in known if self.partition_of(name[0]) == partition} - values.keys():
            changes += self._move(name, None, now_ms)
        for name in [name for name in self._published if self.partition_of(name[0]) == partition]:
            published = self._published.pop(name)
            offset = values.get(name)
            if offset is None:
                changes.append(MarkMove(name, None))
            elif name not in self._marks and offset < published:
                self._add(name, offset, now_ms).published_above = published
                doubts.append(UncertainOffset(name, offset, published))
        for name, offset in values.items():
            mark = self._marks.get(name)
            if mark is None or mark.published_above is None:
                changes += self._move(name, offset, now_ms)
        return changes + self.read_to(partition, position, now_ms), doubts

    def settled(self, doubt: UncertainOffset, *, is_drained: bool, now_ms: int) -> list[MarkMove]:
        """Whether no visible record lies between what is committed and the mark of a doubt. If so the mark stays."""
        mark = self._marks.get(doubt.name)
        if mark is None or mark.published_above != doubt.published:
            return []  # commits have come meanwhile, which have settled it
        # Commits below what the daemon has settle nothing, and need not: had the group never been set back, nothing
        # visible would lie above any offset that it has committed since.
        mark.published_above = None
        if is_drained:
            mark.proved = doubt.published
            return []
        mark.moved_ms = now_ms
        return [MarkMove(doubt.name, mark.committed, is_set_back=True)]

    def committed(self, partition: int, values: Mapping[CommitName, int | None], now_ms: int) -> list[MarkMove]:
        """Records of a partition of `__consumer_offsets`, in order; the last one of each name. None: a tombstone."""
        changes = []
        fenced = self._fenced.get(partition)
        for name, offset in values.items():
            if fenced and name in fenced:
                self._marks[name].streamed = offset
            else:
                changes += self._move(name, offset, now_ms)
        return changes

    def read_to(self, partition: int, position: int, now_ms: int) -> list[MarkMove]:
        """The records of a partition of `__consumer_offsets` up to `position` have been given."""
        self._positions[partition] = position
        changes = []
        for name in [name for name in self._fenced.get(partition, ()) if self._marks[name].fence <= position]:
            self._fenced[partition].discard(name)
            changes += self._move(name, self._marks[name].streamed, now_ms)
        return changes

    def position(self, partition: int) -> int:
        """Up to where the records of a partition of `__consumer_offsets` have been read; -1: it was not read yet."""
        return self._positions.get(partition, -1)

    def differs(self, group: str, values: Mapping[CommitName, int]) -> bool:
        """Whether a coordinator's answer says anything else than what counts."""
        names = self._by_group.get(group, set())
        known = {name: mark.committed for name in names if (mark := self._marks[name]).committed != NO_COMMIT}
        return known != dict(values)

    def polled(self, group: str, values: Mapping[CommitName, int], fence: int | None, now_ms: int) -> list[MarkMove]:
        """All that a coordinator knows of a group. `fence`: see above; None where the records are not read at all."""
        partition = self.partition_of(group)
        if fence is not None and self.position(partition) >= fence:
            return []
        changes = []
        for name in self._by_group.get(group, set()) | values.keys():
            offset = values.get(name)
            published = self._published.pop(name, None) if fence is None else None
            mark = self._marks.get(name)
            if mark is None and offset is not None and published is not None and offset < published:
                mark = self._add(name, offset, now_ms)
                mark.published_above = published
                continue
            if not self._is_believed(name, mark, offset):
                continue
            if fence is not None and (offset is not None or mark is not None):
                self._set_fence(name, offset, fence, partition, now_ms)
            changes += self._move(name, offset, now_ms)
        return changes

    def question(self, name: CommitName, published: int) -> list[UncertainOffset]:
        """A daemon that was connected later has this mark, above what is known. None if that is in doubt already."""
        mark = self._marks.get(name)
        if mark is None or mark.published_above is not None or published <= max(mark.committed, mark.proved):
            return []
        mark.published_above = published
        return [UncertainOffset(name, mark.committed, published)]

    def doubts(self, groups: Iterable[str]) -> list[UncertainOffset]:
        """Of these groups, what is not settled yet."""
        names = (name for group in groups for name in self._by_group.get(group, ()))
        marks = ((name, self._marks[name]) for name in names)
        return [
            UncertainOffset(name, mark.committed, published)
            for name, mark in marks
            if (published := mark.published_above) is not None
        ]

    def prove(self, name: CommitName, committed: int, end: int) -> list[MarkMove]:
        """No visible record lies from `committed` (NO_COMMIT: from the beginning) up to below `end`."""
        mark = self._marks.get(name)
        if mark is None:
            if committed != NO_COMMIT:
                return []
            mark = self._add(name, NO_COMMIT, 0)
        if mark.published_above is not None or mark.committed < committed or end <= max(mark.committed, mark.proved):
            return []
        mark.proved = end
        return [MarkMove(name, end)]

    def cut(self, topic: str, partition: int, end: int, now_ms: int) -> list[MarkMove]:
        """A log was cut: what groups have committed above its end is of records that are gone."""
        changes = []
        for name in self._by_log.get((topic, partition), ()):
            mark = self._marks[name]
            if max(mark.committed, mark.proved) > end:
                # Its consumers may commit the same once more before they notice that their position is gone.
                mark.ignored = mark.committed if mark.committed > end else -1
                mark.committed = min(mark.committed, end)
                mark.proved, mark.moved_ms, mark.published_above = mark.committed, now_ms, None
                changes.append(MarkMove(name, mark.committed, is_set_back=True))
        return changes

    def forget_topic(self, topic: str, now_ms: int) -> tuple[list[MarkMove], set[str]]:
        """A topic is gone, or another one has its name: so are all marks on it. Also gives the groups that had some."""
        names = [name for log, names in self._by_log.items() if log[0] == topic for name in names]
        changes = [change for name in names for change in self._move(name, None, now_ms)]
        return changes, {name[0] for name in names}

    def get(self, name: CommitName) -> tuple[int, int, int] | None:
        """(what is committed, the mark, when it moved last) of a name."""
        mark = self._marks.get(name)
        return None if mark is None else (mark.committed, max(mark.committed, mark.proved), mark.moved_ms)

    def committed_names(self, group: str) -> set[CommitName]:
        """Of what the group has committed something."""
        return {name for name in self._by_group.get(group, ()) if self._marks[name].committed != NO_COMMIT}

    def groups_on(self, topic: str) -> set[str]:
        """The groups with marks on a topic."""
        return {name[0] for log, names in self._by_log.items() if log[0] == topic for name in names}

    def groups(self) -> set[str]:
        return {group for group, names in self._by_group.items() if names}

    def partition_of(self, group: str) -> int:
        """The partition of `__consumer_offsets` that has a group's records: Java's hash of its id; -1: not read."""
        return -1 if self.partition_count == 0 else _java_hash(group) % self.partition_count

    def _move(self, name: CommitName, offset: int | None, now_ms: int) -> list[MarkMove]:
        """Takes an offset that counts."""
        mark = self._marks.get(name)
        if offset is None:
            return [] if mark is None else self._remove(name)
        if mark is None:
            self._add(name, offset, now_ms)
            return [MarkMove(name, offset)]
        if offset == mark.ignored:
            return []
        mark.ignored = -1
        if mark.published_above is not None:
            return self._move_in_doubt(name, mark, offset, now_ms)
        if offset < mark.committed:
            mark.committed = mark.proved = offset
            mark.moved_ms = now_ms
            return [MarkMove(name, offset, is_set_back=True)]
        if offset == mark.committed:
            return []
        mark.committed, mark.moved_ms = offset, now_ms
        if offset <= mark.proved:
            return []
        mark.proved = offset
        return [MarkMove(name, offset)]

    @staticmethod
    def _move_in_doubt(name: CommitName, mark: _Mark, offset: int, now_ms: int) -> list[MarkMove]:
        published = mark.published_above
        assert published is not None, f"{name} is not in doubt"
        mark.moved_ms = now_ms if offset != mark.committed else mark.moved_ms
        is_set_back, mark.committed = offset < mark.committed, offset
        if offset >= published or is_set_back:
            mark.published_above, mark.proved = None, offset
            return [MarkMove(name, offset, is_set_back=is_set_back)]
        return []

    def _is_believed(self, name: CommitName, mark: _Mark | None, offset: int | None) -> bool:
        """Whether a coordinator's answer for a name counts: forward at once, back when it was said twice."""
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

    def _set_fence(self, name: CommitName, offset: int | None, fence: int, partition: int, now_ms: int) -> None:
        mark = self._marks.get(name)
        if mark is None:
            assert offset is not None, f"{name} has no mark"
            mark = self._add(name, NO_COMMIT, now_ms)  # the records know nothing of it yet
        elif not mark.fence or name not in self._fenced[partition]:
            mark.streamed = mark.committed
        mark.fence = fence
        self._fenced[partition].add(name)

    def _add(self, name: CommitName, offset: int, now_ms: int) -> _Mark:
        mark = self._marks[name] = _Mark(offset, now_ms)
        self._by_group[name[0]].add(name)
        self._by_log[name[1:]].add(name)
        return mark

    def _remove(self, name: CommitName) -> list[MarkMove]:
        del self._marks[name]
        self._by_group[name[0]].discard(name)
        self._by_log[name[1:]].discard(name)
        if not self._by_group[name[0]]:
            del self._by_group[name[0]]
        if not self._by_log[name[1:]]:
            del self._by_log[name[1:]]
        self._fenced[self.partition_of(name[0])].discard(name)
        self._steps_back.pop(name, None)
        return [MarkMove(name, None)]


def _java_hash(text: str) -> int:
    """The absolute value of Java's hash of a string, as Kafka takes it."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return 0 if value == -(1 << 31) else abs(value)
