"""The operations of a run that are still open, as recorded or in one of the replays."""

from collections import Counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory.engine.calls import PASS_TIME
from purgatory.engine.codes import EXPIRED, HEARTBEAT_MISSED
from purgatory_pipeline.engine_rows.engine_batches import CompleteOperations, RegisteredOperations, complete_operations
from purgatory_pipeline.engine_rows.integers import Flags, Hashes, Integers, hash_operations, mix
from purgatory_pipeline.engine_rows.row_chunk import Column, RowChunk
from purgatory_pipeline.engine_rows.tape_steps import TapeSteps, steps

OUTCOMES_READ: Final = "outcomes"
WITHOUT_REGISTRATION: Final = "outcomes without registration"
INCOMPLETE_OUTCOMES: Final = "incomplete outcomes"
REPEATED_OUTCOMES: Final = "duplicate outcomes"


def match_outcomes(chunk: RowChunk, operations: "OpenOperations", counts: Counter[str]) -> TapeSteps:
    """Stores outcomes with their open operations; outcomes that match none are counted.

    Returns a step for each recorded turn of the reaper that ended something, of as many operations as it ended.
    """
    whole = complete_operations(chunk)
    counts[OUTCOMES_READ] += len(whole) + whole.incomplete
    counts[INCOMPLETE_OUTCOMES] += whole.incomplete
    rows = operations.rows_of_operations(
        whole.first("session"), whole.first("operation"), among=operations.recorded["outcome"] == PENDING
    )
    found = rows >= 0
    distinct, first = np.unique(rows[found], return_index=True)
    counts[WITHOUT_REGISTRATION] += int(np.count_nonzero(~found))
    counts[REPEATED_OUTCOMES] += int(np.count_nonzero(found)) - len(distinct)
    chosen = np.zeros(len(rows), np.bool_)
    chosen[np.flatnonzero(found)[first]] = True
    if not bool(np.all(chosen)):
        whole, rows = whole.take(chosen), rows[chosen]
    call, outcome, waited_ms, lateness_ms = (
        whole.first(name) for name in ("call", "outcome", "waited_ms", "lateness_ms")
    )
    answers = [whole.chunk.column(name) for name in ("error_code", "reached_offset")]
    recorded = operations.recorded
    recorded["call"][rows] = call
    recorded["outcome"][rows] = outcome
    recorded["waited_ms"][rows] = waited_ms
    recorded["answer"][rows] = hash_answers([outcome, waited_ms, lateness_ms], answers, whole.counts)
    # An operation that expired after 0 ms had a timeout of 0: its registration alone expires it, without the reaper.
    expired = ((outcome == EXPIRED) & (waited_ms > 0)) | _missed_heartbeats(whole)
    turns, first, expirations = np.unique(call[expired], return_index=True, return_counts=True)
    return steps(turns, whole.first("time")[expired][first], PASS_TIME, expirations)


def _missed_heartbeats(whole: CompleteOperations) -> Flags:
    """Which operations the reaper failed because a key was silent."""
    if not len(whole):
        return np.zeros(0, np.bool_)
    missed: Flags = np.logical_or.reduceat(whole.chunk.column("error_code") == HEARTBEAT_MISSED, whole.starts)
    return missed


OWN: Final = ("ids", "call", "session", "operation", "kind", "topic", "item_counts")
PENDING: Final = 0
"""Outcome of operations that have not ended."""

_FACTORS: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64)
"""Odd, and otherwise arbitrary."""

Outcomes = npt.NDArray[Any]
"""How each open operation has ended on one side: as recorded, or in the replay of one policy."""

_OUTCOME: Final = np.dtype(
    [
        ("outcome", np.int8),
        ("waited_ms", np.int64),
        ("answer", np.uint64),  # see `hash_answers`; only the recorded side and replays of the unchanged policy have it
        ("call", np.int64),  # the recorded call that ended it; 0 in a replay
    ],
    align=True,
)


class OpenOperations:
    """One row for each operation, in the order of registration. Rows move up when others are taken out."""

    def __init__(self, columns: dict[str, Column], recorded: Outcomes, replayed: list[Outcomes]) -> None:
        self.columns = columns
        self.recorded = recorded
        self.replayed = replayed
        """One for each policy."""
        self._old = len(self)
        """Rows that were there before the last registrations. Their ids have gaps, the later ones do not."""

    @classmethod
    def none(cls, policies: int) -> "OpenOperations":
        columns = {name: np.empty(0, np.int64) for name in OWN}
        return cls(columns, _pending(0), [_pending(0) for _ in range(policies)])

    def __len__(self) -> int:
        return len(self.recorded["outcome"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def add(self, arrivals: RegisteredOperations) -> None:
        self._old = len(self)
        for name in OWN:
            self.columns[name] = np.concatenate([self.columns[name], getattr(arrivals, name)])
        pending = _pending(arrivals.rows)
        self.recorded, *self.replayed = (
            np.concatenate([outcomes, pending]) for outcomes in (self.recorded, *self.replayed)
        )

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

    def rows_of_operations(self, sessions: Column, operations: Column, *, among: Flags | None = None) -> Column:
        """The rows of operations, -1 for those that are not open; with `among`, not in those rows."""
        if among is None:
            return find(sessions, operations, self["session"], self["operation"])
        rows = np.flatnonzero(among)
        found = find(sessions, operations, self["session"].take(rows), self["operation"].take(rows))
        return np.append(rows, -1)[found]

    def is_done(self) -> Flags:
        done: Flags = self.recorded["outcome"] != PENDING
        for outcomes in self.replayed:
            done = done & (outcomes["outcome"] != PENDING)
        return done

    def take(self, rows: Integers) -> "OpenOperations":
        columns = {name: values.take(rows) for name, values in self.columns.items()}
        return OpenOperations(columns, self.recorded[rows], [outcomes[rows] for outcomes in self.replayed])


def _pending(rows: int) -> Outcomes:
    return np.zeros(rows, _OUTCOME)


def find(sessions: Integers, operations: Integers, among_sessions: Integers, among_operations: Integers) -> Integers:
    """For each operation its place among the others, -1 if it is not there. Of equal ones, any of their places."""
    among = pa.array(hash_operations(among_sessions, among_operations))
    places = pc.index_in(pa.array(hash_operations(sessions, operations)), value_set=among)
    found: Integers = places.fill_null(-1).to_numpy().astype(np.int64)
    return found


def hash_answers(operations: list[Column], items: list[Column], item_counts: Column) -> Hashes:
    """A 64-bit hash for each operation, over all columns of the operation and its items.

    Comparing hashes avoids keeping whole answers until the other side has ended too; two different answers are taken
    for equal with a probability of 2**-64. Every operation has at least one item.
    """
    places = np.zeros(len(items[0]), np.int64)
    if len(places) == len(item_counts):
        return _weighted(operations) + mix(_weighted([*items, places]))
    starts = np.cumsum(item_counts) - item_counts
    places = np.arange(len(places)) - np.repeat(starts, item_counts)
    of_items: Hashes = np.add.reduceat(mix(_weighted([*items, places])), starts)
    return _weighted(operations) + of_items


def _weighted(columns: list[Column]) -> Hashes:
    summed: Hashes = np.ones(len(columns[0]), np.uint64)
    for column, factor in zip(columns, _FACTORS, strict=False):
        summed += column.astype(np.uint64) * factor
    return summed
