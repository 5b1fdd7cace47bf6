"""One session: a caller's registrations and results, across streams and reconnects."""

import asyncio
import secrets
from typing import Final, Literal, NamedTuple, Protocol

from purgatory.engine.completions import Completions
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.errors import invalid_argument
from purgatory.service.sessions.outbox import Hold, Outbox
from purgatory.service.sessions.refused import RefusedIds
from purgatory.service.translate.result_slices import slices_of

SessionKey = tuple[str, str]
"""Principal and session id."""


class Callback(NamedTuple):
    """A session's webhook: the URL that results are POSTed to, and the prefix of their ids."""

    url: str
    token: str


class AttachedStream(Protocol):
    """The stream of a session, as seen by the session: a `ResultStream`, or a `CallbackStream` if it has a callback."""

    def wake(self) -> None: ...

    def taken_over(self) -> None: ...

    def session_closed(self) -> None: ...


class Turns(asyncio.Lock):
    """A lock for tasks in order of arrival, which also tells whether any of them waits for it."""

    _users = 0

    @property
    def is_taken(self) -> bool:
        # Not `locked`: that is false between a release and the next waiting task.
        return self._users > 0

    async def acquire(self) -> Literal[True]:
        self._users += 1
        try:
            return await super().acquire()
        except asyncio.CancelledError:
            self._users -= 1
            raise

    def release(self) -> None:
        super().release()
        self._users -= 1


class Session:
    """One session. Its `number` is never reused in the daemon's life, unlike session ids and engine owners."""

    def __init__(self, session_id: str, number: int, owner: Owner, account: Account, now_ms: int) -> None:
        self.session_id: Final = session_id
        self.key: Final[SessionKey] = (account.principal, session_id)
        self.number: Final = number
        self.owner: Final = owner
        self.account: Final = account
        """The owner. Other accounts cannot access the session or learn that it exists."""
        self.incarnation = secrets.token_hex(8)
        """Random name of this incarnation. Sequence numbers of different incarnations are unrelated."""
        self.outbox: Final = Outbox(account.hold_results)
        self.refused_ids = RefusedIds()
        self.registering: Final = Turns()
        """Held while a batch is registered in parts. Parts of two batches must not be interleaved, because ids rise."""
        self.stream: AttachedStream | None = None
        self.callback: Callback | None = None
        """Set before anything is registered. The daemon then sends the results itself, and no client reads them."""
        self.last_used_ms = now_ms
        self.connected_ms = now_ms
        """Time at which the current stream was attached."""
        self.acknowledged_ms: int | None = None
        """Time of the last acknowledgement; None: none since this daemon has known the session."""
        self.dropped = False
        self.has_unary_callers = False
        """Whether it was used by calls other than `Session` streams. The first answer on such a stream states whether
        the session is new. Other callers do not learn it: they would take its results for those they already have, and
        a batch that they repeat would be registered twice. So such a session must not be dropped early.
        """
        self.is_journaled = False
        self.journaled_operation_id = 0
        """The highest operation id in the journal."""
        self.sequence_shift = 0
        """The client's sequence numbers minus the journal's."""
        self.uncertain_after = -1
        """-1, or: the client has not resumed since a crash, and may have received results above this sequence number
        that the crash lost here.
        """

    @property
    def is_blank(self) -> bool:
        """Whether nothing has ever been registered."""
        return not self.owner.highest_operation_id and not self.outbox.last_sequence

    @property
    def is_finished(self) -> bool:
        """Whether nothing is pending and all results are acknowledged. A session that has not been resumed since a
        crash is not finished: its client may have results that are lost here.
        """
        # A batch that is registered in parts is checked too: if everything in its first part ended at once, the session
        # only seems to be finished.
        is_done = not self.owner.pending and not self.outbox.unacknowledged and self.uncertain_after < 0
        return is_done and not self.registering.is_taken

    @property
    def may_go_early(self) -> bool:
        """Whether the session can be dropped long before its time to live has passed."""
        return self.is_finished and (self.is_blank or not self.has_unary_callers)

    def deliver(self, completions: Completions) -> None:
        self.outbox.append(slices_of(completions))
        self.wake()

    def release_results(self, hold: Hold) -> None:
        """Release results that were held back for a receipt: it is queued for writing, or there is none."""
        self.outbox.receipt_sent(hold)
        self.wake()

    def wake(self) -> None:
        if self.stream is not None:
            self.stream.wake()

    def resume(self, sequence: int) -> None:
        """A client reconnects that has all results up to `sequence`.

        Results that the client has and that a crash lost here have used their sequence numbers, so the numbers here
        are shifted above them.
        """
        lost = sequence - self.uncertain_after
        if self.uncertain_after >= 0 and lost > 0:
            # Acknowledged under the old numbers. The first result that is left then gets the number after `sequence`.
            self.outbox.acknowledge(self.uncertain_after)
            self.outbox.shift(lost)
            self.sequence_shift += lost
        self.uncertain_after = -1
        self.acknowledge(sequence)

    def acknowledge(self, sequence: int) -> None:
        """Drop results up to `sequence`.

        Raises:
            RpcError: No result with this number has been sent.
        """
        last = self.outbox.last_sequence
        if sequence > last:
            raise invalid_argument("sequence", f"{sequence} was never sent in this session; the last one is {last}")
        self.outbox.acknowledge(sequence)


MESSAGE = "webhooks are not available on this daemon; read the results from a stream"


class WebhookCounts(NamedTuple):
    """The deliveries to callbacks: the fields of `WebhookStatus` in webhook.proto."""

    undelivered: int
    paused: int
    dead_letters: int
    oldest_ms: int | None


class Callbacks:
    """How sessions get callbacks; on a daemon without webhooks they get none."""

    def check_url(self, _url: str) -> None:
        """Raise `RpcError` for a URL that may not be a callback."""
        raise invalid_argument("callback_url", MESSAGE)

    def attach(self, session: Session, url: str) -> None:
        """Set a session's callback (empty: keep its present one). Raises `RpcError` if it has another reader."""

    def detach_if_finished(self, session: Session) -> None:
        """Start the time to live of a session that has nothing pending. Call when that may have changed."""

    def counts(self) -> WebhookCounts | None:
        """Return counts of deliveries; None: there are no webhooks."""
        return None


NO_CALLBACKS: Final = Callbacks()
