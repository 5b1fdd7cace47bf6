"""One session: who registers and receives, across streams and reconnects."""

import asyncio
import secrets
from collections import deque
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from purgatory.engine.completions import Completions
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.errors import invalid_argument
from purgatory.service.sessions.outbox import Outbox, slices_of
from purgatory.service.sessions.refused_ids import RefusedIds

SessionKey = tuple[str, str]
"""Principal and session id."""


class Callback(NamedTuple):
    """Where the results of a session are POSTed, and what their ids begin with."""

    url: str
    token: str


class AttachedStream(Protocol):
    """What a session and its next stream ask of the stream that it has: a `ResultStream`, or for a session with a
    callback a `CallbackStream`.
    """

    def wake(self) -> None: ...

    def taken_over(self) -> None: ...

    def session_closed(self) -> None: ...


class Turns:
    """Whose turn it is: each has it within `async with turns:`, in the order in which they came."""

    def __init__(self) -> None:
        self._queue: Final[deque[asyncio.Event]] = deque()
        """The first one's has come."""

    @property
    def is_taken(self) -> bool:
        return bool(self._queue)

    async def __aenter__(self) -> None:
        mine = asyncio.Event()
        self._queue.append(mine)
        try:
            while self._queue[0] is not mine:
                await mine.wait()
        except asyncio.CancelledError:
            self._leave(mine)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self._queue[0])

    def _leave(self, who: asyncio.Event) -> None:
        self._queue.remove(who)
        if self._queue:
            self._queue[0].set()


class Session:
    """One session. Its `number` is never reused in the daemon's life, unlike session ids and engine owners."""

    def __init__(self, session_id: str, number: int, owner: Owner, account: Account, now_ms: int) -> None:
        self.session_id: Final = session_id
        self.key: Final[SessionKey] = (account.principal, session_id)
        self.number: Final = number
        self.owner: Final = owner
        self.account: Final = account
        """Whose session it is: nobody else can reach it, or learn that it exists."""
        self.incarnation = secrets.token_hex(8)
        """Random name of this life of the session. Sequence numbers of different incarnations are unrelated."""
        self.outbox: Final = Outbox(account.hold_results)
        self.refused_ids = RefusedIds()
        self.registering: Final = Turns()
        """Of batches that are registered in parts: those of two batches must not mix, as ids rise."""
        self.stream: AttachedStream | None = None
        self.callback: Callback | None = None
        """Set before anything is registered: the daemon itself sends the results then, and nobody else reads them."""
        self.last_used_ms = now_ms
        self.connected_ms = now_ms
        """Since when it has had its stream, while it has one."""
        self.dropped = False
        self.has_unary_callers = False
        """Whether anybody used it but by `Session` streams. The opening of such a stream says whether the session is a
        new one. Others are not told: they would take its results for those they have, and a batch that they send again
        would be registered again.
        """
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
        """Whether nothing was ever registered in it."""
        return not self.owner.highest_operation_id and not self.outbox.last_sequence

    @property
    def is_finished(self) -> bool:
        """Whether nothing is pending in it, and its client has all results. One that awaits its client since a crash
        is not: that client may have results which are lost here.
        """
        is_done = not self.owner.pending and not self.outbox.unacknowledged and self.uncertain_after < 0
        return is_done and not self.registering.is_taken

    @property
    def may_go_early(self) -> bool:
        """Whether nothing is lost by dropping it long before its time to live is over."""
        return self.is_finished and (self.is_blank or not self.has_unary_callers)

    def deliver(self, completions: Completions) -> None:
        """Gives results of completed operations their sequence numbers, and wakes the stream."""
        self.outbox.append(slices_of(completions))
        self.wake()

    def release_results(self, hold: list[int]) -> None:
        """The receipt that results were held back for is on its way, or there is none."""
        self.outbox.receipt_sent(hold)
        self.wake()

    def wake(self) -> None:
        if self.stream is not None:
            self.stream.wake()

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
        """Drops results up to `sequence`. Raises `RpcError` for a number that was never given out."""
        last = self.outbox.last_sequence
        if sequence > last:
            raise invalid_argument("sequence", f"{sequence} was never sent in this session; the last one is {last}")
        self.outbox.acknowledge(sequence)
