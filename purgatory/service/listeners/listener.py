"""Notifications of the host's work: one base class whose hooks do nothing. Metrics, archive and journal subclass it.

The host calls all listeners in turn, once per batch and never per operation. For an engine call the order is: the call
itself, then what it completed for each owner, then `call_finished`. All listeners have seen a completion before its
results get their sequence numbers, so none depends on the order of the list.

A hook must not block, raise, or change the host. Hooks with more than two values receive one object from `events`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from prometheus_client.core import Metric

from purgatory.engine.batches import Refusal
from purgatory.service.listeners.events import (
    Applied,
    Cancelled,
    CancelledSession,
    CancelledWaits,
    Completed,
    Extended,
    FailedStale,
    Registered,
)
from purgatory.service.sessions.refused import RefusedOperation
from purgatory.service.sessions.session import Session

NONE: Final = 1
SYNC: Final = 2
ASYNC: Final = 3
"""Durability of a receipt: kept in memory, on disk before it is sent, or on disk soon after. Same numbers as on the
wire.
"""


class Listener:
    """Hooks that do nothing: override the ones you need."""

    records_dropped_sessions: ClassVar[bool] = False
    """Whether the operations of a dropped session are cancelled by a separate call that this listener observes. The
    engine itself does not report the operations of an owner that it removes.
    """

    def reason_to_refuse(self) -> Refusal | None:
        """Return why registrations and events should be refused now; None: accept them. The index of the refusal is
        ignored.
        """

    def metrics(self) -> Iterable[Metric]:
        """Metrics of this listener, in addition to those derived from `Metrics` by `exposition`."""
        return ()

    def held_bytes(self) -> int:
        """Estimated bytes waiting in memory to be written."""
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

    def cancelled_waits(self, event: CancelledWaits) -> None:
        """All operations waiting on a partition or key were cancelled."""

    def extended(self, event: Extended) -> None:
        """Operations were given more time."""

    def failed_stale(self, event: FailedStale) -> None:
        """Operations were failed because of stale marks."""

    def shut_down(self, ended: int, now_ms: int) -> None:
        """A slice of the pending operations was ended because the daemon is shutting down."""

    def expired(self, now_ms: int) -> None:
        """The clock was advanced, and operations expired."""

    def completed(self, event: Completed) -> None:
        """Operations of one owner have ended. Their results have no sequence numbers yet."""

    def discarded(self, event: Completed) -> None:
        """Operations of a session that is being dropped were cancelled. Their results are discarded."""

    def call_finished(self) -> None:
        """All completions of the call have been reported. Harmless without a preceding call."""

    # Refusals.

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Registrations or events were refused, by the engine or before it."""

    def call_refused(self, reason: str) -> None:
        """A call was refused before its request was read, or because its deadline had passed; see `call_gate`."""

    def refused_in_session(self, session: Session, refused: Sequence[RefusedOperation]) -> None:
        """Registrations of a session were refused and become results, which have no sequence numbers yet."""

    # Sessions.

    def session_opened(self) -> None:
        """A session was created."""

    def session_dropped(self, session: Session) -> None:
        """A session is about to be dropped: its time to live has passed."""

    def acknowledged(self, session: Session) -> None:
        """Results of a session were acknowledged."""

    def stream_connected(self) -> None:
        """A result stream was attached to a session."""

    def stream_disconnected(self) -> None:
        """A result stream ended."""

    # Time.

    def waited_for_turn(self, work: int, us: int) -> None:
        """Work of this kind (see `fair_queue`) had to wait for its turn, and has it now."""

    def tick(self) -> None:
        """Time has passed. Called periodically."""

    def loop_lag_ms(self, ms: float) -> None:
        """How late the event loop woke the reaper, in milliseconds."""

    def reaper_failed(self) -> None:
        """A turn of the reaper raised an exception, which was logged. The reaper continues."""


class Listeners(list[Listener]):
    """The listeners of a host, in notification order. Changed only with `append` and `remove`."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        super().__init__(listeners)
        self._by_hook: Final[dict[str, list[Callable[..., Any]]]] = {}

    def of(self, hook: str) -> list[Callable[..., Any]]:
        """Return this hook of each listener that overrides it, for hooks called with every event: few listeners do."""
        hooks = self._by_hook.get(hook)
        if hooks is None:
            base, bound = getattr(Listener, hook), [getattr(listener, hook) for listener in self]
            hooks = self._by_hook[hook] = [one for one in bound if getattr(one, "__func__", None) is not base]
        return hooks

    def append(self, listener: Listener) -> None:
        super().append(listener)
        self._by_hook.clear()

    def remove(self, listener: Listener) -> None:
        super().remove(listener)
        self._by_hook.clear()


class Journal(Listener):
    """A listener that also reports when changes are durable. This one stores nothing; it serves a daemon without a
    journal.

    Anything that leaves the daemon because of a change must go through `when_durable`, or wait for `durable`, after the
    change. `durable_journal` implements the journal on disk.
    """

    durability = NONE
    """Durability of a receipt: NONE, SYNC or ASYNC."""

    keeps = False
    """Whether pending operations survive the daemon."""

    def why_closed(self) -> Refusal | None:
        """Return why nothing may be admitted now; None: everything may. The index of the refusal is ignored.

        Unlike with `reason_to_refuse`, these refusals have no results: nothing can be stored, so nothing is begun.
        """
        return None

    def changed(self, session: Session) -> None:
        """A change of a session that the caller is going to wait for."""

    def dead_letter_changed(self, letter: int, content: bytes) -> None:
        """The dead letter with this number was added, or removed if it has no content."""

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Call `answer` once all previous changes are durable; immediately if there is nothing to wait for."""
        answer()

    async def durable(self) -> None:
        """Return once all previous changes are durable."""

    # With a replicated log, another daemon may have taken over. Without one, these hold always.

    @property
    def is_confirmed(self) -> bool:
        """Whether a recent commit has shown that no other daemon had taken over."""
        return True

    async def confirmed(self) -> None:
        """Return once a commit that began after this call is durable: until then no other daemon had taken over."""

    def heartbeat(self) -> None:
        """Commit a group, even an empty one."""
