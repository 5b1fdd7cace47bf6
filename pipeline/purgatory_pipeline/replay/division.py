"""Divides a large run into bins of about equal work that can be replayed separately.

Partitions and keys are connected if one operation names several of them. Each task reduces its rows to a forest
(union-find), and the driver merges the forests, so the data sent to the driver grows with the names, not with the
operations. Groups of connected names are then assigned to bins.

Operations never change a partition, so operations on the same partitions can be replayed in different bins if each bin
gets all events of these partitions. That repeats the work for the events, so only groups larger than a fair share are
divided, and into at most as many parts as there are cores.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final

import numpy as np
import pandas as pd

from purgatory.extensions.archive.schema import EVENTS, NO_PARTITION, REGISTRATIONS
from purgatory_pipeline.engine_rows.integers import hash_operations
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

    def merge(self, other: "Connections") -> None:
        for name in list(other.parents):
            if name == ALL_KEYS:
                self._put_keys_together()
            self._connect(name, other.root(name))
            self.operations[self._known(name)] += other.operations[name]
            self.events[self._known(name)] += other.events[name]

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
        """From now on all keys are one name, connected with those that have been counted."""
        self.keys_together = True
        for key in self._keys:
            self.parents[self.root((key, NO_PARTITION))] = self.root(ALL_KEYS)
        self._keys.clear()


def _placeholder(chunk: RowChunk, row: int) -> Name:
    return f"{chunk.columns['session'][row]}/{chunk.columns['operation'][row]}", CUT


WEIGHT_OF_OPERATION: Final = 4
WEIGHT_OF_EVENT: Final = 1
"""An event costs the engine about a quarter of all that an operation costs."""

TOO_LARGE: Final = 1.3
"""Groups above this multiple of the fair share are divided."""


@dataclass(frozen=True)
class BinAssignment:
    """For one run: the group of each name, and the bins of each group (several where its operations are divided)."""

    groups: dict[Name, int]
    bins: tuple[tuple[int, ...], ...]
    keys_together: bool

    @property
    def all_bins(self) -> list[int]:
        return sorted({place for bins in self.bins for place in bins})

    def groups_of(self, names: Sequence[Name]) -> Column:
        """The group of each name; -1 for names without operations."""
        known = (ALL_KEYS if self.keys_together and name[1] == NO_PARTITION else name for name in names)
        return np.array([self.groups.get(name, -1) for name in known], np.int64)

    def bins_of_operations(self, chunk: RowChunk) -> Column:
        """The bin of each row of registrations or outcomes; -1 where its name has none."""
        groups = self.groups_of(chunk.names)[chunk.columns["name"]]
        table, parts = self._table()
        bins: Column = table[groups, 0]
        if table.shape[1] > 1:
            hashes = hash_operations(chunk.columns["session"], chunk.columns["operation"])
            bins = table[groups, hashes % parts[groups].astype(np.uint64)]
        return bins

    def rows_of_events(self, chunk: RowChunk) -> tuple[Column, Column]:
        """Rows and bins: every event once for each bin of its group."""
        groups = self.groups_of(chunk.names)[chunk.columns["name"]]
        bins = pd.Series([sorted(set(bins)) for bins in self.bins], name="bin", dtype=object).explode()
        spread = pd.DataFrame({"group": groups}).join(bins, on="group", how="inner")
        return spread.index.to_numpy(), spread["bin"].to_numpy(np.int64)

    def _table(self) -> tuple[Column, Column]:
        """Bins by group and part, and the number of parts of each group. The last row, which -1 finds, is for no
        group.
        """
        parts = np.array([*(len(bins) for bins in self.bins), 1])
        table = np.full((len(self.bins) + 1, int(parts.max())), -1, np.int64)
        for group, bins in enumerate(self.bins):
            table[group, : len(bins)] = bins
        return table, parts


@dataclass(frozen=True)
class _Group:
    """Connected names, and the weights of their operations and events."""

    names: list[Name]
    operations: float
    events: float

    def parts(self, share: float, cores: int) -> int:
        if self.operations + self.events <= TOO_LARGE * share or ALL_KEYS in self.names:
            return 1
        room = max(share - self.events, share / 4)
        return max(1, min(cores, round(self.operations / room)))


def pack_bins(runs: Sequence[Connections], bins: int, cores: int) -> list[BinAssignment]:
    """Places all groups, in bins that are numbered from the heaviest, so that it starts first."""
    groups_of_runs = [_groups(connections) for connections in runs]
    share = sum(group.operations + group.events for groups in groups_of_runs for group in groups) / bins
    pieces: list[tuple[int, int]] = []
    weights: list[float] = []
    for run, groups in enumerate(groups_of_runs):
        for number, group in enumerate(groups):
            parts = group.parts(share, cores)
            pieces += [(run, number)] * parts
            weights += [group.events + group.operations / parts] * parts
    bins_of: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for number, own in enumerate(balanced(weights, bins)):
        for piece in own:
            bins_of[pieces[piece]].append(number)
    return [
        BinAssignment(
            {name: number for number, group in enumerate(groups) for name in group.names},
            tuple(tuple(bins_of[run, number]) for number in range(len(groups))),
            connections.keys_together,
        )
        for run, (connections, groups) in enumerate(zip(runs, groups_of_runs, strict=True))
    ]


def balanced(weights: Sequence[float], bins: int) -> list[list[int]]:
    """Spreads items (numbered from 0) over bins of about equal weight; the heaviest bin comes first."""
    found: list[list[int]] = [[] for _ in range(bins)]
    lightest = [(0.0, place) for place in range(bins)]
    # The largest first, each to the lightest bin: at most a third worse than the best packing.
    for item in sorted(range(len(weights)), key=lambda item: -weights[item]):
        weight, place = lightest[0]
        found[place].append(item)
        heapreplace(lightest, (weight + weights[item], place))
    return sorted(found, key=lambda own: -sum(weights[item] for item in own))


def _groups(connections: Connections) -> list[_Group]:
    """The groups of a run's names; those without operations are left out."""
    by_root: defaultdict[Name, list[Name]] = defaultdict(list)
    for name in list(connections.parents):
        by_root[connections.root(name)].append(name)
    groups = []
    for _, names in sorted(by_root.items()):
        operations = sum(connections.operations[name] for name in names) * WEIGHT_OF_OPERATION
        events = sum(connections.events[name] for name in names) * WEIGHT_OF_EVENT
        if operations:
            groups.append(_Group(names, float(operations), float(events)))
    return groups
