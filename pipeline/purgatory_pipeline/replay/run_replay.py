"""Replays one run, or some of its partitions: windows in, sums out, and on request a row for each operation."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from purgatory.engine.completions import Completions
from purgatory.extensions.archive.schema import CALLS, OUTCOMES, REGISTRATIONS
from purgatory_pipeline.engine_rows.engine_batches import RegisteredOperations, complete_operations
from purgatory_pipeline.engine_rows.row_chunk import Column, RowChunk
from purgatory_pipeline.engine_rows.tape_steps import NO_STEPS
from purgatory_pipeline.replay.call_windows import CallWindow
from purgatory_pipeline.replay.open_operations import PENDING, OpenOperations, Outcomes, hash_answers
from purgatory_pipeline.replay.other_calls import OtherCalls
from purgatory_pipeline.replay.policy import Policy
from purgatory_pipeline.replay.policy_events import MARKS_KEPT, MARKS_LEFT_OUT
from purgatory_pipeline.replay.policy_player import PolicyPlayer
from purgatory_pipeline.replay.recorded_outcomes import match_outcomes
from purgatory_pipeline.replay.replay_sums import DIFFERENT, EQUAL, IN_DOUBT, NO_OUTCOME, ReplaySums
from purgatory_pipeline.replay.run_files import RunContext

REGISTRATIONS_READ: Final = "registrations"
INCOMPLETE_REGISTRATIONS: Final = "incomplete registrations"
CLOCK_FALLS: Final = "rows whose clock went back"
REPEATED_ROWS: Final = "duplicate rows"
NOT_TAKEN: Final = "registrations that the engine would not take again"
NOT_DUE: Final = "expirations that were not due in the replay"

Rows = Callable[[str, OpenOperations, list[Column]], None]
"""Takes finished operations: run, operations, and the verdicts under each policy."""


class RunReplay:
    """Replays one run under several policies side by side. The unchanged one is compared with the recording."""

    def __init__(
        self, facts: RunContext, policies: Iterable[Policy], tally: ReplaySums, rows: Rows | None = None
    ) -> None:
        self._facts: Final = facts
        self._tally: Final = tally
        self._rows: Final = rows
        self._players: Final = [
            PolicyPlayer(policy, facts.details, facts.first_ms, tally.topics) for policy in policies
        ]
        self._open = OpenOperations.none(len(self._players))
        self._next_id = 1
        self._last_shut_down = -1
        self._last_ms = facts.last_ms

    def take(self, window: CallWindow) -> None:
        """Plays the next window."""
        counts = self._tally.counts
        counts[CLOCK_FALLS] += window.clock_falls
        counts[REPEATED_ROWS] += window.repeated
        self._last_ms = max(self._last_ms, window.last_ms)
        # Registrations first: outcomes and cancels of the same window may refer to them.
        arrivals = self._arrivals(window.get(REGISTRATIONS))
        if arrivals is not None:
            self._open.add(arrivals)
        outcomes = window.get(OUTCOMES)
        expirations = NO_STEPS if outcomes is None else match_outcomes(outcomes, self._open, counts)
        calls = OtherCalls(window.get(CALLS), self._open, self._last_shut_down)
        self._last_shut_down = calls.last_shut_down
        for place, player in enumerate(self._players):
            self._record(place, player.play(window, arrivals, expirations, calls))
        done = self._open.is_done()
        if done.any():
            self._add_up(self._open.take(np.flatnonzero(done)))
            self._open = self._open.take(np.flatnonzero(~done))

    def finish(self) -> None:
        """The history ends here; operations still open stay so."""
        for place, player in enumerate(self._players):
            self._record(place, player.finish(self._last_ms))
            self._tally.counts[NOT_TAKEN] += player.refused
            self._tally.counts[NOT_DUE] += player.not_due
            if player.rewriter is not None:
                self._tally.counts[f"{MARKS_LEFT_OUT} {place}"] += player.rewriter.marks_left_out
                self._tally.counts[f"{MARKS_KEPT} {place}"] += player.rewriter.marks_kept
        self._add_up(self._open)

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

    def _record(self, place: int, completions: Completions | None) -> None:
        """Stores what has ended under one policy."""
        if completions is None:
            return
        outcomes = self._open.replayed[place]
        rows = self._open.rows_of_ids(np.asarray(completions.operation_ids))
        outcome, waited_ms = np.asarray(completions.outcomes), np.asarray(completions.waited_ms)
        outcomes.outcome[rows] = outcome
        outcomes.waited_ms[rows] = waited_ms
        if self._players[place].policy.is_unchanged:
            outcomes.answer[rows] = hash_answers(
                [outcome, waited_ms, np.asarray(completions.lateness_ms)],
                [np.asarray(completions.error_codes), np.asarray(completions.reached_offsets)],
                np.asarray(completions.item_counts),
            )

    def _add_up(self, finished: OpenOperations) -> None:
        """Adds operations that are finished to the sums."""
        if not len(finished):
            return
        pairs = zip(self._players, finished.replayed, strict=True)
        verdicts = [self._verdicts(finished.recorded, outcomes, player.policy) for player, outcomes in pairs]
        self._tally.add(finished, verdicts)
        if self._rows is not None:
            self._rows(self._facts.run_id, finished, verdicts)

    def _verdicts(self, recorded: Outcomes, replayed: Outcomes, policy: Policy) -> Column:
        verdicts: Column = np.full(len(recorded.outcome), EQUAL, np.int64)
        verdicts[(replayed.outcome != recorded.outcome) | (replayed.waited_ms != recorded.waited_ms)] = DIFFERENT
        if policy.is_unchanged:
            verdicts[replayed.answer != recorded.answer] = DIFFERENT
        # The order matters, later lines win: an operation in doubt never counts as different, and one without a
        # recorded outcome never counts as in doubt.
        verdicts[recorded.call >= self._facts.in_doubt_from] = IN_DOUBT
        verdicts[recorded.outcome == PENDING] = NO_OUTCOME
        return verdicts
