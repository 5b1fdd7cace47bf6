"""Notifications of the host's work: one base class whose hooks do nothing. Metrics, archive and journal subclass it.

The host calls all listeners in turn, once per batch and never per operation. For an engine call the order is: the call
itself, then what it completed for each owner, then `call_finished`. All listeners have seen a completion before its
results get their sequence numbers, so none depends on the order of the list.

A hook must not block, raise, or change the host. Hooks with more than two values receive one object from `events`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from prometheus_client.core import Metric

from purgatory.engine.batches import Refusal
from purgatory.service.listeners.events import (
    Applied,
    Cancelled,
    CancelledKey,
    CancelledPartition,
    CancelledSession,
    Completed,
    FailedStale,
    Registered,
)
from purgatory.service.sessions.refused import RefusedOperation
from purgatory.service.sessions.session import Session

NONE: Final = 1
SYNC: Final = 2
ASYNC: Final = 3
"""What a receipt is worth: kept in memory, on disk before it is answered, on disk soon after. As on the wire."""


class Listener:
    """Hooks that do nothing: override those that matter."""

    records_dropped_sessions: ClassVar[bool] = False
    """Whether the operations of a dropped session are cancelled by a call of their own, which this listener then sees:
    by itself the engine reports nothing of an owner that it removes."""

    def reason_to_refuse(self) -> Refusal | None:
        """Why registrations and events should not be taken now; None: they may. The refusal's index means nothing."""

    def metrics(self) -> Iterable[Metric]:
        """What the metrics page shows of this listener, besides what `exposition` makes of `Metrics`."""
        return ()

    def held_bytes(self) -> int:
        """What waits in memory to be written, estimated."""
        return 0

    # Engine calls.

    def registered(self, event: Registered) -> None:
        """A batch of operations was registered."""

    def refused_unseen(self, event: Registered) -> None:
        """A batch was refused before the engine saw it; its receipt refuses each operation that was not known."""

    def applied(self, event: Applied) -> None:
        """A slice of a batch of events was applied."""

    def cancelled(self, event: Cancelled) -> None:
        """Operations were cancelled by id."""

    def cancelled_session(self, event: CancelledSession) -> None:
        """Everything pending in a session was cancelled."""

    def cancelled_partition(self, event: CancelledPartition) -> None:
        """Everything that waited on a partition was cancelled."""

    def cancelled_key(self, event: CancelledKey) -> None:
        """Everything that waited on a key was cancelled."""

    def failed_stale(self, event: FailedStale) -> None:
        """Operations were ended because of marks that are stale."""

    def shut_down(self, ended: int, now_ms: int) -> None:
        """A slice of what was pending ended because the daemon ends."""

    def expired(self, now_ms: int) -> None:
        """The clock was advanced, and something expired."""

    def completed(self, event: Completed) -> None:
        """Operations of one owner have ended. Their results have no sequence numbers yet."""

    def discarded(self, event: Completed) -> None:
        """Operations of a session that is being dropped were cancelled: nobody gets their results."""

    def call_finished(self) -> None:
        """Everything that the call completed was reported. Harmless when there was no call."""

    # Refusals.

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Registrations or events were refused, by the engine or before it."""

    def call_refused(self, reason: str) -> None:
        """A call was refused before its request was read, or because its deadline had passed; see `call_gate`."""

    def refused_in_session(self, session: Session, refused: Sequence[RefusedOperation]) -> None:
        """Refused registrations become results of their session. These have no sequence numbers yet."""

    # Sessions.

    def session_opened(self) -> None:
        """A session was made."""

    def session_dropped(self, session: Session) -> None:
        """A session is about to be dropped: its time to live is over."""

    def acknowledged(self, session: Session) -> None:
        """Results of a session were acknowledged."""

    def stream_connected(self) -> None:
        """A result stream was attached to a session."""

    def stream_disconnected(self) -> None:
        """A result stream ended."""

    # Time.

    def waited_for_turn(self, work: int, us: int) -> None:
        """Work of such a sort (see `fair_queue`) had to wait for its turn, which it has now."""

    def tick(self) -> None:
        """Time has passed: called now and then."""

    def loop_lag_ms(self, ms: float) -> None:
        """How late the event loop woke the reaper this time."""

    def reaper_failed(self) -> None:
        """A turn of the reaper raised; it was logged, and the reaper goes on."""


class Journal(Listener):
    """A listener that also says when changes are durable; this one keeps nothing, for a daemon without a journal.

    Whatever leaves the daemon because of a change goes through `when_durable`, or waits for `durable`, after the
    change. `durable_journal` has the journal on disk.
    """

    durability = NONE
    """What a receipt is worth: NONE, SYNC or ASYNC."""

    keeps = False
    """Whether what is pending survives the daemon."""

    def why_closed(self) -> Refusal | None:
        """Why nothing may be admitted now; None: everything may. The refusal's index means nothing.

        Unlike with `reason_to_refuse`, refusals have no results then: nothing can be kept, so nothing is begun.
        """
        return None

    def changed(self, session: Session) -> None:
        """Something of a session has changed that the caller is going to wait for."""

    def dead_letter_changed(self, letter: int, content: bytes) -> None:
        """A result that was not delivered is kept under this number; without content: no longer."""

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Calls it once every change so far is durable; at once if there is nothing to wait for."""
        answer()

    async def durable(self) -> None:
        """Returns once every change so far is durable."""
