"""Decides which bin replays what: connected names together, about equal work per bin, and what is too large divided.

Operations never change a partition, so operations on the same partitions may still be replayed apart, if each part gets
all their events. That repeats the work for these events; so only groups that are too large for a fair share are
divided, and into no more parts than there are cores.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.archive.schema import NO_PARTITION
from purgatory_pipeline.archive.integers import hash_operations
from purgatory_pipeline.replay.divide.connections import ALL_KEYS, Connections
from purgatory_pipeline.replay.load.row_chunk import Column, Name, RowChunk

WEIGHT_OF_OPERATION: Final = 4
WEIGHT_OF_EVENT: Final = 1
"""An event costs the engine about a quarter of all that an operation costs."""

TOO_LARGE: Final = 1.3
"""Times the fair share."""


@dataclass(frozen=True)
class Placement:
    """For one run: the group of each name, and the bins of each group (several where its operations are divided)."""

    groups: dict[Name, int]
    bins: tuple[tuple[int, ...], ...]
    keys_together: bool

    @property
    def all_bins(self) -> list[int]:
        return sorted({place for bins in self.bins for place in bins})

    def groups_of(self, names: Sequence[Name]) -> Column:
        """The group of each name; -1 for names without operations."""
        keys = self.groups.get(ALL_KEYS, -1)
        if self.keys_together:
            found = [keys if name[1] == NO_PARTITION else self.groups.get(name, -1) for name in names]
        else:
            found = [self.groups.get(name, -1) for name in names]
        return np.array(found, np.int64)

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
        distinct = [sorted(set(bins)) for bins in self.bins]
        counts = np.array([*(len(bins) for bins in distinct), 0])
        first = np.concatenate([[0], np.cumsum(counts[:-1])])[:-1]
        flat = np.array([place for bins in distinct for place in bins], np.int64)
        rows = np.repeat(np.arange(len(groups)), counts[groups])
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts[groups]) - counts[groups], counts[groups])
        return rows, flat[first[groups[rows]] + within]

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
class _Piece:
    """What goes to one bin: a group of a run, or a part of one."""

    weight: float
    run: int
    group: int
    part: int


def place(runs: Sequence[Connections], bins: int, cores: int) -> tuple[list[Placement], list[float]]:
    """Places all groups; returns the weights of the bins too. Bins are numbered from the heaviest, so it starts
    first.
    """
    named = [_groups(connections) for connections in runs]
    total = sum(operations + events for groups in named for _, operations, events in groups)
    share = total / bins if bins else 0.0
    pieces: list[_Piece] = []
    parts: list[list[int]] = []
    for run, groups in enumerate(named):
        divided = [_parts(operations, events, share, cores, names) for names, operations, events in groups]
        parts.append(divided)
        for group, (_, operations, events) in enumerate(groups):
            count = divided[group]
            pieces += [_Piece(events + operations / count, run, group, part) for part in range(count)]
    # The largest first, each to the lightest bin: at most a third worse than the best packing.
    pieces.sort(key=lambda piece: (-piece.weight, piece.run, piece.group, piece.part))
    weights = [0.0] * bins
    found: dict[tuple[int, int, int], int] = {}
    for piece in pieces:
        lightest = weights.index(min(weights))
        found[piece.run, piece.group, piece.part] = lightest
        weights[lightest] += piece.weight
    heaviest = sorted(range(bins), key=lambda place: -weights[place])
    renamed = {old: new for new, old in enumerate(heaviest)}
    placings = []
    for run, (connections, groups) in enumerate(zip(runs, named, strict=True)):
        of_groups = [
            tuple(renamed[found[run, group, part]] for part in range(parts[run][group])) for group in range(len(groups))
        ]
        group_of = {name: group for group, (names, _, _) in enumerate(groups) for name in names}
        placings.append(Placement(group_of, tuple(of_groups), connections.keys_together))
    return placings, [weights[old] for old in heaviest]


def _groups(connections: Connections) -> list[tuple[list[Name], float, float]]:
    """Connected names with the weights of their operations and events; groups without operations are left out."""
    by_root: defaultdict[Name, list[Name]] = defaultdict(list)
    for name in connections.forest.parents:
        by_root[connections.forest.root(name)].append(name)
    groups = []
    for root in sorted(by_root):
        names = by_root[root]
        operations = sum(connections.operations.get(name, 0) for name in names) * WEIGHT_OF_OPERATION
        events = sum(connections.events.get(name, 0) for name in names) * WEIGHT_OF_EVENT
        if operations:
            groups.append((names, float(operations), float(events)))
    return groups


def _parts(operations: float, events: float, share: float, cores: int, names: Sequence[Name]) -> int:
    """Into how many parts a group's operations are divided."""
    if operations + events <= TOO_LARGE * share or ALL_KEYS in names:
        return 1
    room = max(share - events, share / 4)
    return max(1, min(cores, round(operations / room)))
