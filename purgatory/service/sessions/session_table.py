"""Sessions: who registers and receives, across streams and reconnects.

A session belongs to an account, and its id is that account's own: another account may use the same id for another
session. A session has one engine owner, one outbox and at most one result stream. It lives while it has a stream, and
for its time to live after its last use. One that is finished goes after a few seconds, as short-lived callers leave
many, and gives way to new ones at the limit. Sessions without a stream are kept in the order of last use, so finding
the expired ones costs nothing for the others.

Why nothing is lost or doubled by a finished session that is gone: its client has acknowledged every result, so none is
to be sent again. If it comes back, it is told that the session is a new one. It then counts results from wherever the
next batch begins, and registers again whatever it still waits for: that was never registered here, as nothing was
pending.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from purgatory.engine.batches import Refusal
from purgatory.engine.codes import RESOURCE_EXHAUSTED
from purgatory.engine.engine import Engine
from purgatory.service.access.account import NOBODY, Account
from purgatory.service.budget.memory_budget import SESSION_BYTES
from purgatory.service.budget.shares import Shares
from purgatory.service.errors import (
    RETRY_AFTER_MS,
    from_refusal,
    invalid_argument,
    not_found,
    quoted,
    resource_exhausted,
)
from purgatory.service.listeners.listener import Listener
from purgatory.service.loop_stalls import LoopStalls
from purgatory.service.sessions.result_stream import ResponseType, ResultStream
from purgatory.service.sessions.session import AttachedStream, Session, SessionKey
from purgatory.service.settings import HostSettings

SESSION_ID_LENGTH_MAX: Final = 128

DROPPED_PER_SLICE: Final = 100
"""Sessions that go before the loop is free again."""


class Sessions:
    """The table of sessions. It adds and removes engine owners, and uses nothing else of the engine.

    `end_pending(session, now_ms)` is called for a session that was dropped and has operations pending: it ends them,
    and says whether that was all of them. If not, it goes on and calls `forget` at the end.
    """

    def __init__(
        self,
        engine: Engine,
        settings: HostSettings,
        listeners: Sequence[Listener],
        holds: LoopStalls,
        end_pending: Callable[[Session, int], bool],
        shares: Shares | None = None,
    ) -> None:
        self._engine: Final = engine
        self._sessions_max: Final = settings.limits.sessions_max
        self._ttl_ms: Final = settings.session.ttl_ms
        self._finished_ttl_ms: Final = min(settings.session.finished_ttl_ms, settings.session.ttl_ms)
        self._listeners: Final = listeners
        self._writing: Final = holds.of("results")
        self._end_pending: Final = end_pending
        self._opened = 0
        self._shares: Final = shares or Shares(settings, engine)
        self.accounts: Final = self._shares.accounts
        self._by_id: Final[dict[SessionKey, Session]] = {}
        self._by_owner_id: Final[dict[int, Session]] = {}
        self._disconnected: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """In the order of last use."""
        self._just_used: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """Those of the disconnected that may be finished, in the order of last use. One that is not is taken out: to be
        finished it has to be used.
        """
        self._evictable: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """Finished, but not to go early."""
        self._streams: Final[set[ResultStream]] = set()

    @property
    def count(self) -> int:
        return len(self._by_id)

    @property
    def connected(self) -> int:
        """Sessions that have a result stream."""
        return len(self._by_id) - len(self._disconnected)

    @property
    def unacknowledged_results(self) -> int:
        return sum(session.outbox.unacknowledged for session in self._by_id.values())

    def find(self, session_id: str, account: Account | None = None) -> Session | None:
        """An account's session (None: that of nobody)."""
        return self._by_id.get(self._key(session_id, account))

    def get(self, session_id: str, account: Account | None = None, incarnation: str = "") -> Session:
        """An account's session (None: that of nobody). Raises `RpcError` (NOT_FOUND) if it does not exist, or has
        another incarnation than the one given (empty: any).
        """
        session = self.find(session_id, account)
        if session is None:
            raise not_found("session", session_id)
        if incarnation not in ("", session.incarnation):
            raise not_found("session", f"{session_id}, incarnation {incarnation}")
        return session

    def __iter__(self) -> Iterator[Session]:
        """In the order in which they were opened."""
        return iter(self._by_id.values())

    def of_owner(self, owner_id: int) -> Session | None:
        return self._by_owner_id.get(owner_id)

    def streams(self) -> list[ResultStream]:
        """All streams, including those that were taken over and have not ended yet."""
        return list(self._streams)

    def _key(self, session_id: str, account: Account | None) -> SessionKey:
        return (NOBODY if account is None else account.principal), session_id

    def open(self, session_id: str, now_ms: int, account: Account | None = None) -> tuple[Session, bool]:
        """An account's session of that id, created if need be, and whether it is resumed.

        A blank session counts as new: an earlier opening whose answer was lost may have created it, and the client has
        yet to learn that the session it knew is gone. Raises `RpcError` for a bad id, or when there are too many.
        """
        session = self.find(session_id, account)
        if session is not None:
            self.touch(session, now_ms)
            return session, not session.is_blank
        if not 0 < len(session_id) <= SESSION_ID_LENGTH_MAX:
            raise invalid_argument(
                "session_id",
                f"must have 1 to {SESSION_ID_LENGTH_MAX} characters, not {len(session_id)}: {quoted(session_id)}",
            )
        if len(self._by_id) >= self._sessions_max and not self._evict_finished(now_ms):
            message = f"the daemon keeps at most {self._sessions_max} sessions"
            refused = Refusal(0, RESOURCE_EXHAUSTED, "sessions", message)
            for listener in self._listeners:
                listener.refused([refused])
            raise resource_exhausted("sessions", message, self._next_expiry_ms(now_ms))
        account = account or self.accounts.nobody
        self._check_share(account, now_ms)
        return self._add(session_id, self._opened + 1, account, now_ms), False

    def _check_share(self, account: Account, now_ms: int) -> None:
        """Raises `RpcError` when the account may not have another session. At its share, one of its own that nobody
        would miss makes room.
        """
        refusal = self._shares.session_refusal(account, len(self._by_id))
        if refusal is not None:
            finished = (one for one in chain(self._just_used.values(), self._evictable.values()) if one.is_finished)
            mine = next((one for one in finished if one.account is account), None)
            if mine is not None:
                self._drop(mine, now_ms)
                refusal = None
        retry_after_ms = RETRY_AFTER_MS if refusal is None else self._next_expiry_ms(now_ms)
        refusal = refusal or self._shares.memory_refusal(account, SESSION_BYTES)
        if refusal is not None:
            for listener in self._listeners:
                listener.refused([refusal])
            raise from_refusal(refusal, "", retry_after_ms)

    def _evict_finished(self, now_ms: int) -> bool:
        """Makes room by dropping a finished session, if there is one: first of those that nobody would miss."""
        while self._just_used:
            session = self._first_just_used()
            if session.may_go_early:
                self._drop(session, now_ms)
                return True
        if not self._evictable:
            return False
        self._drop(next(iter(self._evictable.values())), now_ms)
        return True

    def _first_just_used(self) -> Session:
        """The first one of those just used. Unless it may go early, it is not one of them from now on."""
        session = next(iter(self._just_used.values()))
        if not session.may_go_early:
            del self._just_used[session.key]
            if session.is_finished:
                self._evictable[session.key] = session
        return session

    def _next_expiry_ms(self, now_ms: int) -> int:
        """When there may be room again, in milliseconds from now. With all sessions connected: if one ended now."""
        if not self._disconnected:
            return self._finished_ttl_ms
        first = next(iter(self._disconnected.values()))
        return max(1, first.last_used_ms + self._ttl_ms - now_ms)

    def restore(self, session_id: str, number: int, now_ms: int, principal: str = NOBODY) -> Session:
        """A session from the journal, to be filled with what it had. Its time to live starts over."""
        account = self.accounts.of(principal)
        assert self.find(session_id, account) is None, f"session {session_id!r} exists already"
        session = self._add(session_id, number, account, now_ms)
        session.has_unary_callers = True  # it may have: the journal does not tell
        return session

    def _add(self, session_id: str, number: int, account: Account, now_ms: int) -> Session:
        self._opened = max(self._opened, number)
        session = Session(session_id, number, self._engine.add_owner(account.holdings), account, now_ms)
        account.add_session(1)
        self._by_id[session.key] = session
        self._by_owner_id[session.owner.owner_id] = session
        self._disconnected[session.key] = self._just_used[session.key] = session
        for listener in self._listeners:
            listener.session_opened()
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
    ) -> ResultStream:
        """Makes a new stream the session's; the one it had before ends as taken over."""
        session.resume(last_sequence)
        before = session.stream
        stream = ResultStream(
            session,
            response_type,
            columns=columns,
            expects_heartbeats=expects_heartbeats,
            now_ms=now_ms,
            writing=self._writing,
        )
        session.stream, session.connected_ms = stream, now_ms
        self._streams.add(stream)
        session.outbox.rewind()
        session.has_unary_callers |= not expects_heartbeats
        self._forget_last_use(session)
        for listener in self._listeners:
            listener.stream_connected()
        if before is not None:
            before.taken_over()
        return stream

    def attach_callback(self, session: Session, stream: AttachedStream) -> None:
        """Gives a session with a callback the stream that sends its results."""
        assert session.callback is not None, f"session {session.session_id!r} has no callback"
        assert session.stream is None, f"session {session.session_id!r} has a stream"
        session.resume(session.outbox.acknowledged_sequence)
        session.stream = stream
        session.outbox.rewind()
        self._forget_last_use(session)

    def detach_callback(self, session: Session, now_ms: int) -> None:
        """The session of a callback is finished: its time to live starts."""
        session.stream = None
        session.last_used_ms = now_ms
        self._disconnected[session.key] = self._just_used[session.key] = session

    def with_callback(self) -> list[Session]:
        return [session for session in self._by_id.values() if session.callback is not None]

    def detach(self, stream: ResultStream, now_ms: int) -> None:
        """A stream has ended. If it was still its session's, the session's time to live starts."""
        for listener in self._listeners:
            listener.stream_disconnected()
        self._streams.discard(stream)
        session = stream.session
        if session.stream is stream:
            session.stream = None
            session.last_used_ms = now_ms
            if not session.dropped:
                self._disconnected[session.key] = self._just_used[session.key] = session

    def drop_expired(self, now_ms: int) -> bool:
        """Drops some of the sessions whose time to live is over, and cancels their pending operations. Whether there
        may be more of them.
        """
        for _ in range(DROPPED_PER_SLICE):
            if not self._just_used:
                break
            if now_ms - next(iter(self._just_used.values())).last_used_ms < self._finished_ttl_ms:
                break
            session = self._first_just_used()
            if session.may_go_early:
                self._drop(session, now_ms)
        else:
            return True
        for _ in range(DROPPED_PER_SLICE):
            if not self._disconnected:
                return False
            session = next(iter(self._disconnected.values()))
            if now_ms - session.last_used_ms < self._ttl_ms:
                return False
            self._drop(session, now_ms)
        return True

    def forget(self, session: Session, now_ms: int) -> None:
        """A dropped session has nothing pending any more."""
        del self._by_owner_id[session.owner.owner_id]
        self._engine.remove_owner(session.owner, now_ms)

    def touch(self, session: Session, now_ms: int) -> None:
        """The session is being used: its time to live starts over."""
        session.last_used_ms = now_ms
        if session.stream is None:
            self._forget_last_use(session)
            self._disconnected[session.key] = self._just_used[session.key] = session

    def close(self, session: Session, now_ms: int) -> None:
        """Drops a session and ends its stream, if it has one."""
        self._drop(session, now_ms)
        if session.stream is not None:
            session.stream.session_closed()

    def _forget_last_use(self, session: Session) -> None:
        for places in (self._disconnected, self._just_used, self._evictable):
            places.pop(session.key, None)

    def _drop(self, session: Session, now_ms: int) -> None:
        for listener in self._listeners:
            listener.session_dropped(session)
        session.dropped = True
        session.account.add_session(-1)
        session.outbox.discard()
        del self._by_id[session.key]
        self._forget_last_use(session)
        if not session.owner.pending or self._end_pending(session, now_ms):
            self.forget(session, now_ms)
