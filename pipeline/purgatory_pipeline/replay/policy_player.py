"""One policy on one engine: plays the windows of a run and returns which operations ended how."""

from dataclasses import replace
from typing import Final

import numpy as np

from purgatory.engine import tape
from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import APPLY, PASS_TIME, REGISTER
from purgatory.engine.codes import KINDS
from purgatory.engine.completions import Completions
from purgatory.extensions.archive.run_details import RunDetails
from purgatory.extensions.archive.schema import EVENTS
from purgatory_pipeline.engine_rows.engine_batches import RegisteredOperations, event_batch
from purgatory_pipeline.engine_rows.row_chunk import Column
from purgatory_pipeline.engine_rows.tape_steps import TapeSteps, merged, steps
from purgatory_pipeline.replay.call_windows import CallWindow
from purgatory_pipeline.replay.other_calls import OtherCalls
from purgatory_pipeline.replay.policy import MIN_BYTES, TIMEOUT_MS, Policy
from purgatory_pipeline.replay.policy_events import EventRewriter

UNBOUNDED: Final = 2**60
UNLIMITED: Final = (
    "pending_operations_max",
    "pending_items_max",
    "partitions_max",
    "items_per_operation_max",
    "timeout_ms_max",
    "topic_length_max",
)
"""Limits are lifted, so that every accepted operation is accepted again. `signal_keys_max` is kept: it decides which
keys the engine forgets."""


class PolicyPlayer:
    """Plays a policy. The unchanged policy expires operations when they were recorded as expired; others when due."""

    def __init__(self, policy: Policy, details: RunDetails, now_ms: int, topics: dict[str, int]) -> None:
        self.policy: Final = policy
        self.refused = 0
        """Operations that the engine did not take; none, if the history is right."""
        self.not_due = 0
        """Recorded expirations that were not due in the replay."""
        self.rewriter: Final = EventRewriter(policy) if policy.moves_marks else None
        limits = details.limits | dict.fromkeys(UNLIMITED, UNBOUNDED)
        self._engine: Final = replace(details, limits=limits).make_engine(now_ms)
        self._owner: Final = self._engine.add_owner()
        self._topics: Final = topics

    def play(
        self,
        window: CallWindow,
        arrivals: RegisteredOperations | None,
        expirations: TapeSteps,
        calls: OtherCalls,
    ) -> Completions | None:
        """Plays a window; returns what has ended, by id, or None. `expirations` are the recorded ones."""
        events = window.get(EVENTS)
        if self.rewriter is not None:
            events = self.rewriter.take(events, window.last_ms)
        unchanged = self.policy.is_unchanged
        ends = calls.ends(recorded=unchanged)
        parts = [ends.steps]
        if arrivals is not None:
            parts.append(steps(arrivals.call, arrivals.time, arrivals.kind + REGISTER))
        if events is not None:
            parts.append(steps(events.columns["call"], events.columns["time"], APPLY))
        # Unchanged: the reaper's recorded turns are steps of the tape, because its lateness is compared, too. Under
        # another policy, the tape itself expires everything that is due before each step.
        if unchanged:
            parts.append(expirations)
        played = self._engine.play(
            self._owner,
            tape.Tape(
                *merged(parts, by_time=not unchanged),
                operations=[] if arrivals is None else self._batches(arrivals),
                events=None if events is None else event_batch(events),
                operation_ids=ends.operation_ids,
                names=ends.names,
                stale=ends.stale,
                extensions_ms=ends.extensions_ms,
            ),
            not unchanged,
        )
        self.refused += len(played.refused_ids)
        self.not_due += played.not_due
        return self._ended()

    def finish(self, last_ms: int) -> Completions | None:
        """Lets time pass to the end of the history; returns what has ended by then."""
        if self.policy.is_unchanged:
            return None
        parts = [steps(np.array([UNBOUNDED]), np.array([last_ms]), PASS_TIME, 0)]
        late = None if self.rewriter is None else self.rewriter.take(None, last_ms)
        if late is not None:
            parts.append(steps(late.columns["call"], late.columns["time"], APPLY))
        batch = None if late is None else event_batch(late)
        self._engine.play(self._owner, tape.Tape(*merged(parts, by_time=True), operations=[], events=batch), True)
        return self._ended()

    def _batches(self, arrivals: RegisteredOperations) -> list[OperationBatch | None]:
        timeouts_ms = self._changed(TIMEOUT_MS, arrivals.timeout_ms, arrivals)
        min_bytes = self._changed(MIN_BYTES, arrivals.min_bytes, arrivals)
        there = set(np.flatnonzero(np.bincount(arrivals.kind)).tolist())
        kinds = range(max(KINDS) + 1)
        return [arrivals.batch(kind, timeouts_ms, min_bytes) if kind in there else None for kind in kinds]

    def _changed(self, name: str, values: Column, arrivals: RegisteredOperations) -> Column:
        for change in self.policy.named(name):
            chosen = np.ones(arrivals.rows, np.bool_)
            if change.topic:
                chosen &= arrivals.topic == self._topics.get(change.topic, -1)
            if change.kind:
                chosen &= arrivals.kind == change.kind
            values = np.where(chosen, change.applied(values), values)
        return values

    def _ended(self) -> Completions | None:
        taken = self._engine.take_completions()
        assert len(taken) <= 1, f"{len(taken)} owners"
        return taken[0] if taken else None
