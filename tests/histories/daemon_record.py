"""A listener's record of a daemon in this process, and the rule that callers have received exactly what it contains.

The world `engine` shows that the engine is right.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from purgatory.engine import codes
from purgatory.engine.calls import Apply, PassTime, Register
from purgatory.engine.engine import Engine
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Called, Completed, Listener
from purgatory.service.sessions.session import Session
from tests.engine import plain
from tests.engine.adapter import ended_of
from tests.histories.judge import CLOCK_MS

UNARY: Final = ("", 0)
"""The key of all unary waits in `DaemonRecord.ends`: their callers do not know their ids."""


def _value_at(column: Sequence[int], place: int, default: int) -> int:
    """The value of a column at a position: a column has a value for each, one for all, or none for the default."""
    return column[place if len(column) > 1 else 0] if column else default


@dataclass(frozen=True)
class DaemonEnd:
    ended: plain.Ended
    ended_ms: int
    has_result: bool
    """False: it ended together with its session, so no result is sent."""

    @property
    def registered_ms(self) -> int:
        return self.ended_ms - self.ended.waited_ms

    def fits(self, row: plain.Ended, submitted_ms: float, received_ms: float) -> bool:
        """Whether a caller may have received this row for it. The time waited is that of the registration; in a wait
        that was sent again, also the time before it.
        """
        before_ms = row.waited_ms - self.ended.waited_ms
        return (
            self.has_result
            and (row.kind, row.outcome, row.items) == (self.ended.kind, self.ended.outcome, self.ended.items)
            and (before_ms == 0 or 0 < before_ms <= self.registered_ms - submitted_ms + CLOCK_MS)
            and submitted_ms <= self.registered_ms
            and self.ended_ms <= received_ms + CLOCK_MS
        )


class DaemonRecord(Listener):
    """The actions of one daemon, in the order of its calls to the engine."""

    def __init__(self) -> None:
        self.ends: Final[defaultdict[tuple[str, int], list[DaemonEnd]]] = defaultdict(list)
        """By session and id. Several if the daemon dropped the session and the operation was registered again."""
        self.accepted: Final[Counter[int]] = Counter()
        self.signals: Final[defaultdict[str, Counter[int]]] = defaultdict(Counter)
        self.incarnations: Final[dict[int, tuple[Session, str]]] = {}
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
        for row in ended_of(event.completions):
            key = UNARY if event.session is None else (event.session.session_id, row.operation_id)
            self.ends[key].append(DaemonEnd(row, self._now_ms, has_result))

    def reaper_failed(self) -> None:
        self.reaper_failures += 1

    @property
    def all_ends(self) -> list[DaemonEnd]:
        return [end for ends in self.ends.values() for end in ends]

    def complaints(self, engine: Engine) -> Iterator[str]:
        """Counts of the daemon that differ from this record."""
        if self.reaper_failures:
            yield "the reaper failed"
        ended = Counter((end.ended.kind, end.ended.outcome) for end in self.all_ends)
        for kind in codes.KINDS:
            counts = engine.inspection.counts(kind)
            found = [counts.registered, counts.satisfied, counts.failed, counts.expired, counts.cancelled]
            expected = [self.accepted[kind], *(ended[kind, outcome] for outcome in range(1, 5))]
            if found != expected:
                yield f"{codes.KIND_NAMES[kind]}: {found} counted, {expected} reported"


def left_in(host: Host) -> dict[str, int]:
    """Everything that a host still has once all timers have expired."""
    engine = host.engine
    next_ms = engine.next_expiration_ms()
    if next_ms >= 0:
        engine.perform(None, PassTime(1), next_ms + 60_000_000)
    engine.check()
    return {
        "pending": engine.pending,
        "watched": sum(engine.inspection.counts(kind).watched for kind in codes.KINDS),
        "unacknowledged": host.sessions.unacknowledged_results,
        "timed": engine.next_expiration_ms() + 1,
    }
