"""Step functions that only rise, in groups: log ends, high watermarks, log starts.

They answer two questions for many groups at once: what was the value at an instant, and when did it reach a number?
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from purgatory_pipeline.generate.draw.topology import Ints

SPAN: Final = 2**42
"""Instants and values are below it, so that (group, value) fits into one sorted number."""

NEVER: Final = 2**41


class StepFunctions:
    """Steps of several groups; `times` and `values` rise within each. A group begins with its first step."""

    def __init__(self, groups: Sequence[tuple[Ints, Ints]]) -> None:
        sizes = np.array([len(times) for times, _ in groups], dtype=np.int64)
        assert sizes.min(initial=1) > 0, "a group without a step"
        group = np.repeat(np.arange(len(groups)), sizes)
        self.first: Final = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        self.times: Final = np.concatenate([times for times, _ in groups])
        self.values: Final = np.concatenate([values for _, values in groups])
        self._by_time: Final = group * SPAN + self.times
        self._by_value: Final = group * SPAN + self.values

    def index_at(self, groups: Ints, times: Ints) -> Ints:
        """The last step at or before each instant, or else the group's first."""
        found = np.searchsorted(self._by_time, groups * SPAN + times, side="right") - 1
        return np.asarray(np.maximum(found, self.first[groups]))

    def at(self, groups: Ints, times: Ints) -> Ints:
        return np.asarray(self.values[self.index_at(groups, times)])

    def reached(self, groups: Ints, values: Ints) -> Ints:
        """When each group first reached a value; NEVER if it did not."""
        found = np.searchsorted(self._by_value, groups * SPAN + values, side="left")
        there = found < self.first[groups + 1]
        return np.where(there, self.times[np.minimum(found, len(self.times) - 1)], NEVER)

    def of(self, group: int) -> tuple[Ints, Ints]:
        rows = slice(int(self.first[group]), int(self.first[group + 1]))
        return self.times[rows], self.values[rows]
