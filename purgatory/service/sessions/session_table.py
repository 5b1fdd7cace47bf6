"""The table of sessions.

A session belongs to an account, and its id is local to that account: another account may use the same id for another
session. A session has one engine owner, one outbox and at most one result stream. It exists while it has a stream, and
for its time to live after its last use. Finished sessions are dropped after a few seconds, because short-lived callers
leave many, and are evicted first when the table is full. Sessions without a stream are kept in order of last use, so
finding the expired ones takes no time for the others.

Dropping a finished session neither loses nor repeats anything. Its client has acknowledged every result, so none has to
be sent again. If the client returns, it learns that the session is new. It then counts results from the start of the
next batch, and registers everything it still waits for: none of that was registered here, because nothing was pending.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from purgatory import sizes
from purgatory.engine.batches import Refusal
from purgatory.engine.codes import RESOURCE_EXHAUSTED
from purgatory.engine.engine import Engine
from purgatory.service.access.account import NOBODY, Account
from purgatory.service.budget.shares import SESSION_BYTES, Shares
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
from purgatory.service.translate.shards import Shards

SESSION_ID_LENGTH_MAX: Final = 128
FINISHED_TTL_MS: Final = 5_000
"""The time to live of a session with nothing pending and all results acknowledged over a Session stream."""


class Sessions:
    """The table of sessions. It adds and removes engine owners and uses nothing else of the engine.

    `end_pending(session)` is called for a dropped session with pending operations. It cancels them and returns
    whether all have ended; if not, it continues in later slices and finally calls `forget`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: HostSettings,
        listeners: Listener,
        holds: LoopStalls,
        end_pending: Callable[[Session], bool],
        now_ms: Callable[[], int],
        shares: Shares,
        shards: Shards,
    ) -> None:
        self._engine: Final = engine
        self._sessions_max: Final = settings.limits.sessions_max
        self._ttl_ms: Final = settings.session.ttl_ms
        self._finished_ttl_ms: Final = min(FINISHED_TTL_MS, settings.session.ttl_ms)
        self._listeners: Final = listeners
        self._writing: Final = holds.of("results")
        self._end_pending: Final = end_pending
        self._now_ms: Final = now_ms
        self._opened = 0
        self._shares: Final = shares
        self.accounts: Final = shares.accounts
        self.shards: Final = shards
        # Every session is in `_by_id`, and every owner in `_by_owner_id`, also after its session was dropped, until
        # nothing of it is pending. A session without a stream is in `_disconnected`, and in at most one of the two that
        # follow; one with a stream is in none of the three.
        self._by_id: Final[dict[SessionKey, Session]] = {}
        self._by_owner_id: Final[dict[int, Session]] = {}
        self._disconnected: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """In order of last use."""
        self._just_used: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """Disconnected sessions that may be finished, in order of last use. One that turns out not to be finished is
        removed: it cannot become finished without being used again.
        """
        self._evictable: Final[OrderedDict[SessionKey, Session]] = OrderedDict()
        """Finished sessions that must not be dropped early; they are evicted only when the table is full."""
        self._streams: Final[set[ResultStream]] = set()

    @property
    def count(self) -> int:
        return len(self._by_id)

    @property
    def connected(self) -> int:
        return len(self._by_id) - len(self._disconnected)

    @property
    def unacknowledged_results(self) -> int:
        return sum(session.outbox.unacknowledged for session in self._by_id.values())

    def find(self, session_id: str, account: Account | None = None) -> Session | None:
        """The session of an account; None: of the account of unauthenticated callers."""
        return self._by_id.get(self._key(session_id, account))

    def get(self, session_id: str, account: Account | None = None, incarnation: str = "") -> Session:
        """The session of an account; None: of the account of unauthenticated callers.

        Raises:
            RpcError: NOT_FOUND: it does not exist, or its incarnation differs from the given one (empty: any). Or it
                belongs to another shard.
        """
        session = self.find(session_id, account)
        if session is None:
            self.shards.check_session(session_id)
            raise not_found("session", session_id)
        if incarnation not in ("", session.incarnation):
            raise not_found("session", f"{session_id}, incarnation {incarnation}")
        return session

    def __iter__(self) -> Iterator[Session]:
        """In the order of opening."""
        return iter(self._by_id.values())

    def of_owner(self, owner_id: int) -> Session | None:
        return self._by_owner_id.get(owner_id)

    def streams(self) -> list[ResultStream]:
        """All streams, including those that were taken over but have not ended yet."""
        return list(self._streams)

    def _key(self, session_id: str, account: Account | None) -> SessionKey:
        return (NOBODY if account is None else account.principal), session_id

    def open(self, session_id: str, now_ms: int, account: Account | None = None) -> tuple[Session, bool]:
        """Open the session of an account with this id. Create it if it does not exist.

        Returns:
            The session, and whether it is resumed. A blank session counts as new: an earlier call whose answer was lost
            may have created it, and the client must still learn that its old session is gone.

        Raises:
            RpcError: The id is invalid, it belongs to another shard, or there are too many sessions.
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
        self.shards.check_session(session_id)
        if len(self._by_id) >= self._sessions_max and not self._evict_finished():
            message = f"the daemon keeps at most {self._sessions_max} sessions"
            refused = Refusal(0, RESOURCE_EXHAUSTED, "sessions", message)
            self._listeners.refused([refused])
            raise resource_exhausted("sessions", message, self._next_expiry_ms(now_ms))
        account = account or self.accounts.nobody
        self._check_share(account, now_ms)
        # Counted upwards, also past restored sessions: the journal identifies sessions by number, and their ids are
        # reused.
        return self._add(session_id, self._opened + 1, account, now_ms), False

    def _check_share(self, account: Account, now_ms: int) -> None:
        """Raise `RpcError` if the account must not open another session.

        If the account has reached its share, one of its finished sessions is dropped first.
        """
        refusal = self._shares.session_refusal(account, len(self._by_id))
        if refusal is not None:
            # Not `_evict_finished`, which may drop the session of another account.
            finished = (one for one in chain(self._just_used.values(), self._evictable.values()) if one.is_finished)
            mine = next((one for one in finished if one.account is account), None)
            if mine is not None:
                self._drop(mine)
                refusal = None
        retry_after_ms = RETRY_AFTER_MS if refusal is None else self._next_expiry_ms(now_ms)
        refusal = refusal or self._shares.memory_refusal(account, SESSION_BYTES)
        if refusal is not None:
            self._listeners.refused([refusal])
            raise from_refusal(refusal, "", retry_after_ms)

    def _evict_finished(self) -> bool:
        """Drop a finished session if there is one, preferably one that may go early; return whether there was one."""
        while self._just_used:
            session = self._first_just_used()
            if session.may_go_early:
                self._drop(session)
                return True
        if not self._evictable:
            return False
        self._drop(next(iter(self._evictable.values())))
        return True

    def _first_just_used(self) -> Session:
        """The first session in `_just_used`. It is removed from there unless it may go early."""
        session = next(iter(self._just_used.values()))
        if not session.may_go_early:
            del self._just_used[session.key]
            if session.is_finished:
                self._evictable[session.key] = session
        return session

    def _next_expiry_ms(self, now_ms: int) -> int:
        """Milliseconds until there may be room again. If all sessions are connected: as if one disconnected now."""
        if not self._disconnected:
            return self._finished_ttl_ms
        first = next(iter(self._disconnected.values()))
        return max(1, first.last_used_ms + self._ttl_ms - now_ms)

    def restore(self, session_id: str, number: int, now_ms: int, principal: str = NOBODY) -> Session:
        """Add an empty session from the journal; the caller restores its contents. Its time to live starts over."""
        account = self.accounts.of(principal)
        assert self.find(session_id, account) is None, f"session {session_id!r} exists already"
        session = self._add(session_id, number, account, now_ms)
        session.has_unary_callers = True  # possibly: the journal does not record it
        return session

    def _add(self, session_id: str, number: int, account: Account, now_ms: int) -> Session:
        self._opened = max(self._opened, number)
        session = Session(session_id, number, self._engine.add_owner(account.usage), account, now_ms)
        account.add_session(1)
        self._by_id[session.key] = session
        self._by_owner_id[session.owner.owner_id] = session
        self._disconnected[session.key] = self._just_used[session.key] = session
        self._listeners.session_opened()
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
        """Attach a new stream to a session. The previous stream ends with TAKEN_OVER."""
        # First, because it refuses a number that was never sent, and the previous stream must survive that.
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
        # A stream that was taken over stays in this set until it has ended, so that shutdown waits for it.
        self._streams.add(stream)
        session.outbox.rewind()
        session.has_unary_callers |= not expects_heartbeats
        self._forget_last_use(session)
        self._listeners.stream_connected()
        # Last: from now on the old stream takes no more results, and all of them are unwritten again for the new one.
        if before is not None:
            before.taken_over()
        return stream

    def attach_callback(self, session: Session, stream: AttachedStream) -> None:
        """Attach the stream that sends the results of a session with a callback."""
        assert session.callback is not None, f"session {session.session_id!r} has no callback"
        assert session.stream is None, f"session {session.session_id!r} has a stream"
        # The reader is the daemon itself, which has exactly what the journal has: no result is uncertain after a crash.
        session.resume(session.outbox.acknowledged_sequence)
        session.stream = stream
        session.outbox.rewind()
        self._forget_last_use(session)

    def detach_callback(self, session: Session, now_ms: int) -> None:
        """The session of a callback has finished: its time to live starts."""
        session.stream = None
        session.last_used_ms = now_ms
        self._disconnected[session.key] = self._just_used[session.key] = session

    def with_callback(self) -> list[Session]:
        return [session for session in self._by_id.values() if session.callback is not None]

    def detach(self, stream: ResultStream, now_ms: int) -> None:
        """A stream has ended. If it was still the session's current stream, the time to live starts."""
        self._listeners.stream_disconnected()
        self._streams.discard(stream)
        session = stream.session
        # A stream that was taken over ends after its successor has begun, and must not detach it.
        if session.stream is stream:
            session.stream = None
            session.last_used_ms = now_ms
            if not session.dropped:
                self._disconnected[session.key] = self._just_used[session.key] = session

    def drop_expired(self, now_ms: int) -> bool:
        """Drop some sessions whose time to live has passed. Return whether there may be more of them."""
        for _ in range(sizes.SESSIONS_DROPPED_PER_SLICE):
            if not self._just_used:
                break
            if now_ms - next(iter(self._just_used.values())).last_used_ms < self._finished_ttl_ms:
                break
            session = self._first_just_used()
            if session.may_go_early:
                self._drop(session)
        # The slice is used up.
        else:
            return True
        for _ in range(sizes.SESSIONS_DROPPED_PER_SLICE):
            if not self._disconnected:
                return False
            session = next(iter(self._disconnected.values()))
            if now_ms - session.last_used_ms < self._ttl_ms:
                return False
            self._drop(session)
        return True

    def forget(self, session: Session) -> None:
        """A dropped session has no pending operations left: remove its engine owner."""
        # Only now: until its last operation has ended, the host finds the session of its completions by owner.
        del self._by_owner_id[session.owner.owner_id]
        self._engine.remove_owner(session.owner, self._now_ms())

    def touch(self, session: Session, now_ms: int) -> None:
        """The session is in use: its time to live starts over."""
        session.last_used_ms = now_ms
        if session.stream is None:
            # Removed and added again: the order of these dictionaries is that of last use.
            self._forget_last_use(session)
            self._disconnected[session.key] = self._just_used[session.key] = session

    def close(self, session: Session) -> None:
        """Drop a session and end its stream, if it has one."""
        self._drop(session)
        if session.stream is not None:
            session.stream.session_closed()

    def _forget_last_use(self, session: Session) -> None:
        for places in (self._disconnected, self._just_used, self._evictable):
            places.pop(session.key, None)

    def _drop(self, session: Session) -> None:
        self._listeners.session_dropped(session)
        # Before its operations end: the host discards the results of a dropped session, where it would add others to
        # the outbox.
        session.dropped = True
        session.account.add_session(-1)
        session.outbox.discard()
        del self._by_id[session.key]
        self._forget_last_use(session)
        if not session.owner.pending or self._end_pending(session):
            self.forget(session)
