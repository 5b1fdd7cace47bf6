"""The verdict on a day: compares what callers received with what the engine of the daemon had completed.

Each operation has exactly one outcome at its caller, with the content that it had in the engine, and not earlier. No
operation expires before its deadline, and none is lost. That the engine is right, the world `engine` shows.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from purgatory_client import Outcome, Result, ResultColumns
from purgatory_client.batches import WaitBatch
from purgatory_client.errors import ClientClosed, InvalidRequest, LimitExceeded, Unavailable
from purgatory_client.waits import Wait

from purgatory.engine.calls import Apply, Register
from purgatory.service.listeners.listener import Called, Completed, Listener
from tests.engine import plain
from tests.engine.adapter import ended_of
from tests.histories.day.actors import CallLog, SimulatedCall
from tests.histories.day.plan import INVALID, Plan
from tests.scripts.messages import ended_row

CLOCK_MS = 1.0
"""The daemon counts whole milliseconds and rounds up on registration, so its times may be ahead by this much."""


def _value_at(column: Sequence[int], place: int, default: int) -> int:
    """The value of a column at a position: a column has a value for each, one for all, or none for the default."""
    return column[place if len(column) > 1 else 0] if column else default


@dataclass(frozen=True)
class DaemonEnd:
    """How an operation ended in the engine. `session_id` is empty for unary waits."""

    session_id: str
    ended: plain.Ended
    ended_ms: int
    has_result: bool
    """False: it ended together with its session, so no result is sent."""

    @property
    def registered_ms(self) -> int:
        return self.ended_ms - self.ended.waited_ms


class DaemonRecord(Listener):
    """What one daemon does, in the order of its calls of the engine."""

    def __init__(self) -> None:
        self.ends: list[DaemonEnd] = []
        self.accepted: Counter[int] = Counter()
        """Registrations by kind."""
        self.signals: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """Number of signals by key and count."""
        self.incarnations: dict[int, tuple[object, str]] = {}
        """Each session that has registered operations, by its `id`, and its incarnation."""
        self.reaper_failures = 0
        self._now_ms = 0

    def called(self, event: Called) -> None:
        self._now_ms = event.now_ms
        if isinstance(event.call, Register):
            self.accepted[event.call.kind] += event.receipt.accepted
            if event.session is not None:
                self.incarnations[id(event.session)] = event.session, event.session.incarnation
        elif isinstance(event.call, Apply):
            batch = event.call.batch
            for place in range(event.call.start, event.receipt.next_index):
                if batch.types[place] == plain.KEY_SIGNALLED:
                    key = batch.keys[_value_at(batch.item_indexes, place, 0)]
                    self.signals[key][_value_at(batch.offsets, place, 1)] += 1

    def completed(self, event: Completed) -> None:
        self._note(event, has_result=True)

    def discarded(self, event: Completed) -> None:
        self._note(event, has_result=False)

    def _note(self, event: Completed, *, has_result: bool) -> None:
        session_id = "" if event.session is None else event.session.session_id
        self.ends += [DaemonEnd(session_id, row, self._now_ms, has_result) for row in ended_of(event.completions)]

    def reaper_failed(self) -> None:
        self.reaper_failures += 1


class Seen:
    """One operation, and what its caller has received."""

    def __init__(
        self, call: SimulatedCall, operation: plain.Operation, operation_id: int, result: Result | None = None
    ) -> None:
        self.call = call
        self.operation = operation
        self.operation_id = operation_id
        self.is_valid = operation.items[0].offset != INVALID
        self.error: BaseException | None = call.error
        is_result = result is not None and result.outcome != Outcome.REFUSED
        self.row = ended_row(operation_id, result) if is_result and result is not None else None

    def __repr__(self) -> str:
        return (
            f"client {self.call.client} operation {self.operation_id} of {self.call.session_id} {self.operation}: "
            f"{self.row or repr(self.error)}, submitted {self.call.submitted_ms:.1f} ended {self.call.ended_ms:.1f}"
        )


def seen_of(call: SimulatedCall) -> Iterator[Seen]:
    first_id = call.wait.operation_id if isinstance(call.wait, Wait | WaitBatch) else 0
    results: list[Result | None] = [None] * len(call.request.operations)
    if call.result is not None:
        results = list(call.result) if isinstance(call.result, ResultColumns) else [call.result]
    for place, operation in enumerate(call.request.operations):
        seen = Seen(call, operation, first_id + place if first_id else 0, results[place])
        if isinstance(call.result, ResultColumns):
            seen.error = call.result.refusals.get(place)
        yield seen


class Checker:
    """Judges one day, which passes if there are no `complaints`."""

    def __init__(self, plan: Plan, log: CallLog, records: list[DaemonRecord]) -> None:
        self._plan = plan
        self._log = log
        self._records = records
        self._ends: dict[tuple[str, int], list[DaemonEnd]] = defaultdict(list)
        self._unary: list[DaemonEnd] = []
        for end in (end for record in records for end in record.ends):
            (self._ends[end.session_id, end.ended.operation_id] if end.session_id else self._unary).append(end)
        self.complaints: list[str] = list(log.complaints)
        self.outcomes: Counter[str] = Counter()
        """The number of operations by outcome at their callers."""

    def check(self) -> None:
        """Check all rules except those about the daemon's own final state."""
        for call in self._log.calls:
            if not call.ended:
                self._complain(f"never ended: {list(seen_of(call))}")
                continue
            for seen in seen_of(call):
                self._check(seen)
        # Every caller that waited over a working connection at a drain has an answer.
        for call in self._log.drained:
            if isinstance(call.error, ClientClosed | Unavailable):
                self._complain(f"drained without an answer: {list(seen_of(call))}")
        self._check_pushes()
        incarnations = Counter(name for record in self._records for _, name in record.incarnations.values())
        if len(incarnations) < incarnations.total():
            self._complain(f"two sessions with one incarnation: {incarnations.most_common(1)}")
        if any(record.reaper_failures for record in self._records):
            self._complain("the reaper failed")

    def _complain(self, what: str) -> None:
        self.complaints.append(what)

    def _check(self, seen: Seen) -> None:
        if seen.row is not None:
            self.outcomes[plain.OUTCOME_WORDS[seen.row.outcome]] += 1
            self._check_result(seen, seen.row)
            return
        error, call = seen.error, seen.call
        self.outcomes[type(error).__name__] += 1
        if isinstance(error, asyncio.CancelledError):
            allowed = call.cancelled
        elif isinstance(error, ClientClosed):
            allowed = call.closing
        elif isinstance(error, InvalidRequest):
            allowed = not seen.is_valid
        elif isinstance(error, LimitExceeded):
            allowed = self._plan.unacknowledged_results_max < 1_000
        else:
            allowed = isinstance(error, Unavailable) and self._may_be_unavailable(call)
        if not allowed:
            self._complain(f"an error without a reason: {seen!r}")

    def _may_be_unavailable(self, call: SimulatedCall) -> bool:
        """A daemon that is shutting down accepts no work; a client may give up; a unary call fails with its
        connection.
        """
        ends = self._plan.ends_with_drain or bool(self._plan.restarts)
        is_cut = call.request.path == "unary" and call.faults > 0
        return ends or self._plan.give_up_after is not None or is_cut

    def _check_result(self, seen: Seen, row: plain.Ended) -> None:
        if not seen.is_valid:
            self._complain(f"an invalid registration has an outcome: {seen!r}")
        # Several if the daemon dropped the session and the operation was registered again.
        is_unary = seen.call.request.path == "unary"
        candidates = self._unary if is_unary else self._ends[seen.call.session_id, seen.operation_id]
        fitting = [end for end in candidates if self._fits(seen, row, end)]
        if not fitting:
            alike = [end for end in candidates if end.ended.kind == row.kind]
            self._complain(f"this must not be: {seen!r}; the daemon's ends of it: {alike[:3]}")
        elif row.outcome == plain.EXPIRED:
            waited_ms = max(end.ended_ms for end in fitting) - seen.call.submitted_ms
            if waited_ms < seen.operation.timeout_ms:
                self._complain(f"expired {waited_ms:.3f} ms after it was submitted: {seen!r}")

    @staticmethod
    def _fits(seen: Seen, row: plain.Ended, end: DaemonEnd) -> bool:
        """The time waited is that of the registration; in a wait that was sent again, also what passed before it."""
        call, ended = seen.call, end.ended
        before_ms = row.waited_ms - ended.waited_ms
        return (
            end.has_result
            and (row.kind, row.outcome, row.items) == (ended.kind, ended.outcome, ended.items)
            and (before_ms == 0 or 0 < before_ms <= end.registered_ms - call.submitted_ms + CLOCK_MS)
            and call.submitted_ms <= end.registered_ms
            and end.ended_ms <= call.ended_ms + CLOCK_MS
        )

    def _check_pushes(self) -> None:
        """An acknowledged push was applied once, any other at most once."""
        for key, pushes in self._log.pushes.items():
            for number, is_acknowledged in pushes.items():
                applied = sum(record.signals[key][number] for record in self._records)
                if not is_acknowledged <= applied <= 1:
                    self._complain(f"push {number} of {key} was applied {applied} times")
