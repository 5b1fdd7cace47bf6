"""A model of Purgatory in 100 lines: what the daemon does, without its network, columns, limits and files.

Run it with `python docs/model.py`. Each part names the modules that do the same work in the product.
"""

import heapq
from dataclasses import dataclass, field


@dataclass
class Operation:
    """A wait for several marks; it ends exactly once (purgatory/engine/kinds: one module for each kind of wait)."""

    session: str
    id: int
    required: dict[str, int]  # mark -> the value it must reach


@dataclass
class Session:
    """Outlives its connections: ids only rise, results are kept until acknowledged (purgatory/service/sessions)."""

    highest_id: int = 0
    last_sequence: int = 0
    outbox: dict[int, tuple[int, str]] = field(default_factory=dict)  # sequence -> (operation id, outcome)


class Purgatory:
    """Marks, pending operations and sessions (purgatory/engine/engine.py, owned by purgatory/service/host.py)."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}  # engine/marks
        self.pending: dict[tuple[str, int], Operation] = {}  # engine/waiting/pending
        self.watches: dict[str, list[tuple[int, str, int]]] = {}  # engine/waiting/watches: a heap for each mark
        self.deadlines: list[tuple[int, str, int]] = []  # engine/waiting/wheel: a timing wheel in the product
        self.sessions: dict[str, Session] = {}

    def register(self, session_id: str, operation_id: int, required: dict[str, int], deadline_ms: int) -> None:
        """Start a wait. Repeating a registration is harmless: ids only rise, so it is recognised by its id."""
        session = self.sessions.setdefault(session_id, Session())
        if operation_id <= session.highest_id:
            return
        session.highest_id = operation_id
        operation = self.pending[session_id, operation_id] = Operation(session_id, operation_id, required)
        if self.is_satisfied(operation):  # it completes at once and needs neither watches nor a timer
            self.end(operation, "satisfied")
            return
        for mark, value in required.items():
            heapq.heappush(self.watches.setdefault(mark, []), (value, session_id, operation_id))
        heapq.heappush(self.deadlines, (deadline_ms, session_id, operation_id))

    def advance(self, mark: str, value: int) -> None:
        """Report progress. Only watches whose threshold has been passed are touched, however many operations wait."""
        self.marks[mark] = max(value, self.marks.get(mark, -1))
        watches = self.watches.get(mark, [])
        while watches and watches[0][0] <= self.marks[mark]:
            _, session_id, operation_id = heapq.heappop(watches)
            operation = self.pending.get((session_id, operation_id))  # None: it has ended already
            if operation is not None and self.is_satisfied(operation):
                self.end(operation, "satisfied")

    def expire(self, now_ms: int) -> None:
        """End operations whose deadline has passed, never early (purgatory/service/reaper.py)."""
        while self.deadlines and self.deadlines[0][0] <= now_ms:
            _, session_id, operation_id = heapq.heappop(self.deadlines)
            if (operation := self.pending.get((session_id, operation_id))) is not None:
                self.end(operation, "expired")

    def cancel(self, session_id: str, operation_id: int) -> None:
        """End a wait early; one that has ended already keeps its outcome."""
        if (operation := self.pending.get((session_id, operation_id))) is not None:
            self.end(operation, "cancelled")

    def is_satisfied(self, operation: Operation) -> bool:
        """Whether every mark has reached the required value; a mark that was never reported counts as -1."""
        return all(self.marks.get(mark, -1) >= value for mark, value in operation.required.items())

    def end(self, operation: Operation, outcome: str) -> None:
        """The only place where an operation ends: it leaves `pending`, and its result enters the outbox."""
        del self.pending[operation.session, operation.id]  # a KeyError here would be a second end
        session = self.sessions[operation.session]
        session.last_sequence += 1
        session.outbox[session.last_sequence] = (operation.id, outcome)

    def results(self, session_id: str, after: int) -> dict[int, tuple[int, str]]:
        """Results that the client does not have yet (service/sessions/result_stream.py), also after a reconnect."""
        return {number: result for number, result in self.sessions[session_id].outbox.items() if number > after}

    def acknowledge(self, session_id: str, sequence: int) -> None:
        """The client has stored all results up to this number: they can be dropped (service/sessions/outbox.py)."""
        session = self.sessions[session_id]
        session.outbox = self.results(session_id, sequence)


if __name__ == "__main__":
    purgatory = Purgatory()
    purgatory.register("app", 1, {"orders-3": 42}, deadline_ms=5_000)
    purgatory.register("app", 2, {"orders-3": 40, "orders-4": 7}, deadline_ms=1_000)
    purgatory.register("app", 2, {"orders-3": 40, "orders-4": 7}, deadline_ms=1_000)  # sent twice
    purgatory.advance("orders-3", 42)
    purgatory.expire(now_ms=1_000)
    print(purgatory.results("app", after=0))  # {1: (1, 'satisfied'), 2: (2, 'expired')}
    purgatory.acknowledge("app", 2)
