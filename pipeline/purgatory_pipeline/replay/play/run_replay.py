"""Replays one run, or some of its partitions: windows in, sums out, and on request a row for each operation."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.archive.schema import CALLS, OUTCOMES, REGISTRATIONS
from purgatory.engine.completions import Completions
from purgatory_pipeline.replay.load.call_windows import CallWindow
from purgatory_pipeline.replay.load.row_chunk import Column, RowChunk
from purgatory_pipeline.replay.load.run_files import RunContext
from purgatory_pipeline.replay.play.comparison import Answers, Comparison
from purgatory_pipeline.replay.play.open_operations import PENDING, OpenOperations
from purgatory_pipeline.replay.play.policy_events import MARKS_KEPT, MARKS_LEFT_OUT, Rewritten
from purgatory_pipeline.replay.play.policy_player import PolicyPlayer
from purgatory_pipeline.replay.play.recorded_outcomes import RecordedOutcomes, match_outcomes
from purgatory_pipeline.replay.play.registered_operations import RegisteredOperations, complete_operations
from purgatory_pipeline.replay.play.replay_sums import (
    DIFFERENT,
    EQUAL,
    IN_DOUBT,
    NO_OUTCOME,
    FinishedOperations,
    ReplaySums,
)
from purgatory_pipeline.replay.play.tape_steps import OtherCalls
from purgatory_pipeline.replay.policy import Policy

REGISTRATIONS_READ: Final = "registrations"
INCOMPLETE_REGISTRATIONS: Final = "incomplete registrations"
CLOCK_FALLS: Final = "rows whose clock went back"
REPEATED_ROWS: Final = "duplicate rows"
NOT_TAKEN: Final = "registrations that the engine would not take again"
NOT_DUE: Final = "expirations that were not due in the replay"


Rows = Callable[[str, OpenOperations, Column, list[Column]], None]
"""Takes finished operations: run, operations, the finished rows, and each player's verdicts on all rows."""


class RunReplay:
    """Replays one run under several policies side by side. The unchanged one is also compared with what was
    recorded.
    """

    def __init__(
        self, facts: RunContext, policies: Iterable[Policy], tally: ReplaySums, rows: Rows | None = None
    ) -> None:
        self._facts: Final = facts
        self._tally: Final = tally
        self._rows: Final = rows
        self._players: Final = [
            PolicyPlayer(policy, facts.details, facts.first_ms, tally.topics) for policy in policies
        ]
        self._open: Final = OpenOperations(len(self._players))
        self._comparisons: Final = [Comparison() if player.policy.is_unchanged else None for player in self._players]
        self._next_id = 1
        self._last_shut_down = -1
        self._last_ms = facts.last_ms

    def take(self, window: CallWindow) -> None:
        """Plays the next window."""
        counts = self._tally.counts
        counts[CLOCK_FALLS] += window.clock_falls
        counts[REPEATED_ROWS] += window.repeated
        self._last_ms = max(self._last_ms, window.last_ms)
        # Registrations first: an outcome or a cancel of the same window may be about them.
        arrivals = self._arrivals(window.get(REGISTRATIONS))
        if arrivals is not None:
            self._open.add(arrivals)
        recorded_outcomes = match_outcomes(window.get(OUTCOMES), self._open, counts)
        calls = OtherCalls(window.get(CALLS), self._open, self._last_shut_down)
        self._last_shut_down = calls.last_shut_down
        for place, player in enumerate(self._players):
            self._record(place, player.play(window, arrivals, recorded_outcomes, calls), recorded_outcomes)
        self._finish(self._open.is_done())

    def finish(self) -> None:
        """The history ends here; operations still open stay so."""
        for place, player in enumerate(self._players):
            self._record(place, player.finish(self._last_ms), None)
            self._tally.counts[NOT_TAKEN] += player.refused
            self._tally.counts[NOT_DUE] += player.not_due
            if isinstance(player.events, Rewritten):
                self._tally.counts[f"{MARKS_LEFT_OUT} {place}"] += player.events.marks_left_out
                self._tally.counts[f"{MARKS_KEPT} {place}"] += player.events.marks_kept
        self._finish(np.ones(len(self._open), np.bool_))

    def _arrivals(self, chunk: RowChunk | None) -> RegisteredOperations | None:
        if chunk is None:
            return None
        whole = complete_operations(chunk)
        self._tally.counts[REGISTRATIONS_READ] += len(whole) + whole.incomplete
        self._tally.counts[INCOMPLETE_REGISTRATIONS] += whole.incomplete
        if not len(whole):
            return None
        arrivals = RegisteredOperations(whole, self._next_id, self._tally.topics)
        self._next_id += arrivals.rows
        return arrivals

    def _record(self, place: int, completions: Completions | None, recorded_outcomes: RecordedOutcomes | None) -> None:
        """Stores what has ended in one player, and as recorded."""
        comparison = self._comparisons[place]
        answers = None
        if completions is not None:
            rows = self._open.rows_of_ids(numbers(completions.operation_ids))
            outcome, waited = numbers(completions.outcomes), numbers(completions.waited_ms)
            self._open.outcomes[place][rows] = outcome
            self._open.waited[place][rows] = waited
            if comparison is not None:
                answers = Answers(
                    rows,
                    numbers(completions.item_counts),
                    [outcome, waited, numbers(completions.lateness_ms)],
                    [numbers(completions.error_codes), numbers(completions.reached_offsets)],
                )
        if comparison is not None:
            comparison.add(
                self._open["item_counts"], None if recorded_outcomes is None else recorded_outcomes.answers, answers
            )

    def _finish(self, done: Column) -> None:
        """Adds finished operations to the sums and forgets them."""
        if not done.any():
            return
        operations = self._open
        verdicts = [self._verdicts(place) for place in range(len(self._players))]
        rows = np.flatnonzero(done)
        self._tally.add(
            FinishedOperations(
                operations["kind"].take(rows),
                operations["topic"].take(rows),
                operations.recorded.take(rows).astype(np.int64),
                operations.recorded_waited.take(rows),
                [outcomes.take(rows).astype(np.int64) for outcomes in operations.outcomes],
                [waited.take(rows) for waited in operations.waited],
                [verdict.take(rows) for verdict in verdicts],
            )
        )
        if self._rows is not None:
            self._rows(self._facts.run_id, operations, rows, verdicts)
        kept = ~done
        for comparison in self._comparisons:
            if comparison is not None:
                comparison.keep(kept, operations["item_counts"])
        operations.keep(kept)

    def _verdicts(self, place: int) -> Column:
        """A verdict on each open operation."""
        operations, comparison = self._open, self._comparisons[place]
        verdicts: Column = np.full(len(operations), EQUAL, np.int64)
        if comparison is not None:
            ended = operations.outcomes[place] != PENDING
            verdicts[comparison.differs | ~ended] = DIFFERENT
        else:
            same = operations.outcomes[place] == operations.recorded
            verdicts[~(same & (operations.waited[place] == operations.recorded_waited))] = DIFFERENT
        # Later lines win: what is in doubt is never called different, and without an outcome there is nothing to doubt.
        verdicts[operations.recorded_call >= self._facts.in_doubt_from] = IN_DOUBT
        verdicts[operations.recorded == PENDING] = NO_OUTCOME
        return verdicts


def numbers(values: vec[i64]) -> Column:
    """A column of completions, without a copy."""
    return np.asarray(values)
