"""A checker of everything that callers were told, over all connections and daemons of a run. It does no I/O.

The calls must come in the order in which the callers saw the events; all times are seconds of the callers' clock.
Nothing is repaired or forgotten: each broken rule adds a line to `complaints`.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from purgatory.v1 import result_pb2

CLOCK_S: Final = 0.001
"""The daemon counts whole milliseconds, rounded up at registration."""


class Told(NamedTuple):
    """A result. `content` is all of it, with `operation_id` and `outcome`."""

    operation_id: int
    outcome: int
    waited_ms: int
    content: bytes


class _Asked(NamedTuple):
    timeout_ms: int
    at_s: float


class _Session:
    def __init__(self) -> None:
        self.asked: Final[dict[int, _Asked]] = {}
        self.receipted = 0
        self.told: Final[dict[tuple[str, int], Told]] = {}
        """By incarnation of the session and sequence number."""
        self.places: Final[dict[int, tuple[str, int]]] = {}
        """Where the first result of each operation is in `told`."""


class _Total:
    """A number that only rises: a mark, or how often a key was signalled."""

    def __init__(self) -> None:
        self.sent = 0
        """What senders have asked for, whether or not it has arrived."""
        self.known = 0
        """What has been answered or read, and must not be lost."""


class History:
    """Records and checks one run in which no answer may be lost."""

    def __init__(self) -> None:
        self.complaints: Final[list[str]] = []
        self.reports = 0
        """The number of results, including repeated ones."""
        self._sessions: Final[defaultdict[str, _Session]] = defaultdict(_Session)
        self._totals: Final[defaultdict[str, _Total]] = defaultdict(_Total)

    # Operations.

    def asked(self, session: str, operation_id: int, timeout_ms: int, at_s: float) -> None:
        """An operation is about to be registered for the first time."""
        self._sessions[session].asked[operation_id] = _Asked(timeout_ms, at_s)

    def refused(self, session: str, operation_ids: Iterable[int]) -> None:
        """A batch was refused: its operations must not end."""
        for operation_id in operation_ids:
            del self._sessions[session].asked[operation_id]

    def receipted(self, session: str, highest_operation_id: int) -> None:
        """Everything up to this id was acknowledged as registered."""
        seen = self._sessions[session]
        seen.receipted = max(seen.receipted, highest_operation_id)

    def opened(self, session: str, highest_operation_id: int) -> None:
        """A session was opened, by a connection that began after the last one had ended."""
        receipted = self._sessions[session].receipted
        if highest_operation_id < receipted:
            self._complain(session, f"{receipted} was receipted, but it opens with {highest_operation_id}")

    def told(self, session: str, incarnation: str, sequence: int, told: Told, at_s: float) -> None:
        """A result arrived."""
        self.reports += 1
        seen = self._sessions[session]
        before = seen.told.setdefault((incarnation, sequence), told)
        if before != told:
            self._complain(session, f"result {sequence} was {before}, and later {told}")
        place = seen.places.setdefault(told.operation_id, (incarnation, sequence))
        if place != (incarnation, sequence):
            self._complain(session, f"operation {told.operation_id} ended as {place}, and as {(incarnation, sequence)}")
        asked = seen.asked.get(told.operation_id)
        if asked is None:
            self._complain(session, f"operation {told.operation_id} ended, but was never registered")
            return
        passed_s = at_s - asked.at_s
        if told.waited_ms / 1_000 > passed_s + CLOCK_S:
            self._complain(session, f"{told} waited for longer than the {passed_s:.3f} s since it was registered")
        if told.outcome == result_pb2.OUTCOME_EXPIRED and min(passed_s * 1_000, told.waited_ms) < asked.timeout_ms:
            self._complain(session, f"{told} expired after {passed_s:.3f} s of {asked.timeout_ms} ms")

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
        """What a read that begins now must return at least. Also what it returned is then known."""
        return self._totals[name].known

    def read(self, name: str, value: int, at_least: int) -> None:
        """A read was answered, which began when `at_least` was returned."""
        mark = self._totals[name]
        if not at_least <= value <= mark.sent:
            self._complain(name, f"{value} was read; {at_least} was known before, {mark.sent} was sent")
        mark.known = max(mark.known, value)

    def check_end(self) -> None:
        """At the end each operation has a result, and no sequence number is missing."""
        for session, seen in self._sessions.items():
            missing = seen.asked.keys() - seen.places.keys()
            if missing:
                self._complain(session, f"{len(missing)} operations never ended, such as {min(missing)}")
            last: dict[str, int] = defaultdict(int)
            for incarnation, sequence in seen.told:
                last[incarnation] = max(last[incarnation], sequence)
            if sum(last.values()) != len(seen.told):
                self._complain(session, f"{len(seen.told)} results, numbered up to {sum(last.values())}")

    def _complain(self, where: str, what: str) -> None:
        self.complaints.append(f"{where}: {what}")
