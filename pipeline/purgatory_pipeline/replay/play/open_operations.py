"""The operations of a run that are still open somewhere: as recorded, or in one of the replays beside it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from purgatory_pipeline.replay.load.row_chunk import Column
from purgatory_pipeline.replay.play.registered_operations import RegisteredOperations

Integers = npt.NDArray[np.int64]

OWN: Final = ("ids", "call", "session", "operation", "kind", "topic", "item_counts")
PENDING: Final = 0
"""Outcome of operations that have not ended."""

PACKED_MAX: Final = 2**62
DIRECT_PER_ROW: Final = 32
DIRECT_MIN: Final = 1 << 20


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


def find(sessions: Integers, operations: Integers, among_sessions: Integers, among_operations: Integers) -> Integers:
    """For each operation its place among the others, -1 if it is not there. Of equal ones, any of their places."""
    if not len(sessions) or not len(among_sessions):
        return np.full(len(sessions), -1, np.int64)
    keys, below = _keys(
        np.concatenate([among_sessions, sessions]).astype(np.int64, copy=False),
        np.concatenate([among_operations, operations]).astype(np.int64, copy=False),
    )
    among, wanted = keys[: len(among_sessions)], keys[len(among_sessions) :]
    if below <= max(DIRECT_MIN, DIRECT_PER_ROW * len(keys)):
        direct = np.full(below, -1, np.int32)
        direct[among] = np.arange(len(among))
        return direct[wanted].astype(np.int64)
    order = np.argsort(among, kind="stable")
    at = order[np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)]
    return np.where(among[at] == wanted, at, -1)


def _keys(sessions: Integers, operations: Integers) -> tuple[Integers, int]:
    """A number from 0 for each (session, operation), distinct for distinct ones; and an upper bound of all."""
    session, session_span = _ranks(sessions, 1 << 16)
    operation, operation_span = _ranks(operations, PACKED_MAX // session_span)
    return session * operation_span + operation, session_span * operation_span


def _ranks(values: Integers, span_max: int) -> tuple[Integers, int]:
    """Values counted from the lowest; if that range is too wide, from the first of the distinct ones."""
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    if span <= span_max:
        return values - lowest, span
    distinct, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), len(distinct)
