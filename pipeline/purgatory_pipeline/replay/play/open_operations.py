"""The operations of a run that are still open somewhere: as recorded, or in one of the replays beside it."""

from __future__ import annotations

from typing import Final

import numpy as np

from purgatory_pipeline.replay.load.row_chunk import Column
from purgatory_pipeline.replay.play.operation_lookup import find
from purgatory_pipeline.replay.play.registered_operations import RegisteredOperations

OWN: Final = ("ids", "call", "session", "operation", "kind", "topic", "item_counts")
PENDING: Final = 0
"""Outcome of operations that have not ended."""


class OpenOperations:
    """One row for each operation, in the order of registration. Rows move up when others are taken out."""

    def __init__(self, players: int) -> None:
        self.columns: dict[str, Column] = {name: np.empty(0, np.int64) for name in OWN}
        self.recorded: Column = np.empty(0, np.int8)
        self.recorded_call: Column = np.empty(0, np.int64)
        self.recorded_waited: Column = np.empty(0, np.int64)
        self.outcomes: Final[list[Column]] = [np.empty(0, np.int8) for _ in range(players)]
        self.waited: Final[list[Column]] = [np.empty(0, np.int64) for _ in range(players)]
        self._old = 0
        """Rows that were there before the last registrations. Their ids have gaps, the later ones do not."""

    def __len__(self) -> int:
        return len(self.recorded)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def add(self, arrivals: RegisteredOperations) -> None:
        """Adds operations that are open everywhere."""
        self._old = len(self)
        for name in OWN:
            self.columns[name] = np.concatenate([self.columns[name], getattr(arrivals, name)])
        rows = arrivals.rows
        self.recorded = grown(self.recorded, rows)
        self.recorded_call = grown(self.recorded_call, rows)
        self.recorded_waited = grown(self.recorded_waited, rows)
        for column in (self.outcomes, self.waited):
            column[:] = [grown(values, rows) for values in column]

    def rows_of_ids(self, ids: Column) -> Column:
        """The rows of ids, all of which must be open."""
        own = self.columns["ids"]
        if self._old == len(own):
            return np.searchsorted(own, ids)
        first_new = int(own[self._old])
        rows = ids - (first_new - self._old)
        old = ids < first_new
        if old.any():
            rows[old] = np.searchsorted(own[: self._old], ids[old])
        return rows

    def rows_of_operations(self, sessions: Column, operations: Column, *, recorded: bool) -> Column:
        """The rows of operations, -1 for those that are not open; with `recorded` also of those with a recorded
        outcome.
        """
        among = None if recorded else np.flatnonzero(self.recorded == PENDING)
        own = [self.columns[name] if among is None else self.columns[name][among] for name in ("session", "operation")]
        found = find(sessions, operations, own[0], own[1])
        if among is None or not len(among):
            return found
        return np.where(found >= 0, among[found], -1)

    def is_done(self) -> Column:
        """Which have ended everywhere."""
        done: Column = self.recorded != PENDING
        for outcomes in self.outcomes:
            done = done & (outcomes != PENDING)
        return done

    def keep(self, kept: Column) -> None:
        """Takes out all rows but these."""
        rows = np.flatnonzero(kept)
        self.columns = {name: values.take(rows) for name, values in self.columns.items()}
        self.recorded = self.recorded.take(rows)
        self.recorded_call = self.recorded_call.take(rows)
        self.recorded_waited = self.recorded_waited.take(rows)
        for column in (self.outcomes, self.waited):
            column[:] = [values.take(rows) for values in column]
        self._old = len(self)


def grown(values: Column, rows: int) -> Column:
    return np.concatenate([values, np.zeros(rows, values.dtype)])
