"""Compares a replay with what was recorded: outcome, wait, lateness, and the answer for each partition."""

from typing import Final

import numpy as np

from purgatory_pipeline.replay.load.row_chunk import Column

ANSWERS: Final = ("error_code", "reached_offset")


class Answers:
    """How some operations ended, by their rows among the open ones: columns of operations, and of their items."""

    def __init__(self, rows: Column, item_counts: Column, operations: list[Column], items: list[Column]) -> None:
        self.rows: Final = rows
        self.item_counts: Final = item_counts
        self.operations: Final = operations
        self.items: Final = items


class Comparison:
    """Keeps what ended on one side until it ends on the other, and then compares."""

    def __init__(self) -> None:
        self.differs: Column = np.empty(0, np.bool_)
        """For each open operation: a difference is known."""
        self._sides: tuple[_Side, _Side] = (_Side(), _Side())

    def add(self, open_counts: Column, recorded_outcomes: Answers | None, replay: Answers | None) -> None:
        """Takes what has ended since. `open_counts` are the item counts of all open operations."""
        starts = np.cumsum(open_counts) - open_counts
        items = int(open_counts.sum())
        self.differs = np.concatenate([self.differs, np.zeros(len(open_counts) - len(self.differs), np.bool_)])
        for side, answers in zip(self._sides, (recorded_outcomes, replay), strict=True):
            side.grow(len(open_counts), items)
            if answers is not None:
                self.differs[side.take(answers, starts, open_counts)] = True
        one, other = self._sides
        for mine, yours in zip(one.operations, other.operations, strict=True):
            self.differs |= one.ended & other.ended & (mine != yours)
        unequal = np.zeros(items, np.bool_)
        for mine, yours in zip(one.items, other.items, strict=True):
            unequal |= mine != yours
        if len(open_counts):
            any_item = np.logical_or.reduceat(unequal, starts) if items else np.zeros(len(open_counts), np.bool_)
            self.differs |= one.ended & other.ended & any_item

    def keep(self, kept: Column, open_counts: Column) -> None:
        """Forgets all open operations but these."""
        of_items = np.repeat(kept, open_counts)
        self.differs = self.differs[kept]
        for side in self._sides:
            side.keep(kept, of_items)


class _Side:
    """The recorded or the replayed side: what is known of each open operation and item that ended there."""

    def __init__(self) -> None:
        self.ended: Column = np.empty(0, np.bool_)
        self.operations: list[Column] = []
        self.items: list[Column] = []

    def grow(self, rows: int, items: int) -> None:
        self.ended = _grown(self.ended, rows)
        if not self.operations:
            self.operations = [np.empty(0, np.int64) for _ in range(3)]
            self.items = [np.empty(0, np.int64) for _ in ANSWERS]
        self.operations = [_grown(values, rows) for values in self.operations]
        self.items = [_grown(values, items) for values in self.items]

    def take(self, answers: Answers, starts: Column, open_counts: Column) -> Column:
        """Stores what has ended; returns the rows that answered for another number of items than they have."""
        rows = answers.rows
        self.ended[rows] = True
        for values, given in zip(self.operations, answers.operations, strict=True):
            values[rows] = given
        fits = answers.item_counts == open_counts[rows]
        if len(answers.items[0]) == len(rows) and bool(np.all(fits)):
            places = starts[rows]
        else:
            first = np.cumsum(answers.item_counts) - answers.item_counts
            offsets = np.arange(len(answers.items[0])) - np.repeat(first, answers.item_counts)
            places = np.repeat(starts[rows], answers.item_counts) + offsets
        of_items = None if bool(np.all(fits)) else np.repeat(fits, answers.item_counts)
        for values, given in zip(self.items, answers.items, strict=True):
            if of_items is None:
                values[places] = given
            else:
                values[places[of_items]] = given[of_items]
        misfits: Column = rows[~fits]
        return misfits

    def keep(self, kept: Column, of_items: Column) -> None:
        rows, items = np.flatnonzero(kept), np.flatnonzero(of_items)
        self.ended = self.ended.take(rows)
        self.operations = [values.take(rows) for values in self.operations]
        self.items = [values.take(items) for values in self.items]


def _grown(values: Column, rows: int) -> Column:
    return np.concatenate([values, np.zeros(rows - len(values), values.dtype)])
