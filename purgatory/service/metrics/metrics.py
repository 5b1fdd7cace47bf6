"""Counts and durations of the host's work: waits, events, refusals, sessions. `exposition` exports them to Prometheus.

Only quantities that the engine does not count itself are counted here, a batch at a time. No topic, partition, session
or operation is ever a key, so nothing here grows with use. Every key exists from the start, at 0: Prometheus takes the
first value that it scrapes of a series as its origin, and would miss everything counted before.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from purgatory.engine.batches import Receipt, Refusal
from purgatory.engine.calls import Apply, Register
from purgatory.engine.codes import (
    DELETE_RECORDS,
    EVENT_NAMES,
    EXPIRED,
    FENCED_LEADER_EPOCH,
    KINDS,
    OUTCOMES,
    PRODUCE,
    REQUEST_TIMED_OUT,
)
from purgatory.engine.completions import Completions
from purgatory.service.fair_queue import WORK_NAMES
from purgatory.service.histogram import Histogram
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.sessions.session import Session
from purgatory.service.translate.result_slices import is_uniform

WAIT_BOUNDS_MS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000,
)  # fmt: skip
LATENESS_BOUNDS_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)
LAG_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000)

CALL_REFUSAL_REASONS: Final = ("calls", "calls_per_caller", "calls_queued_per_caller", "calls_per_second", "deadline")
"""Exported from the start, so that their rate can be queried. See `rpc.call_gate`."""


# Each code that a refusal can have needs a name: `exposition` looks all of them up, and /metrics would fail.
REASON_NAMES: Final = {
    3: "invalid_argument",
    5: "not_found",
    7: "permission_denied",
    8: "resource_exhausted",
    9: "failed_precondition",
    14: "unavailable",
}
"""Names of the google.rpc.Codes of refusals."""

UNKNOWN_EVENT: Final = "unknown"
EVENT_RESULTS: Final = ("applied", "stale", "refused")


class Metrics(Listener):
    """Accumulates counts and durations. Stores nothing per topic, partition, session or operation."""

    def __init__(self) -> None:
        self.waits: Final = {(kind, outcome): Histogram(WAIT_BOUNDS_MS) for kind in KINDS for outcome in OUTCOMES}
        """By (kind, outcome)."""
        self.lateness: Final = {kind: Histogram(LATENESS_BOUNDS_MS) for kind in KINDS}
        """By kind."""
        self.loop_lag: Final = Histogram(LAG_BOUNDS_MS)
        self.expired_partitions: Final = Counter({PRODUCE: 0, DELETE_RECORDS: 0})
        self.repeated: Final = Counter(dict.fromkeys(KINDS, 0))
        self.rejected: Final = Counter(dict.fromkeys(REASON_NAMES, 0))
        types = (*EVENT_NAMES.values(), UNKNOWN_EVENT)
        self.event_results: Final = Counter({(name, result): 0 for name in types for result in EVENT_RESULTS})
        self.refused_calls: Final = Counter(dict.fromkeys(CALL_REFUSAL_REASONS, 0))
        self.turn_waits: Final = tuple(Histogram(LATENESS_BOUNDS_MS) for _ in WORK_NAMES)
        """Waiting times of the turns that were not granted immediately, by kind of work."""
        self.unchanged_events = 0
        self.reaper_failures = 0
        self.sessions_opened = 0
        self.sessions_closed = 0
        self.streams_connected = 0
        self.streams_disconnected = 0

    def called(self, event: Called) -> None:
        """Count events and repeats. The engine counts accepted operations, and `refused` counts the refused ones."""
        call = event.call
        if isinstance(call, Apply):
            self._applied(call, event.receipt)
        elif isinstance(call, Register):
            self.repeated[call.kind] += event.receipt.already_known

    def refused(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            self.rejected[refusal.code] += 1

    def completed(self, event: Completed) -> None:
        """Count completions. The cost is one count per operation, and a bisection per distinct wait."""
        completions = event.completions
        kinds, outcomes, waits_ms = completions.kinds, completions.outcomes, completions.waited_ms
        ends: dict[tuple[int, int, int], int]
        if len(completions) == 1 and outcomes[0] != EXPIRED:
            self.waits[kinds[0], outcomes[0]].observe(int(waits_ms[0]))
            return
        # The same counts in three ways: a batch in which all waits are alike, the usual case, takes a third of the time
        # that counting them one by one takes.
        if not (is_uniform(bytes(kinds)) and is_uniform(bytes(outcomes))):
            ends = Counter(zip(kinds, outcomes, waits_ms, strict=True))
        elif is_uniform(bytes(waits_ms)):
            ends = {(kinds[0], outcomes[0], waits_ms[0]): len(completions)}
        else:
            ends = {(kinds[0], outcomes[0], waited_ms): times for waited_ms, times in Counter(waits_ms).items()}
        expired = False
        for (kind, outcome, waited_ms), times in ends.items():
            self.waits[kind, outcome].observe(waited_ms, times)
            expired = expired or outcome == EXPIRED
        if expired:
            self._expired(completions)

    def _applied(self, call: Apply, receipt: Receipt) -> None:
        batch = call.batch
        types = batch.types[call.start : receipt.next_index]
        # All of them first; refused events are few, and are moved to another result below.
        if len(types) == 1:
            self.event_results[_event_name(types[0]), "applied"] += 1
        else:
            for event_type, times in Counter(types).items():
                self.event_results[_event_name(event_type), "applied"] += times
        self.unchanged_events += receipt.unchanged
        for refusal in receipt.refusals:
            name = _event_name(batch.types[refusal.index])
            stale = refusal.error_code == FENCED_LEADER_EPOCH
            self.event_results[name, "applied"] -= 1
            self.event_results[name, "stale" if stale else "refused"] += 1

    def call_refused(self, reason: str) -> None:
        self.refused_calls[reason] += 1

    def waited_for_turn(self, work: int, us: int) -> None:
        self.turn_waits[work].observe(us / 1_000)

    def loop_lag_ms(self, ms: float) -> None:
        self.loop_lag.observe(ms)

    def reaper_failed(self) -> None:
        self.reaper_failures += 1

    def session_opened(self) -> None:
        self.sessions_opened += 1

    def session_dropped(self, session: Session) -> None:
        self.sessions_closed += 1

    def stream_connected(self) -> None:
        self.streams_connected += 1

    def stream_disconnected(self) -> None:
        self.streams_disconnected += 1

    def _expired(self, completions: Completions) -> None:
        """Count the lateness of expired operations, and their pending partitions."""
        kinds, outcomes, error_codes = completions.kinds, completions.outcomes, completions.error_codes
        # All of them have expired: this is called only if one has, and all outcomes are equal.
        if is_uniform(bytes(kinds)) and is_uniform(bytes(outcomes)):
            self.lateness[kinds[0]].observe_all(list(completions.lateness_ms))
            self._count_expired(kinds[0], list(error_codes))
            return
        late: dict[int, list[int]] = {kind: [] for kind in self.lateness}
        first_item = 0
        for index, outcome in enumerate(outcomes):
            next_item = first_item + completions.item_counts[index]
            if outcome == EXPIRED:
                late[kinds[index]].append(completions.lateness_ms[index])
                self._count_expired(kinds[index], list(error_codes[first_item:next_item]))
            first_item = next_item
        for kind, lateness_ms in late.items():
            self.lateness[kind].observe_all(lateness_ms)

    def _count_expired(self, kind: int, error_codes: list[int]) -> None:
        if kind in self.expired_partitions:
            self.expired_partitions[kind] += error_codes.count(REQUEST_TIMED_OUT)


def _event_name(event_type: int) -> str:
    """Return the name of an event type. Callers may send any number, but the set of names is small."""
    return EVENT_NAMES.get(event_type, UNKNOWN_EVENT)
