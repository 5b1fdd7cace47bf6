"""Assigns groups of connected names to bins of about equal work, and divides groups that are too large.

Operations never change a partition, so operations on the same partitions can be replayed in different bins if each bin
gets all events of these partitions. That repeats the work for the events, so only groups larger than a fair share are
divided, and into at most as many parts as there are cores.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final

import numpy as np

from purgatory.extensions.archive.schema import NO_PARTITION
from purgatory_pipeline.analytics.replay.divide.connections import ALL_KEYS, Connections
from purgatory_pipeline.engine_rows.integers import hash_operations
from purgatory_pipeline.engine_rows.row_chunk import Column, Name, RowChunk

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
class _Group:
    """Connected names, and the weights of their operations and events."""

    names: list[Name]
    operations: float
    events: float

    def parts(self, share: float, cores: int) -> int:
        """Into how many parts its operations are divided."""
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
