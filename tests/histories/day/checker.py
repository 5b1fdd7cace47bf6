"""The verdict on a day: compares the results of callers with the oracle's, independently of engine and client.

Each operation has exactly one outcome at its caller: the one that the daemon must have reached according to the model,
with the same codes, and not earlier. No operation expires before its deadline, and none is lost.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator

from purgatory_client import Outcome, Result, ResultColumns
from purgatory_client.batches import WaitBatch
from purgatory_client.errors import ClientClosed, InvalidRequest, LimitExceeded, Unavailable
from purgatory_client.waits import Wait

from tests.histories.day.actors import tally_key
from tests.histories.day.call_log import CallLog, SimulatedCall
from tests.histories.day.model import ExpectedEnd, Run
from tests.histories.day.plan import Batch, Plan, PlannedWait

CLOCK_MS = 1.0
"""The daemon counts whole milliseconds and rounds up on registration, so its times may be ahead by this much."""


class Seen:
    def __init__(self, call: SimulatedCall, operation: PlannedWait, operation_id: int) -> None:
        self.call = call
        self.operation = operation
        self.operation_id = operation_id
        self.outcome: int | None = None
        self.waited_ms = -1
        self.codes: tuple[int, ...] = ()
        self.error: BaseException | None = call.error

    def take(self, result: Result) -> None:
        self.outcome = result.outcome
        self.waited_ms = round(result.waited * 1_000)
        if self.outcome == Outcome.REFUSED:
            return
        self.codes = tuple(item.error_code for item in result.partitions.values())

    def __repr__(self) -> str:
        how = Outcome(self.outcome).name if self.outcome else repr(self.error)
        return (
            f"client {self.call.client} operation {self.operation_id} of {self.call.session_id} {self.operation}: "
            f"{how} after {self.waited_ms} ms with {self.codes}, submitted {self.call.submitted_ms:.1f} "
            f"ended {self.call.ended_ms:.1f}"
        )


def seen_of(call: SimulatedCall) -> Iterator[Seen]:
    if isinstance(call.what, Batch):
        first_id = call.wait.operation_id if isinstance(call.wait, WaitBatch) else 0
        results = list(call.result) if isinstance(call.result, ResultColumns) else None
        for place, operation in enumerate(call.what.operations):
            seen = Seen(call, operation, first_id + place if first_id else 0)
            if results is not None and isinstance(call.result, ResultColumns):
                seen.take(results[place])
                seen.error = call.result.refusals.get(place)
            yield seen
        return
    seen = Seen(call, call.what, call.wait.operation_id if isinstance(call.wait, Wait) else 0)
    if isinstance(call.result, Result):
        seen.take(call.result)
    yield seen


class Checker:
    """Judges one day, which passes if there are no `complaints`."""

    def __init__(self, plan: Plan, ledger: CallLog, runs: list[Run]) -> None:
        self._plan = plan
        self._ledger = ledger
        self._runs = runs
        self._ends: dict[tuple[str | None, int], list[ExpectedEnd]] = defaultdict(list)
        self._unary: list[ExpectedEnd] = []
        for run in runs:
            for end in run.ends:
                if end.session_id is None:
                    self._unary.append(end)
                else:
                    self._ends[end.session_id, end.ended.operation_id].append(end)
        self.complaints: list[str] = list(ledger.complaints)
        self.outcomes: Counter[str] = Counter()
        """The number of operations by outcome at their callers."""

    def check(self) -> None:
        """Check all rules except those about the daemon's own final state."""
        for call in self._ledger.calls:
            if not call.ended:
                self._complain(f"never ended: {list(seen_of(call))}")
                continue
            for seen in seen_of(call):
                self._check(seen)
        self._check_drained()
        self._check_pushes()

    def _complain(self, what: str) -> None:
        self.complaints.append(what)

    def _check(self, seen: Seen) -> None:
        if seen.outcome is not None and seen.outcome != Outcome.REFUSED:
            self.outcomes[Outcome(seen.outcome).name.lower()] += 1
            self._check_result(seen)
            return
        error = seen.error
        self.outcomes[type(error).__name__] += 1
        call = seen.call
        if isinstance(error, asyncio.CancelledError):
            allowed = call.cancelled
        elif isinstance(error, ClientClosed):
            allowed = call.closing
        elif isinstance(error, InvalidRequest):
            allowed = not seen.operation.valid
        elif isinstance(error, LimitExceeded):
            allowed = self._plan.unacknowledged_results_max < 1_000
        elif isinstance(error, Unavailable):
            allowed = self._may_be_unavailable(seen)
        else:
            allowed = False
        if not allowed:
            self._complain(f"an error without a reason: {seen!r}")

    def _may_be_unavailable(self, seen: Seen) -> bool:
        """A daemon that is shutting down accepts no work; a client may give up; a unary call fails with its
        connection.
        """
        ends = self._plan.ends_with_drain or bool(self._plan.restarts)
        return ends or self._plan.give_up_after is not None or (seen.operation.once and seen.call.faults > 0)

    # Results.

    def _check_result(self, seen: Seen) -> None:
        if not seen.operation.valid:
            self._complain(f"an invalid registration has an outcome: {seen!r}")
        candidates = self._candidates(seen)
        fitting = [end for end in candidates if self._fits(seen, end)]
        if not fitting:
            self._complain(f"this must not be: {seen!r}; the daemon's ends of it: {candidates}")
        elif seen.outcome == Outcome.EXPIRED and seen.operation.timeout_ms is not None:
            waited_ms = max(end.ended_ms for end in fitting) - seen.call.submitted_ms
            if waited_ms < seen.operation.timeout_ms:
                self._complain(f"expired {waited_ms:.3f} ms after it was submitted: {seen!r}")

    def _candidates(self, seen: Seen) -> list[ExpectedEnd]:
        """The possible ends at the daemon: several if it dropped the session and the operation was registered again."""
        if not seen.operation.once:
            return self._ends[seen.call.session_id, seen.operation_id]
        names = tuple((name, -1) if isinstance(name, str) else name for name, _ in seen.operation.items)
        return [
            end
            for end in self._unary
            if end.ended.kind == seen.operation.kind and end.names == names and self._is_within(seen.call, end)
        ]

    @staticmethod
    def _is_within(call: SimulatedCall, end: ExpectedEnd) -> bool:
        return call.submitted_ms <= end.registered_ms and end.ended_ms <= call.ended_ms + CLOCK_MS

    def _fits(self, seen: Seen, end: ExpectedEnd) -> bool:
        return (
            end.told
            and end.ended.outcome == seen.outcome
            and self._may_have_waited(seen, end)
            and end.codes == seen.codes
            and self._is_within(seen.call, end)
        )

    @staticmethod
    def _may_have_waited(seen: Seen, end: ExpectedEnd) -> bool:
        """The time waited is that of the registration; in a wait that was sent again, also what passed before it."""
        before_ms = seen.waited_ms - end.ended.waited_ms
        return before_ms == 0 or 0 < before_ms <= end.registered_ms - seen.call.submitted_ms + CLOCK_MS

    # Other rules.

    def _check_drained(self) -> None:
        """Every caller that waited over a working connection at a drain has an answer."""
        for call in self._ledger.drained:
            if isinstance(call.error, ClientClosed | Unavailable):
                self._complain(f"drained without an answer: {list(seen_of(call))}")

    def _check_pushes(self) -> None:
        """An acknowledged push was applied once, any other at most once."""
        for advancer, attempted in self._ledger.attempted_pushes.items():
            applied = sum((run.signals.get(tally_key(advancer), Counter()) for run in self._runs), Counter[int]())
            for number in attempted:
                most, least = 1, int(number in self._ledger.acknowledged_pushes[advancer])
                if not least <= applied[number] <= most:
                    self._complain(f"push {number} of advancer {advancer} was applied {applied[number]} times")
