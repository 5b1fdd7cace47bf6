"""Finds the partitions and keys that are connected because one operation names several of them.

Names that are not connected can be replayed separately. Each task reduces its rows to a forest (union-find), and the
driver merges the forests. So the data sent to the driver grows with the names, not with the operations.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from purgatory.extensions.archive.schema import EVENTS, NO_PARTITION, REGISTRATIONS
from purgatory_pipeline.engine_rows.row_chunk import Column, Name, RowChunk

ALL_KEYS: Final[Name] = ("", -3)
"""All keys of a run, if there are more than the engine can remember: it then forgets the oldest key, so every key
affects the others, and none can be replayed apart.
"""
CUT: Final = -2
"""`partition` of the placeholder for an operation whose rows span two chunks; it connects the names of both."""


class Connections:
    """The names of a run, which of them are connected (union-find), and how many operations and events each has.

    More keys than `keys_max` are all connected.
    """

    def __init__(self, keys_max: int) -> None:
        self.keys_max: Final = keys_max
        self.parents: Final[dict[Name, Name]] = {}
        self.operations: Final[Counter[Name]] = Counter()
        self.events: Final[Counter[Name]] = Counter()
        self.keys_together = False
        self._keys: Final[set[str]] = set()

    def root(self, name: Name) -> Name:
        """The representative of everything connected with `name`; a new name represents itself."""
        parents = self.parents
        root = name
        while (parent := parents.setdefault(root, root)) != root:
            root = parent
        while parents[name] != root:
            parents[name], name = root, parents[name]
        return root

    def add(self, chunk: RowChunk) -> None:
        """Takes more rows: registrations, in order, or events."""
        names, places = chunk.names, chunk.columns["name"].astype(np.int64)
        if chunk.table == EVENTS:
            self._count(self.events, names, places)
            return
        assert chunk.table == REGISTRATIONS, chunk.table
        items = chunk.column("item")
        self._count(self.operations, names, places[items == 0])
        later = np.flatnonzero(items > 0)
        if len(later) and later[0] == 0:
            self._connect(_placeholder(chunk, 0), names[places[0]])
            later = later[1:]
        for edge in np.unique(places[later - 1] * len(names) + places[later]).tolist():
            self._connect(names[edge // len(names)], names[edge % len(names)])
        if chunk.column("item_count")[-1] > items[-1] + 1:
            self._connect(_placeholder(chunk, -1), names[places[-1]])

    def entries(self) -> Iterator[tuple[Name, Name, int, int]]:
        """Each name with its representative, operations and events, for `merge`."""
        for name in list(self.parents):
            yield name, self.root(name), self.operations[name], self.events[name]

    def merge(self, entries: Iterable[tuple[Name, Name, int, int]]) -> None:
        """Takes the entries of another task."""
        for name, root, operations, events in entries:
            if name == ALL_KEYS:
                self._put_keys_together()
            self._connect(name, root)
            self.operations[self._known(name)] += operations
            self.events[self._known(name)] += events

    def _count(self, counts: Counter[Name], names: list[Name], places: Column) -> None:
        for name, count in zip(names, np.bincount(places, minlength=len(names)).tolist(), strict=True):
            known = self._known(name)
            counts[known] += count
            self.root(known)

    def _connect(self, name: Name, other: Name) -> None:
        root, other_root = self.root(self._known(name)), self.root(self._known(other))
        if root != other_root:
            self.parents[max(root, other_root)] = min(root, other_root)

    def _known(self, name: Name) -> Name:
        """The name under which it is counted: ALL_KEYS once there are too many keys."""
        if name[1] != NO_PARTITION:
            return name
        if not self.keys_together:
            self._keys.add(name[0])
            if len(self._keys) <= self.keys_max:
                return name
            self._put_keys_together()
        return ALL_KEYS

    def _put_keys_together(self) -> None:
        """From now on all keys are one name; what was counted under single keys moves there."""
        self.keys_together = True
        self.root(ALL_KEYS)
        for key in self._keys:
            name = (key, NO_PARTITION)
            self.parents[self.root(name)] = ALL_KEYS
            for counts in (self.operations, self.events):
                counts[ALL_KEYS] += counts.pop(name, 0)
        self._keys.clear()


def _placeholder(chunk: RowChunk, row: int) -> Name:
    return f"{chunk.columns['session'][row]}/{chunk.columns['operation'][row]}", CUT
