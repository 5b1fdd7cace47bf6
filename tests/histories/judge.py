"""The judge of histories: what callers asked for and received, over all connections and daemons. It does no I/O.

Each operation ends once, rightly and not early; no answer is lost. A world adds rules about what "rightly" is there.

The calls must come in the order in which the callers saw the events; all times are seconds of the callers' clock.
Nothing is repaired or forgotten: each broken rule adds a line to `complaints`.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from purgatory.engine.codes import CANCELLED, EXPIRED, SATISFIED

CLOCK_MS: Final = 1.0
"""The daemon counts whole milliseconds, rounded up at registration."""


class Broken(AssertionError):
    """A rule was broken, or a program under test failed."""


class ReportedResult(NamedTuple):
    """A result. `content` is all of it, with `operation_id` and `outcome`; `reached` are the marks that it names."""

    operation_id: int
    outcome: int
    waited_ms: int
    content: object
    reached: Sequence[tuple[str, int]] = ()


class Registration(NamedTuple):
    """A caller's request. `asked` is all of it, for the rules of a world; `needs` are the marks that satisfy it, if the
    judge knows the marks.
    """

    timeout_ms: int
    at_s: float
    asked: object = None
    needs: Sequence[tuple[str, int]] = ()


Rule = Callable[[Registration, ReportedResult], str]
"""Return why an operation must not have ended like this; empty if it may."""


class _Acknowledged:
    """The highest number that was acknowledged, and since when."""

    def __init__(self) -> None:
        self.highest = 0
        self._steps: Final[list[tuple[int, float]]] = []

    def rise(self, number: int, at_s: float) -> None:
        if number > self.highest:
            self.highest = number
            self._steps.append((number, at_s))

    def since_s(self, number: int) -> float:
        """When a number so high had been acknowledged; infinity: it has not."""
        place = bisect_left(self._steps, (number, -math.inf))
        return self._steps[place][1] if place < len(self._steps) else math.inf


class _Session:
    def __init__(self) -> None:
        self.registrations: Final[dict[int, Registration]] = {}
        self.receipted: Final = _Acknowledged()
        self.cancelled: Final[set[int]] = set()
        """Operations whose cancellation was answered."""
        self.delivered = -1
        """The last sequence number that the current caller has received; -1: unknown."""
        self.results: Final[dict[tuple[str, int], ReportedResult]] = {}
        """Results by incarnation of the session and sequence number."""
        self.places: Final[dict[int, tuple[str, int]]] = {}
        """Where the first result of each operation is in `results`."""


class _Total:
    """A number that only rises: a mark, or how often a key was signalled."""

    def __init__(self) -> None:
        self.sent = 0
        """The number that senders have requested, whether or not it has arrived."""
        self.known = 0
        """The number that has been answered or read, and must not be lost."""
        self.acknowledged: Final = _Acknowledged()


class Judge:
    """Records and judges one history. Rules get the first result of an operation.

    If it is not durable, a crash may lose what was acknowledged, and callers register again what has no result. Then
    a result may come twice.
    """

    def __init__(self, *rules: Rule, is_durable: bool = True) -> None:
        self.rules: Final = list(rules)
        self._is_durable: Final = is_durable
        self.complaints: Final[list[str]] = []
        self._sessions: Final[defaultdict[str, _Session]] = defaultdict(_Session)
        self._totals: Final[defaultdict[str, _Total]] = defaultdict(_Total)

    def check(self) -> None:
        if self.complaints:
            raise Broken("\n".join(self.complaints[:10]))

    # Operations.

    def registering(
        self,
        session: str,
        operation_id: int,
        timeout_ms: int,
        at_s: float,
        asked: object = None,
        needs: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._sessions[session].registrations[operation_id] = Registration(timeout_ms, at_s, asked, needs)

    def refused(self, session: str, operation_ids: Iterable[int]) -> None:
        """A batch was refused: its operations must not end."""
        for operation_id in operation_ids:
            del self._sessions[session].registrations[operation_id]

    def receipt(self, session: str, highest_operation_id: int, at_s: float = math.inf) -> None:
        """Everything up to this id was acknowledged as registered."""
        self._sessions[session].receipted.rise(highest_operation_id, at_s)

    def cancelled(self, session: str, operation_ids: Iterable[int]) -> None:
        """A call that cancelled these operations was answered."""
        self._sessions[session].cancelled.update(operation_ids)

    def opened(self, session: str, highest_operation_id: int, delivered: int = -1) -> None:
        """A session was opened, by a connection that began after the last one had ended. Its caller has received the
        results up to number `delivered`; -1: that is not known.
        """
        seen = self._sessions[session]
        seen.delivered = delivered
        if highest_operation_id < seen.receipted.highest:
            what = f"{seen.receipted.highest} was receipted, but it opens with {highest_operation_id}"
            self._complain_if_durable(session, what)

    def reported(self, session: str, incarnation: str, sequence: int, result: ReportedResult, at_s: float) -> None:
        seen, place = self._sessions[session], (incarnation, sequence)
        if 0 <= seen.delivered < sequence:
            if sequence > seen.delivered + 1:
                self.complain(session, f"result {sequence} came after {seen.delivered}")
            seen.delivered = sequence
        before = seen.results.setdefault(place, result)
        if before != result:
            self._complain_if_durable(session, f"result {sequence} was {before}, and later {result}")
        first = seen.places.setdefault(result.operation_id, place)
        if first != place:
            self._complain_if_durable(session, f"operation {result.operation_id} ended as {first}, and as {place}")
        registration = seen.registrations.get(result.operation_id)
        if registration is None:
            self.complain(session, f"operation {result.operation_id} ended, but was never registered")
            return
        passed_ms = (at_s - registration.at_s) * 1_000
        if result.waited_ms > passed_ms + CLOCK_MS:
            self.complain(session, f"{result} waited for longer than the {passed_ms:.0f} ms since its registration")
        is_expired = result.outcome == EXPIRED
        if is_expired and min(passed_ms, result.waited_ms) < registration.timeout_ms:
            self.complain(session, f"{result} expired after {passed_ms:.0f} of {registration.timeout_ms} ms")
        if before is result and first == place:
            self._check_needs(session, registration, result)
            for complaint in filter(None, (rule(registration, result) for rule in self.rules)):
                self.complain(session, f"{result}: {complaint}")

    def _check_needs(self, session: str, registration: Registration, result: ReportedResult) -> None:
        """It was satisfied by marks that had been sent, and did not expire after it had been satisfied."""
        reached = dict(result.reached)
        for name, needed in registration.needs:
            if result.outcome == SATISFIED and not needed <= reached.get(name, -1) <= self.sent(name):
                self.complain(session, f"{result} was satisfied, but {name} had not reached {needed}")
        for name, number in result.reached:
            self._totals[name].known = max(self._totals[name].known, number)
        if result.outcome == EXPIRED and registration.needs:
            times_s = [self._totals[name].acknowledged.since_s(needed) for name, needed in registration.needs]
            times_s.append(self._sessions[session].receipted.since_s(result.operation_id))
            if max(times_s) < registration.at_s + registration.timeout_ms / 1_000:
                self._complain_if_durable(session, f"{result} expired, but had been satisfied before its deadline")

    def forget(self, session: str) -> None:
        """Drop the records of a session whose caller has left."""
        self._sessions.pop(session, None)

    # Marks and counts.

    def sent(self, name: str) -> int:
        return self._totals[name].sent

    def sending(self, name: str, total: int) -> None:
        """An event is about to be sent that raises a mark or a count to this number."""
        mark = self._totals[name]
        mark.sent = max(mark.sent, total)

    def acknowledged(self, name: str, total: int, at_s: float = math.inf) -> None:
        """Events up to this number have been answered."""
        mark = self._totals[name]
        mark.acknowledged.rise(total, at_s)
        mark.known = max(mark.known, total)

    def at_least(self, name: str) -> int:
        """The least that a read that begins now must return: not below what earlier durable reads have returned."""
        return self._totals[name].known

    def read(self, name: str, value: int, at_least: int, *, is_durable: bool = True) -> None:
        """A read was answered, which began when `at_least` was returned. Inspection is not durable: what it shows may
        be lost with the daemon.
        """
        mark = self._totals[name]
        if value > mark.sent:
            self.complain(name, f"{value} was read; {mark.sent} was sent")
        if value < at_least:
            self._complain_if_durable(name, f"{value} was read; {at_least} was known before")
        if is_durable:
            mark.known = max(mark.known, value)

    def check_end(self, *sessions: str) -> None:
        """At the end each operation of these sessions, or of all, has a result, and no sequence number is missing."""
        for session in sessions or list(self._sessions):
            seen = self._sessions[session]
            missing = seen.registrations.keys() - seen.places.keys()
            if missing:
                self.complain(session, f"{len(missing)} operations never ended, such as {min(missing)}")
            last: dict[str, int] = defaultdict(int)
            for incarnation, sequence in seen.results:
                last[incarnation] = max(last[incarnation], sequence)
            if sum(last.values()) != len(seen.results):
                what = f"{len(seen.results)} results, numbered up to {sum(last.values())}"
                self._complain_if_durable(session, what)
            for operation_id in seen.cancelled & seen.places.keys():
                result = seen.results[seen.places[operation_id]]
                if result.outcome != CANCELLED:
                    self._complain_if_durable(session, f"{operation_id} was cancelled, and ended as {result}")

    def complain(self, where: str, what: str) -> None:
        self.complaints.append(f"{where}: {what}")

    def _complain_if_durable(self, where: str, what: str) -> None:
        if self._is_durable:
            self.complain(where, what)
