"""Sessions: who registers and receives, across streams and reconnects. One engine owner, one outbox and at most one
result stream each.

A session lives while it has a stream, and for its time to live after it was last used. Those without a stream are kept
in the order in which they were last used, so that finding the ones whose time is over costs nothing for the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from purgatory.engine.completions import Completions
from purgatory.engine.engine import Engine
from purgatory.engine.waiting.tables import Owner
from purgatory.service.host_limits import HostLimits
from purgatory.service.listeners.observer import Observer
from purgatory.service.rpc.refusals import invalid_argument, not_found, resource_exhausted, shown
from purgatory.service.sessions.connection import Connection, ResponseType
from purgatory.service.sessions.outbox import Outbox, slices_of

SESSION_ID_LENGTH_MAX: Final = 128


class Session:
    """One session. `number` is its own for the daemon's life: ids, and the engine's owners, are used again."""

    def __init__(self, session_id: str, number: int, owner: Owner, now_ms: int) -> None:
        self.session_id: Final = session_id
        self.number: Final = number
        self.owner: Final = owner
        self.outbox: Final = Outbox()
        self.connection: Connection | None = None
        self.last_used_ms = now_ms
        self.dropped = False
        self.is_journaled = False
        self.journaled_operation_id = 0
        """The highest that the journal has."""
        self.sequence_shift = 0
        """By how much the client's sequence numbers are above the journal's."""
        self.uncertain_after = -1
        """Not -1: the client has not resumed since a daemon crashed, and may have received other results above this
        sequence number than those here, since the crash came before the journal had them.
        """

    @property
    def is_blank(self) -> bool:
        """True: nothing was ever registered in it."""
        return not self.owner.highest_operation_id and not self.outbox.last_sequence

    def deliver(self, completions: Completions) -> None:
        """Operations of this session have ended: their results get their sequence numbers."""
        self.outbox.append(slices_of(completions))
        self.wake()

    def wake(self) -> None:
        """There may be something to write on the session's stream."""
        if self.connection is not None:
            self.connection.wake()

    def resume(self, sequence: int) -> None:
        """A client reconnects that has all results up to `sequence`.

        Results that it has and that a crash lost here have used up their sequence numbers, so ours move above them.
        """
        lost = sequence - self.uncertain_after
        if self.uncertain_after >= 0 and lost > 0:
            self.outbox.acknowledge(self.uncertain_after)
            self.outbox.shift(lost)
            self.sequence_shift += lost
        self.uncertain_after = -1
        self.acknowledge(sequence)

    def acknowledge(self, sequence: int) -> None:
        """All results up to `sequence` have arrived. Refuses one that was never given."""
        last = self.outbox.last_sequence
        if sequence > last:
            raise invalid_argument("sequence", f"{sequence} was never sent in this session; the last one is {last}")
        self.outbox.acknowledge(sequence)


class Sessions:
    """The table of sessions. It makes and drops engine owners and knows no other thing of the engine.

    `before_drop` is called with a session whose time is over and the time, while its operations are still pending.
    """

    def __init__(
        self,
        engine: Engine,
        limits: HostLimits,
        observer: Observer,
        before_drop: Callable[[Session, int], None] = lambda _session, _now_ms: None,
    ) -> None:
        self._engine: Final = engine
        self._limits: Final = limits
        self._observer: Final = observer
        self._before_drop: Final = before_drop
        self._opened = 0
        self._by_id: Final[dict[str, Session]] = {}
        self._by_owner_id: Final[dict[int, Session]] = {}
        self._disconnected: Final[OrderedDict[str, Session]] = OrderedDict()
        """In the order of last use."""
        self._connections: Final[set[Connection]] = set()

    @property
    def count(self) -> int:
        """Sessions known."""
        return len(self._by_id)

    @property
    def connected(self) -> int:
        """Sessions with a result stream."""
        return len(self._by_id) - len(self._disconnected)

    @property
    def unacknowledged_results(self) -> int:
        """Results kept, of all sessions."""
        return sum(session.outbox.unacknowledged for session in self._by_id.values())

    def find(self, session_id: str) -> Session | None:
        """The session of that id, if it is known."""
        return self._by_id.get(session_id)

    def get(self, session_id: str) -> Session:
        """The session of that id. Refuses unknown ones with NOT_FOUND."""
        session = self._by_id.get(session_id)
        if session is None:
            raise not_found("session", session_id)
        return session

    def of_owner(self, owner_id: int) -> Session | None:
        """The session whose operations belong to this owner."""
        return self._by_owner_id.get(owner_id)

    def connections(self) -> list[Connection]:
        """All streams, those that were taken over and have not ended yet included."""
        return list(self._connections)

    def open(self, session_id: str, now_ms: int) -> tuple[Session, bool]:
        """The session of that id, made if need be, and whether there is something to resume. Refuses bad ids and too
        many sessions.

        A blank session counts as new: it may have been made by an opening of which the client never heard the answer,
        and which still has to learn that what it knew before is forgotten.
        """
        session = self._by_id.get(session_id)
        if session is not None:
            self.touch(session, now_ms)
            return session, not session.is_blank
        if not 0 < len(session_id) <= SESSION_ID_LENGTH_MAX:
            raise invalid_argument(
                "session_id",
                f"must have 1 to {SESSION_ID_LENGTH_MAX} characters, not {len(session_id)}: {shown(session_id)}",
            )
        if len(self._by_id) >= self._limits.sessions_max:
            raise resource_exhausted("sessions", f"the daemon keeps at most {self._limits.sessions_max} sessions")
        return self._add(session_id, self._opened + 1, now_ms), False

    def restore(self, session_id: str, number: int, now_ms: int) -> Session:
        """A session of the daemon's life before, to be filled with what it had. Its time to live begins anew."""
        assert session_id not in self._by_id, f"session {session_id!r} is there already"
        return self._add(session_id, number, now_ms)

    def _add(self, session_id: str, number: int, now_ms: int) -> Session:
        self._opened = max(self._opened, number)
        session = Session(session_id, number, self._engine.add_owner(), now_ms)
        self._by_id[session_id] = session
        self._by_owner_id[session.owner.owner_id] = session
        self._disconnected[session_id] = session
        self._observer.session_opened()
        return session

    def attach(
        self,
        session: Session,
        response_type: ResponseType,
        *,
        last_sequence: int,
        columns: bool,
        expects_heartbeats: bool,
        now_ms: int,
    ) -> Connection:
        """Makes a new stream the session's. One that it had is told that it was taken over."""
        session.resume(last_sequence)
        before = session.connection
        connection = Connection(
            session, response_type, columns=columns, expects_heartbeats=expects_heartbeats, now_ms=now_ms
        )
        session.connection = connection
        self._connections.add(connection)
        session.outbox.rewind()
        self._disconnected.pop(session.session_id, None)
        self._observer.stream_connected()
        if before is not None:
            before.taken_over()
        return connection

    def detach(self, connection: Connection, now_ms: int) -> None:
        """A stream has ended. If it was still its session's, the session's time to live begins."""
        self._observer.stream_disconnected()
        self._connections.discard(connection)
        session = connection.session
        if session.connection is connection:
            session.connection = None
            session.last_used_ms = now_ms
            if not session.dropped:
                self._disconnected[session.session_id] = session

    def drop_expired(self, now_ms: int) -> None:
        """Drops the sessions whose time to live is over; their pending operations are cancelled."""
        while self._disconnected:
            session = next(iter(self._disconnected.values()))
            if now_ms - session.last_used_ms < self._limits.session_ttl_ms:
                return
            self._drop(session, now_ms)

    def touch(self, session: Session, now_ms: int) -> None:
        """The session is being used: its time to live begins anew."""
        session.last_used_ms = now_ms
        if session.session_id in self._disconnected:
            self._disconnected.move_to_end(session.session_id)

    def _drop(self, session: Session, now_ms: int) -> None:
        self._before_drop(session, now_ms)
        session.dropped = True
        del self._by_id[session.session_id]
        del self._by_owner_id[session.owner.owner_id]
        del self._disconnected[session.session_id]
        self._engine.remove_owner(session.owner, now_ms)
        self._observer.session_closed()
