"""The judge of histories: what callers asked for and received, over all connections and daemons. It does no I/O.

Each operation ends once, rightly and not early; no answer is lost. A world adds rules about what "rightly" is there.

The calls must come in the order in which the callers saw the events; all times are seconds of the callers' clock.
Nothing is repaired or forgotten: each broken rule adds a line to `complaints`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from purgatory.engine.codes import EXPIRED

CLOCK_MS: Final = 1.0
"""The daemon counts whole milliseconds, rounded up at registration."""


class ReportedResult(NamedTuple):
    """A result. `content` is all of it, with `operation_id` and `outcome`."""

    operation_id: int
    outcome: int
    waited_ms: int
    content: bytes


class Registration(NamedTuple):
    """What a caller asked for. `asked` is all of it, for the rules of a world."""

    timeout_ms: int
    at_s: float
    asked: object = None


Rule = Callable[[Registration, ReportedResult], str]
"""Return why an operation must not have ended like this; empty if it may."""


class _Session:
    def __init__(self) -> None:
        self.registrations: Final[dict[int, Registration]] = {}
        self.receipted = 0
        self.results: Final[dict[tuple[str, int], ReportedResult]] = {}
        """By incarnation of the session and sequence number."""
        self.places: Final[dict[int, tuple[str, int]]] = {}
        """Where the first result of each operation is in `results`."""


class _Total:
    """A number that only rises: a mark, or how often a key was signalled."""

    def __init__(self) -> None:
        self.sent = 0
        """What senders have asked for, whether or not it has arrived."""
        self.known = 0
        """What has been answered or read, and must not be lost."""


class Judge:
    """Records and judges one history, in which no answer may be lost. Rules get the first result of an operation."""

    def __init__(self, *rules: Rule) -> None:
        self.rules: Final = list(rules)
        self.complaints: Final[list[str]] = []
        self._sessions: Final[defaultdict[str, _Session]] = defaultdict(_Session)
        self._totals: Final[defaultdict[str, _Total]] = defaultdict(_Total)

    # Operations.

    def registering(self, session: str, operation_id: int, timeout_ms: int, at_s: float, asked: object = None) -> None:
        """An operation is about to be registered for the first time."""
        self._sessions[session].registrations[operation_id] = Registration(timeout_ms, at_s, asked)

    def refused(self, session: str, operation_ids: Iterable[int]) -> None:
        """A batch was refused: its operations must not end."""
        for operation_id in operation_ids:
            del self._sessions[session].registrations[operation_id]

    def receipt(self, session: str, highest_operation_id: int) -> None:
        """Everything up to this id was acknowledged as registered."""
        seen = self._sessions[session]
        seen.receipted = max(seen.receipted, highest_operation_id)

    def opened(self, session: str, highest_operation_id: int) -> None:
        """A session was opened, by a connection that began after the last one had ended."""
        receipted = self._sessions[session].receipted
        if highest_operation_id < receipted:
            self._complain(session, f"{receipted} was receipted, but it opens with {highest_operation_id}")

    def reported(self, session: str, incarnation: str, sequence: int, result: ReportedResult, at_s: float) -> None:
        """A result arrived."""
        seen, place = self._sessions[session], (incarnation, sequence)
        before = seen.results.setdefault(place, result)
        if before != result:
            self._complain(session, f"result {sequence} was {before}, and later {result}")
        first = seen.places.setdefault(result.operation_id, place)
        if first != place:
            self._complain(session, f"operation {result.operation_id} ended as {first}, and as {place}")
        registration = seen.registrations.get(result.operation_id)
        if registration is None:
            self._complain(session, f"operation {result.operation_id} ended, but was never registered")
            return
        passed_ms = (at_s - registration.at_s) * 1_000
        if result.waited_ms > passed_ms + CLOCK_MS:
            self._complain(session, f"{result} waited for longer than the {passed_ms:.0f} ms since its registration")
        is_expired = result.outcome == EXPIRED
        if is_expired and min(passed_ms, result.waited_ms) < registration.timeout_ms:
            self._complain(session, f"{result} expired after {passed_ms:.0f} of {registration.timeout_ms} ms")
        if before is result:
            for complaint in filter(None, (rule(registration, result) for rule in self.rules)):
                self._complain(session, f"{result}: {complaint}")

    # Marks and counts.

    def sent(self, name: str) -> int:
        """The highest number that was sent."""
        return self._totals[name].sent

    def sending(self, name: str, total: int) -> None:
        """An event is about to be sent that raises a mark or a count to this number."""
        mark = self._totals[name]
        mark.sent = max(mark.sent, total)

    def acknowledged(self, name: str, total: int) -> None:
        """So much of what was sent has been answered."""
        mark = self._totals[name]
        mark.known = max(mark.known, total)

    def at_least(self, name: str) -> int:
        """What a read that begins now must return at least: also what an earlier durable one has returned."""
        return self._totals[name].known

    def read(self, name: str, value: int, at_least: int, *, is_durable: bool = True) -> None:
        """A read was answered, which began when `at_least` was returned. Inspection is not durable: what it shows may
        be lost with the daemon.
        """
        mark = self._totals[name]
        if not at_least <= value <= mark.sent:
            self._complain(name, f"{value} was read; {at_least} was known before, {mark.sent} was sent")
        if is_durable:
            mark.known = max(mark.known, value)

    def check_end(self) -> None:
        """At the end each operation has a result, and no sequence number is missing."""
        for session, seen in self._sessions.items():
            missing = seen.registrations.keys() - seen.places.keys()
            if missing:
                self._complain(session, f"{len(missing)} operations never ended, such as {min(missing)}")
            last: dict[str, int] = defaultdict(int)
            for incarnation, sequence in seen.results:
                last[incarnation] = max(last[incarnation], sequence)
            if sum(last.values()) != len(seen.results):
                self._complain(session, f"{len(seen.results)} results, numbered up to {sum(last.values())}")

    def _complain(self, where: str, what: str) -> None:
        self.complaints.append(f"{where}: {what}")
