"""Which partitions and keys are connected because one operation names several: found in tasks, merged on the driver.

What is not connected can be replayed separately. A task reduces its rows to a forest: each name with a parent. So what
comes to the driver has the size of the names, not of the operations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from purgatory.archive.schema import EVENTS, NO_PARTITION, REGISTRATIONS
from purgatory_pipeline.replay.load.row_chunk import Column, Name, RowChunk

ALL_KEYS: Final[Name] = ("", -3)
"""Stands for all keys of a run, if there are more than the engine remembers at a time: it forgets the oldest, so every
key then affects the others.
"""
CUT: Final = -2
"""`partition` of the placeholder for an operation whose rows lie in two files."""


class Forest:
    """Union-find over names."""

    def __init__(self) -> None:
        self.parents: Final[dict[Name, Name]] = {}

    def root(self, name: Name) -> Name:
        """The representative of everything connected with `name`; a new name represents itself."""
        parents = self.parents
        root = name
        while (parent := parents.setdefault(root, root)) != root:
            root = parent
        while parents[name] != root:
            parents[name], name = root, parents[name]
        return root

    def connect(self, one: Name, other: Name) -> None:
        root, other_root = self.root(one), self.root(other)
        if root != other_root:
            self.parents[max(root, other_root)] = min(root, other_root)


@dataclass
class Connections:
    """The names of a run, which of them are connected, and how many operations and events each has."""

    keys_max: int
    """More keys than this are all connected."""
    forest: Forest = field(default_factory=Forest)
    operations: dict[Name, int] = field(default_factory=dict)
    events: dict[Name, int] = field(default_factory=dict)
    keys_together: bool = False
    _keys: set[str] = field(default_factory=set)
    _last: tuple[int, int, Name] | None = None
    """Session, id and last name of an operation whose rows may go on in the next chunk."""

    def add(self, chunk: RowChunk) -> None:
        """Takes more rows: registrations, of one file and in order, or events."""
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
        """The rest of the last operation may be in another file; a placeholder connects both parts there."""
        if self._last is not None:
            session, operation, name = self._last
            self.connect((f"{session}/{operation}", CUT), name)
        self._last = None

    def connect(self, one: Name, other: Name) -> None:
        """Connects two names of one operation."""
        self.forest.connect(self._known(one), self._known(other))

    def entries(self) -> Iterator[tuple[Name, Name, int, int]]:
        """Each name with its representative, operations and events, for `merge`."""
        for name in list(self.forest.parents):
            yield name, self.forest.root(name), self.operations.get(name, 0), self.events.get(name, 0)

    def merge(self, entries: Iterable[tuple[Name, Name, int, int]]) -> None:
        """Takes the entries of another task."""
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
        """The name under which it is counted: ALL_KEYS once there are too many keys."""
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
        """From now on all keys are one name; what was counted under single keys moves there."""
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
        """The first rows continue an operation that began before this chunk."""
        first = chunk.names[chunk.columns["name"][0]]
        if self._last is not None:
            self.connect(self._last[2], first)
        else:
            session, operation = _identity(chunk, 0)
            self.connect((f"{session}/{operation}", CUT), first)


def _identity(chunk: RowChunk, row: int) -> tuple[int, int]:
    return int(chunk.columns["session"][row]), int(chunk.columns["operation"][row])
