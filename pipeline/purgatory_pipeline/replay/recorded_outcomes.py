"""The recorded outcomes of a window."""

from collections import Counter
from typing import Final

import numpy as np

from purgatory.engine.calls import PASS_TIME
from purgatory.engine.codes import EXPIRED, HEARTBEAT_MISSED
from purgatory_pipeline.engine_rows.engine_batches import CompleteOperations, complete_operations
from purgatory_pipeline.engine_rows.integers import Flags
from purgatory_pipeline.engine_rows.row_chunk import RowChunk
from purgatory_pipeline.engine_rows.tape_steps import TapeSteps, steps
from purgatory_pipeline.replay.open_operations import PENDING, OpenOperations, hash_answers

OUTCOMES_READ: Final = "outcomes"
WITHOUT_REGISTRATION: Final = "outcomes without registration"
INCOMPLETE_OUTCOMES: Final = "incomplete outcomes"
REPEATED_OUTCOMES: Final = "duplicate outcomes"


def match_outcomes(chunk: RowChunk, operations: OpenOperations, counts: Counter[str]) -> TapeSteps:
    """Stores outcomes with their open operations; outcomes that match none are counted.

    Returns a step for each recorded turn of the reaper that ended something, of as many operations as it ended.
    """
    whole = complete_operations(chunk)
    counts[OUTCOMES_READ] += len(whole) + whole.incomplete
    counts[INCOMPLETE_OUTCOMES] += whole.incomplete
    rows = operations.rows_of_operations(
        whole.first("session"), whole.first("operation"), among=operations.recorded.outcome == PENDING
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
    recorded.call[rows] = call
    recorded.outcome[rows] = outcome
    recorded.waited_ms[rows] = waited_ms
    recorded.answer[rows] = hash_answers([outcome, waited_ms, lateness_ms], answers, whole.counts)
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
