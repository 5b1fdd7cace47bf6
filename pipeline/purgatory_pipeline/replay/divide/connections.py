"""Which partitions and keys belong together because operations name several of them: found in tasks, joined after.

What is independent may be replayed apart. A task reduces what it sees to a forest: each name, and one that it belongs
with. So what is brought together has the size of the names, not of the operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from purgatory.archive.schema import EVENTS, NO_PARTITION, REGISTRATIONS
from purgatory_pipeline.replay.load.row_chunk import Column, Name, RowChunk

ALL_KEYS: Final[Name] = ("", -3)
"""Stands for all keys of a run, where they are more than the engine remembers at a time: what it forgets connects
them."""
CUT: Final = -2
"""`partition` of what stands for an operation whose rows lie in two files."""


class Forest:
    """Names, and which of them are connected."""

    def __init__(self) -> None:
        self.parents: Final[dict[Name, Name]] = {}

    def root(self, name: Name) -> Name:
        """What stands for all that `name` is connected with; a new name stands for itself."""
        parents = self.parents
        root = name
        while (parent := parents.setdefault(root, root)) != root:
            root = parent
        while parents[name] != root:
            parents[name], name = root, parents[name]
        return root

    def connect(self, one: Name, other: Name) -> None:
        """Both belong together from now on."""
        root, other_root = self.root(one), self.root(other)
        if root != other_root:
            self.parents[max(root, other_root)] = min(root, other_root)


@dataclass
class Connections:
    """The names of a run, what is connected, and how many operations and events each has."""

    keys_max: int
    """More keys than this are all connected."""
    forest: Forest = field(default_factory=Forest)
    operations: dict[Name, int] = field(default_factory=dict)
    events: dict[Name, int] = field(default_factory=dict)
    keys_together: bool = False
    _keys: set[str] = field(default_factory=set)
    _last: tuple[int, int, Name] | None = None
    """Session, id and last name of the operation at the end of the file, if more of its rows may follow."""

    def add(self, chunk: RowChunk) -> None:
        """More rows of registrations, of one file in their order, or of events."""
        if chunk.table == EVENTS:
            self._count(self.events, chunk, np.ones(len(chunk), np.bool_))
            return
        assert chunk.table == REGISTRATIONS, chunk.table
        items = chunk.column("item")
        self._count(self.operations, chunk, items == 0)
        places = chunk.columns["name"].astype(np.int64)
        later = np.flatnonzero(items > 0)
        if len(later) and later[0] == 0:
            self._join_cut(chunk)
            later = later[1:]
        edges = np.unique(places[later - 1] * len(chunk.names) + places[later])
        for edge in edges.tolist():
            self.connect(chunk.names[edge // len(chunk.names)], chunk.names[edge % len(chunk.names)])
        cut = int(chunk.column("item_count")[-1]) > int(items[-1]) + 1
        last = chunk.names[places[-1]]
        self._last = (*_identity(chunk, -1), last) if cut else None

    def end_file(self) -> None:
        """The file ends here: the rest of its last operation may lie in another one."""
        if self._last is not None:
            session, operation, name = self._last
            self.connect((f"{session}/{operation}", CUT), name)
        self._last = None

    def connect(self, one: Name, other: Name) -> None:
        """Two names of one operation."""
        self.forest.connect(self._known(one), self._known(other))

    def entries(self) -> Iterator[tuple[Name, Name, int, int]]:
        """Each name with one that it belongs with, its operations and its events; to be given to `merge`."""
        for name in list(self.forest.parents):
            yield name, self.forest.root(name), self.operations.get(name, 0), self.events.get(name, 0)

    def merge(self, entries: Iterable[tuple[Name, Name, int, int]]) -> None:
        """What another task found."""
        for name, root, operations, events in entries:
            if name == ALL_KEYS:
                self._put_keys_together()
            known = self._known(name)
            self.forest.connect(known, self._known(root))
            self.operations[known] = self.operations.get(known, 0) + operations
            self.events[known] = self.events.get(known, 0) + events

    def _count(self, counts: dict[Name, int], chunk: RowChunk, rows: Column) -> None:
        of_names = np.bincount(chunk.columns["name"][rows], minlength=len(chunk.names))
        for place, count in enumerate(of_names.tolist()):
            known = self._known(chunk.names[place])
            counts[known] = counts.get(known, 0) + count
            self.forest.root(known)

    def _known(self, name: Name) -> Name:
        """The name under which it is kept."""
        if name[1] != NO_PARTITION:
            return name
        if self.keys_together:
            return ALL_KEYS
        self._keys.add(name[0])
        if len(self._keys) <= self.keys_max:
            return name
        self._put_keys_together()
        return ALL_KEYS

    def _put_keys_together(self) -> None:
        """From now on all keys are one name."""
        if self.keys_together:
            return
        self.keys_together = True
        for key in self._keys:
            name = (key, NO_PARTITION)
            if name in self.forest.parents:
                self.forest.connect(ALL_KEYS, name)
            for counts in (self.operations, self.events):
                counts[ALL_KEYS] = counts.get(ALL_KEYS, 0) + counts.pop(name, 0)
        self.forest.root(ALL_KEYS)
        self._keys.clear()

    def _join_cut(self, chunk: RowChunk) -> None:
        """The first rows go on with an operation that began before this chunk."""
        first = chunk.names[chunk.columns["name"][0]]
        if self._last is not None:
            self.connect(self._last[2], first)
        else:
            session, operation = _identity(chunk, 0)
            self.connect((f"{session}/{operation}", CUT), first)


def _identity(chunk: RowChunk, row: int) -> tuple[int, int]:
    return int(chunk.columns["session"][row]), int(chunk.columns["operation"][row])
