"""Replays one run, or some of its partitions: windows in, sums out, and on request a row for each operation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from purgatory.engine import codes, tape
from purgatory.engine.batches import OperationBatch
from purgatory.engine.calls import APPLY, PASS_TIME, REGISTER
from purgatory.engine.completions import Completions
from purgatory.engine.marks.events import DEAD
from purgatory.engine.marks.partition import Partition
from purgatory.extensions.archive.schema import CALLS, EVENTS, OUTCOMES, REGISTRATIONS
from purgatory_pipeline.engine_rows.engine_batches import RegisteredOperations, complete_operations, event_batch
from purgatory_pipeline.engine_rows.row_chunk import Column, Name, RowChunk, join
from purgatory_pipeline.engine_rows.tape_steps import NO_STEPS, TapeSteps, merged, steps
from purgatory_pipeline.replay.open_operations import PENDING, OpenOperations, Outcomes, hash_answers, match_outcomes
from purgatory_pipeline.replay.other_calls import OtherCalls
from purgatory_pipeline.replay.policy import BASELINE, MIN_BYTES, MIN_IN_SYNC_REPLICAS, TIMEOUT_MS, Policy
from purgatory_pipeline.replay.replay_sums import DIFFERENT, EQUAL, IN_DOUBT, NO_OUTCOME, ReplaySums
from purgatory_pipeline.replay.run_files import CallWindow, RunContext

MARKS_LEFT_OUT: Final = "pushed high watermarks left out"
MARKS_KEPT: Final = "pushed high watermarks kept"
"""Counters of each player; its place is appended."""
ROLE_EVENTS: Final = (codes.IN_SYNC_REPLICAS, codes.LEADERSHIP, codes.PARTITION_REMOVED)
REPLICA_EVENTS: Final = (codes.FOLLOWER_PROGRESS, codes.REPLICA_STATE)


class EventRewriter:
    """Rewrites recorded events for a policy that moves high watermarks.

    A slow replica's progress is delayed, and so is all that a partition reports while its leadership moves; both are in
    order with the other events of that time. A replica that is gone is dead and in no in-sync set. Where it leads it
    stays until the first in-sync set after that, because its successor is not known. If the in-sync set of
    a partition is known, its high watermark follows from the replicas; marks that were pushed as well were computed
    from the recorded replicas, so they are dropped. If the set is not known, pushed marks are the only information:
    they are kept, and neither replicas nor the minimum have an effect.
    """

    def __init__(self, policy: Policy, partitions: Iterable[Partition] = ()) -> None:
        """`partitions`: those that the run knows at its beginning. The policy changes them, too."""
        self.marks_left_out = 0
        self.marks_kept = 0
        self._policy: Final = policy
        self._late: RowChunk | None = None
        """Events that come after the last window; their `time` is when."""
        self._in_sync_known: Final[set[Name]] = set()
        self._followed: Final[set[Name]] = set()
        self._leaders: Final[dict[Name, int]] = {}
        self._with_gone: Final[set[Name]] = set()
        """Partitions whose in-sync set still has a replica that is gone elsewhere."""
        self._roles: Final[dict[Name, tuple[bool, int]]] = {}
        """Whether this is the leader, and its epoch, as of the last leadership event of each partition."""
        self._moving_until: Final[dict[Name, int]] = {}
        """When the last change of leadership of each partition is over."""
        for partition in partitions:
            name, sets = partition.name, (partition.in_sync, partition.proposed)
            if partition.leader_epoch >= 0:
                self._roles[name] = partition.is_leader, int(partition.leader_epoch)
            self._follow_role(name, codes.LEADERSHIP, partition.is_leader, None)
            detail = (None, *sets, int(partition.leader_id), int(partition.min_in_sync_replicas))
            changed = self._follow_role(name, codes.IN_SYNC_REPLICAS, True, detail)
            _, partition.in_sync, partition.proposed, _, partition.min_in_sync_replicas = changed
            partition.mark_members()
            for replica_id in policy.without_replicas:
                if name not in self._with_gone and replica_id in partition.replicas:
                    partition.replicas[replica_id].dead = True

    def take(self, chunk: RowChunk | None, last_ms: int) -> RowChunk | None:
        """The events up to `last_ms`, in the order in which they reach the engine: those of a window, and those delayed
        from before.
        """
        if chunk is not None:
            chunk = self._delayed(self._with_other_replicas(chunk))
        parts = [part for part in (self._late, chunk) if part is not None and len(part)]
        self._late = None
        if not parts:
            return None
        whole = join(parts)
        whole = whole.take(np.lexsort((whole.columns["call"], whole.columns["time"])))
        stop = int(np.searchsorted(whole.columns["time"], last_ms, side="right"))
        if stop < len(whole):
            self._late = whole.slice(stop, len(whole)).with_names_used()
        return whole.slice(0, stop) if stop else None

    def _delayed(self, chunk: RowChunk) -> RowChunk:
        time = chunk.columns["time"].copy()
        progress = chunk.columns["type"] == codes.FOLLOWER_PROGRESS
        for replica_id, delay_ms in self._policy.slow_replicas:
            time[progress & (chunk.column("replica_id") == replica_id)] += delay_ms
        if self._policy.leader_move_ms:
            self._delay_moving(chunk, time)
        return replace(chunk, columns={**chunk.columns, "time": time})

    def _delay_moving(self, chunk: RowChunk, time: Column) -> None:
        """Delays events to the end of the last change of leadership of their partition."""
        names, places = chunk.names, chunk.columns["name"]
        until = np.array([self._moving_until.get(name, 0) for name in names], np.int64)
        start = 0
        for row in np.flatnonzero(chunk.columns["type"] == codes.LEADERSHIP).tolist():
            span = slice(start, row + 1)
            time[span] = np.maximum(time[span], until[places[span]])
            start = row + 1
            name = names[places[row]]
            role = bool(chunk.column("flags")[row]), int(chunk.column("leader_epoch")[row])
            # The first event of a partition only names the leader, others repeat it or are the next step of one change.
            known, self._roles[name] = self._roles.get(name, role), role
            if known != role and chunk.columns["time"][row] >= self._moving_until.get(name, 0):
                until[_places_of(name, names)] = self._moving_until[name] = int(time[row]) + self._policy.leader_move_ms
        time[start:] = np.maximum(time[start:], until[places[start:]])

    def _with_other_replicas(self, chunk: RowChunk) -> RowChunk:
        """Drops pushed marks of partitions whose high watermark follows from the replicas, changes in-sync sets, and
        makes what a replica that is gone reports say that it is dead.
        """
        names, places, types = chunk.names, chunk.columns["name"], chunk.columns["type"].copy()
        flags, details = chunk.column("flags").copy(), dict(zip(chunk.detail_rows.tolist(), chunk.details, strict=True))
        left_out = types == codes.HIGH_WATERMARK
        of_gone = np.isin(types, REPLICA_EVENTS) & np.isin(chunk.column("replica_id"), self._policy.without_replicas)
        derived = np.array([self._is_derived(name) for name in names], np.bool_)
        with_gone = np.array([name in self._with_gone for name in names], np.bool_)
        roles = np.flatnonzero(np.isin(types, ROLE_EVENTS)).tolist()
        for number, (start, stop) in enumerate(pairwise([0, *roles, len(chunk)])):
            if number:
                name = names[places[start]]
                details[start] = self._follow_role(name, types[start], flags[start] != 0, details.get(start))
                own = _places_of(name, names)
                derived[own], with_gone[own] = self._is_derived(name), name in self._with_gone
            left_out[start:stop] &= derived[places[start:stop]]
            of_gone[start:stop] &= ~with_gone[places[start:stop]]
        counted = chunk.column("copy") == 0
        self.marks_left_out += int(np.count_nonzero(left_out & counted))
        self.marks_kept += int(np.count_nonzero((types == codes.HIGH_WATERMARK) & ~left_out & counted))
        types[of_gone], flags[of_gone] = codes.REPLICA_STATE, DEAD
        columns = {**chunk.columns, "type": types, "flags": flags}
        changed = replace(chunk, columns=columns, details=[details[row] for row in chunk.detail_rows.tolist()])
        return changed.take(~left_out) if left_out.any() else changed

    def _is_derived(self, name: Name) -> bool:
        return name in self._in_sync_known and name not in self._followed

    def _follow_role(self, name: Name, event_type: int, flag: bool, detail: Sequence[Any] | None) -> Any:  # noqa: ANN401
        """Follows whether a partition knows its in-sync set, who leads it, and whether it is led elsewhere (a follower
        gets its mark). Returns the event's `detail` (see `arrow_chunks.SETS`) under the policy.
        """
        if event_type == codes.PARTITION_REMOVED:
            for known in (self._in_sync_known, self._followed, self._with_gone):
                known.discard(name)
            self._leaders.pop(name, None)
        elif event_type == codes.LEADERSHIP:
            (self._followed.discard if flag else self._followed.add)(name)
        if detail is None:
            return None
        replicas, in_sync, proposed, leader_id, minimum = detail
        if leader_id is not None and leader_id >= 0:
            self._leaders[name] = leader_id
        if self._leaders.get(name) in self._policy.without_replicas or (in_sync and not self._left(in_sync)):
            self._with_gone.add(name)
        elif event_type == codes.IN_SYNC_REPLICAS and in_sync:
            self._with_gone.discard(name)
        if event_type == codes.IN_SYNC_REPLICAS:
            if in_sync:
                self._in_sync_known.add(name)
            minimum = self._changed_minimum(name[0], -1 if minimum is None else minimum)
        if name not in self._with_gone:
            in_sync, proposed = self._left(in_sync), self._left(proposed)
        return replicas, in_sync, proposed, leader_id, minimum

    def _left(self, replica_ids: list[int] | None) -> list[int] | None:
        """The replicas that are not gone."""
        gone = self._policy.without_replicas
        return None if replica_ids is None else [replica_id for replica_id in replica_ids if replica_id not in gone]

    def _changed_minimum(self, topic: str, minimum: int) -> int:
        for change in self._policy.named(MIN_IN_SYNC_REPLICAS):
            if not change.topic or change.topic == topic:
                minimum = int(change.applied(np.array([max(minimum, 1)]))[0])
        return minimum


def _places_of(name: Name, names: Sequence[Name]) -> list[int]:
    """A dictionary may have a name more than once."""
    return [place for place, other in enumerate(names) if other == name]


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
    """Plays a policy. Without `is_prompt` operations expire when they were recorded as expired, otherwise when due."""

    def __init__(self, policy: Policy, facts: RunContext, topics: dict[str, int], marks: Sequence[str]) -> None:
        self.policy: Final = policy
        self.refused = 0
        """Operations that the engine did not take; none, if the history is right."""
        self.not_due = 0
        """Recorded expirations that were not due in the replay."""
        limits = facts.details.limits | dict.fromkeys(UNLIMITED, UNBOUNDED)
        self._engine: Final = replace(facts.details, limits=limits).make_engine(facts.first_ms, marks)
        partitions = list(self._engine.snapshots.partitions.by_name.values())
        self.rewriter: Final = EventRewriter(policy, partitions) if policy.moves_marks else None
        for partition in partitions if policy.moves_marks else ():
            partition.recompute_high_watermark(facts.first_ms, facts.details.replica_lag_time_max_ms)
        self._owner: Final = self._engine.add_owner()
        self._topics: Final = topics

    def play(
        self, window: CallWindow, arrivals: RegisteredOperations | None, expirations: TapeSteps, calls: OtherCalls
    ) -> Completions | None:
        """Plays a window; returns what has ended, by id, or None. `expirations` are the recorded ones."""
        events = window.get(EVENTS)
        if self.rewriter is not None:
            events = self.rewriter.take(events, window.last_ms)
        prompt = self.policy.is_prompt
        ends = calls.ends(recorded=not prompt)
        parts = [ends.steps]
        if arrivals is not None:
            parts.append(steps(arrivals.call, arrivals.time, arrivals.kind + REGISTER))
        if events is not None:
            parts.append(steps(events.columns["call"], events.columns["time"], APPLY))
        # As recorded: the reaper's turns are steps of the tape, because its lateness is compared, too. Otherwise the
        # tape itself expires everything that is due before each step.
        if not prompt:
            parts.append(expirations)
        played = self._engine.play(
            self._owner,
            tape.Tape(
                *merged(parts, by_time=prompt),
                operations=[] if arrivals is None else self._batches(arrivals),
                events=None if events is None else event_batch(events),
                operation_ids=ends.operation_ids,
                names=ends.names,
                stale=ends.stale,
                extensions_ms=ends.extensions_ms,
            ),
            prompt,
        )
        self.refused += len(played.refused_ids)
        self.not_due += played.not_due
        return self._ended()

    def finish(self, last_ms: int) -> Completions | None:
        """Lets time pass to the end of the history; returns what has ended by then."""
        if not self.policy.is_prompt:
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
        return arrivals.batches(timeouts_ms, min_bytes)

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


REGISTRATIONS_READ: Final = "registrations"
INCOMPLETE_REGISTRATIONS: Final = "incomplete registrations"
CLOCK_FALLS: Final = "rows whose clock went back"
REPEATED_ROWS: Final = "duplicate rows"
NOT_TAKEN: Final = "registrations that the engine would not take again"
NOT_DUE: Final = "expirations that were not due in the replay"

Rows = Callable[[str, OpenOperations, list[Column]], None]
"""Takes finished operations: run, operations, and the verdicts under each policy."""


class RunReplay:
    """Replays one run under several policies side by side. The outcomes of each are compared with those of BASELINE,
    if it is among them, and otherwise with the recording.
    """

    def __init__(
        self,
        facts: RunContext,
        policies: Iterable[Policy],
        tally: ReplaySums,
        rows: Rows | None = None,
        marks: Sequence[str] = (),
    ) -> None:
        """`marks`: those with which the run continued a journal."""
        self._facts: Final = facts
        self._tally: Final = tally
        self._rows: Final = rows
        self._players: Final = [PolicyPlayer(policy, facts, tally.topics, marks) for policy in policies]
        self._open = OpenOperations.none(len(self._players))
        self._next_id = 1
        self._last_shut_down = -1
        self._last_ms = facts.last_ms

    def take(self, window: CallWindow) -> None:
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
        if completions is None:
            return
        outcomes = self._open.replayed[place]
        rows = self._open.rows_of_ids(np.asarray(completions.operation_ids))
        outcome, waited_ms = np.asarray(completions.outcomes), np.asarray(completions.waited_ms)
        outcomes["outcome"][rows] = outcome
        outcomes["waited_ms"][rows] = waited_ms
        if not self._players[place].policy.is_prompt:
            outcomes["answer"][rows] = hash_answers(
                [outcome, waited_ms, np.asarray(completions.lateness_ms)],
                [np.asarray(completions.error_codes), np.asarray(completions.reached_offsets)],
                np.asarray(completions.item_counts),
            )

    def _add_up(self, finished: OpenOperations) -> None:
        if not len(finished):
            return
        policies = [player.policy for player in self._players]
        unchanged = finished.replayed[policies.index(BASELINE)] if BASELINE in policies else finished.recorded
        before = [unchanged if policy.changes_something else finished.recorded for policy in policies]
        pairs = zip(before, finished.replayed, policies, strict=True)
        verdicts = [self._verdicts(finished.recorded, *pair) for pair in pairs]
        self._tally.add(finished, before, verdicts)
        if self._rows is not None:
            self._rows(self._facts.run_id, finished, verdicts)

    def _verdicts(self, recorded: Outcomes, before: Outcomes, replayed: Outcomes, policy: Policy) -> Column:
        compared = ["outcome", "waited_ms"] if policy.is_prompt else ["outcome", "waited_ms", "answer"]
        verdicts: Column = np.where(replayed[compared] == before[compared], EQUAL, DIFFERENT)
        # The order matters, later lines win: an operation in doubt never counts as different, and one without a
        # recorded outcome never counts as in doubt.
        verdicts[recorded["call"] >= self._facts.in_doubt_from] = IN_DOUBT
        verdicts[recorded["outcome"] == PENDING] = NO_OUTCOME
        return verdicts
