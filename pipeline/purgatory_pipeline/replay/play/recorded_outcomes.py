"""The recorded outcomes of a window."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory_pipeline.replay.load.row_chunk import Column, RowChunk
from purgatory_pipeline.replay.play.comparison import ANSWERS, Answers
from purgatory_pipeline.replay.play.open_operations import OpenOperations
from purgatory_pipeline.replay.play.registered_operations import complete_operations

COLUMNS: Final = ("call", "time", "outcome", "waited_ms", "lateness_ms")

OUTCOMES_READ: Final = "outcomes"
WITHOUT_REGISTRATION: Final = "outcomes without registration"
INCOMPLETE_OUTCOMES: Final = "incomplete outcomes"
REPEATED_OUTCOMES: Final = "duplicate outcomes"


@dataclass(frozen=True)
class RecordedOutcomes:
    """Recorded outcomes, by the rows of their operations among the open ones."""

    rows: Column
    call: Column
    time: Column
    outcome: Column
    waited: Column
    lateness: Column
    item_counts: Column
    items: list[Column]
    """Columns of ANSWERS, for each item."""

    @property
    def answers(self) -> Answers:
        return Answers(
            self.rows, self.item_counts, [self.outcome.astype(np.int64), self.waited, self.lateness], self.items
        )


def match_outcomes(chunk: RowChunk | None, operations: OpenOperations, counts: Counter[str]) -> RecordedOutcomes:
    """Matches outcomes with open operations and stores them there; outcomes that match none are counted."""
    if chunk is None:
        empty = np.empty(0, np.int64)
        return RecordedOutcomes(empty, empty, empty, empty, empty, empty, empty, [empty for _ in ANSWERS])
    whole = complete_operations(chunk)
    counts[OUTCOMES_READ] += len(whole) + whole.incomplete
    counts[INCOMPLETE_OUTCOMES] += whole.incomplete
    sessions, ids = (whole.first(name).astype(np.int64) for name in ("session", "operation"))
    rows = operations.rows_of_operations(sessions, ids, recorded=False)
    found = rows >= 0
    distinct, first = np.unique(rows[found], return_index=True)
    chosen = np.zeros(len(rows), np.bool_)
    chosen[np.flatnonzero(found)[first]] = True
    counts[WITHOUT_REGISTRATION] += int(np.count_nonzero(~found))
    counts[REPEATED_OUTCOMES] += int(np.count_nonzero(found)) - len(distinct)
    everything = bool(np.all(chosen))
    of_items = slice(None) if everything else np.repeat(chosen, whole.counts)
    pick = slice(None) if everything else chosen
    call, time, outcome, waited, lateness = (whole.first(name)[pick].astype(np.int64) for name in COLUMNS)
    answers = [whole.chunk.column(name)[of_items] for name in ANSWERS]
    life = RecordedOutcomes(rows[pick], call, time, outcome, waited, lateness, whole.counts[pick], answers)
    operations.recorded[life.rows] = life.outcome
    operations.recorded_call[life.rows] = life.call
    operations.recorded_waited[life.rows] = life.waited
    return life
