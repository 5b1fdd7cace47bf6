"""One policy on one engine: plays the windows of a run and returns which operations ended how."""

from dataclasses import replace
from typing import Final

import numpy as np

from purgatory.archive.run_details import RunDetails
from purgatory.archive.schema import EVENTS
from purgatory.engine import tape
from purgatory.engine.batches import OperationBatch
from purgatory.engine.codes import KINDS
from purgatory.engine.completions import Completions
from purgatory_pipeline.replay.load.call_windows import CallWindow
from purgatory_pipeline.replay.load.row_chunk import Column
from purgatory_pipeline.replay.play.policy_events import AsRecorded, Rewritten
from purgatory_pipeline.replay.play.registered_operations import RegisteredOperations
from purgatory_pipeline.replay.play.tape_steps import OtherCalls, TapeSteps, merged, steps
from purgatory_pipeline.replay.policy import MIN_BYTES, TIMEOUT_MS, Change, Policy, changed_values

UNBOUNDED: Final = 2**60
UNLIMITED: Final = (
    "pending_operations_max",
    "partitions_max",
    "items_per_operation_max",
    "timeout_ms_max",
    "topic_length_max",
)
"""What was taken then is taken again. `signal_keys_max` stays: what the engine forgets depends on it."""


class PolicyPlayer:
    """Unchanged, it expires what was recorded as expired, when that was; else everything when it is due."""

    def __init__(self, policy: Policy, details: RunDetails, now_ms: int, topics: dict[str, int]) -> None:
        self.policy: Final = policy
        self.refused = 0
        """Operations that the engine did not take; none, if the history is right."""
        self.not_due = 0
        """Recorded expirations that were not due in the replay."""
        self.events: Final[AsRecorded | Rewritten] = Rewritten(policy) if policy.moves_marks else AsRecorded()
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
        events = self.events.take(window.get(EVENTS), window.last_ms)
        unchanged = self.policy.is_unchanged
        ends = calls.ends(recorded=unchanged)
        parts = [ends.steps]
        if arrivals is not None:
            parts.append(steps(arrivals.call, arrivals.time, arrivals.kind + tape.REGISTER))
        if events is not None:
            parts.append(steps(events.call, events.time, tape.APPLY))
        # Unchanged, the reaper's recorded turns are steps: its lateness is part of what is compared. Under a policy the
        # tape itself expires whatever is due before each step.
        if unchanged:
            parts.append(expirations)
        codes, times, counts = merged(parts, by_time=not unchanged)
        batches = [] if arrivals is None else self._batches(arrivals)
        played = self._engine.play(
            self._owner,
            tape.Tape(
                codes,
                times,
                counts,
                operations=batches,
                events=None if events is None else events.batch(),
                operation_ids=ends.operation_ids,
                names=ends.names,
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
        late = self.events.take(None, last_ms)
        parts = [steps(np.array([UNBOUNDED]), np.array([last_ms]), tape.PASS, 0)]
        if late is not None:
            parts.append(steps(late.call, late.time, tape.APPLY))
        codes, times, counts = merged(parts, by_time=True)
        batch = None if late is None else late.batch()
        self._engine.play(self._owner, tape.Tape(codes, times, counts, operations=[], events=batch), True)
        return self._ended()

    def _batches(self, arrivals: RegisteredOperations) -> list[OperationBatch | None]:
        timeouts_ms = self._changed(TIMEOUT_MS, arrivals.timeout_ms, arrivals)
        min_bytes = self._changed(MIN_BYTES, arrivals.min_bytes, arrivals)
        there = set(np.flatnonzero(np.bincount(arrivals.kind)).tolist())
        kinds = range(max(KINDS) + 1)
        return [arrivals.batch(kind, timeouts_ms, min_bytes) if kind in there else None for kind in kinds]

    def _changed(self, name: str, values: Column, arrivals: RegisteredOperations) -> Column:
        changes = self.policy.named(name)
        return changed_values(changes, values, arrivals.kind, [self._of_topic(change, arrivals) for change in changes])

    def _of_topic(self, change: Change, arrivals: RegisteredOperations) -> Column:
        if not change.topic:
            return np.ones(arrivals.rows, np.bool_)
        of_topic: Column = arrivals.topic == self._topics.get(change.topic, -1)
        return of_topic

    def _ended(self) -> Completions | None:
        taken = self._engine.take_completions()
        assert len(taken) <= 1, f"{len(taken)} owners"
        return taken[0] if taken else None
