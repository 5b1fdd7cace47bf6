"""Notifications of the host's work: one base class whose hooks do nothing. Metrics, archive and journal subclass it.

The host calls all listeners in turn, once per call of the engine and never per operation. The order is: the call
itself, then what it completed for each owner, then `call_finished`. All listeners have seen a completion before its
results get their sequence numbers, so none depends on the order of the list.

A hook must not block, change the host, or modify batches, receipts and completions. If it raises, the event is lost for
this listener only (see `Listeners`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar, cast

from prometheus_client.core import Metric

from purgatory.engine.batches import Receipt, Refusal
from purgatory.engine.calls import Call
from purgatory.engine.completions import Completions
from purgatory.service.sessions.refused import RefusedOperation
from purgatory.service.sessions.session import Session

LOGGER: Final = logging.getLogger(__name__)
Hook = Callable[..., Any]
AnyHook = TypeVar("AnyHook", bound=Hook)

NONE: Final = 1
SYNC: Final = 2
ASYNC: Final = 3
"""Durability of a receipt: kept in memory, on disk before it is sent, or on disk soon after. Same numbers as on the
wire.
"""


class Called(NamedTuple):
    """A call was performed on the engine, or refused before the engine saw it (`Listener.refused_unseen`)."""

    session: Session | None
    """None: a call for unary waits, or for no owner."""
    principal: str
    """The caller's; empty: a caller without a principal, or the host."""
    call: Call
    """As the caller sent it, with the names that were refused."""
    receipt: Receipt
    now_ms: int
    """Engine time, milliseconds."""


class Completed(NamedTuple):
    """Operations of one owner have ended. Their results have no sequence numbers yet."""

    session: Session | None
    principal: str
    completions: Completions


class Listener:
    """Hooks that do nothing: override the ones you need."""

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

    def called(self, event: Called) -> None:
        """A call was performed. It may have had no effect, such as a `PassTime` that ended nothing.

        A `CancelAll` or `CancelName` that takes several slices is reported as a `Cancel` by id for each slice and
        owner: operations may be registered between slices. Results of a session that is being dropped are `discarded`.
        """

    def refused_unseen(self, event: Called) -> None:
        """A registration was refused before the engine saw it. The receipt refuses what was not known already."""

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

    def hook_failed(self, error: Exception) -> None:
        """A hook of this listener that reports a change raised an exception, which was logged and counted. Must not
        raise.
        """


class _Overriding(dict[Hook, list[tuple[Listener, Hook]]]):
    """By hook of `Listener`: the listeners that override it, and their hooks. Few do. Clear it after a change."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        super().__init__()
        self._listeners: Final = listeners

    def __missing__(self, hook: Hook) -> list[tuple[Listener, Hook]]:
        bound = [(one, getattr(one, hook.__name__)) for one in self._listeners]
        found = self[hook] = [pair for pair in bound if getattr(pair[1], "__func__", None) is not hook]
        return found


def _of_all(hook: AnyHook) -> AnyHook:
    """Return a method of `Listeners` that calls a hook of all listeners."""

    def tell(self: "Listeners", *event: object) -> None:
        for listener, call in self._overriding[hook]:
            try:
                call(*event)
            except Exception as error:  # noqa: BLE001 - logged and counted
                self.failed(type(listener).__name__, hook.__name__, error)
                listener.hook_failed(error)

    return cast("AnyHook", tell)


class Listeners(Listener):
    """The listeners of a host, as one listener: each hook calls the hooks of all of them, in notification order.

    A hook that raises keeps neither the other listeners from the event nor the host from delivering results. The
    exception is counted, and logged the first time. Changed only with `append` and `remove`, between events.
    """

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.failures: Final[Counter[str]] = Counter()
        """Number of exceptions, by class of the listener."""
        self._listeners: Final[list[Listener]] = []
        self._overriding: Final = _Overriding(self._listeners)
        self._logged: Final[set[tuple[str, str]]] = set()
        for listener in listeners:
            self.append(listener)

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners)

    def append(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self.failures[type(listener).__name__] += 0  # exported from the start
        self._overriding.clear()

    def remove(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        self._overriding.clear()

    def failed(self, who: str, what: str, error: Exception) -> None:
        """Count an exception of a listener, or of another part that must not prevent the delivery of results."""
        self.failures[who] += 1
        if (who, what) not in self._logged:
            self._logged.add((who, what))
            LOGGER.error("%s failed in %s; further failures there are only counted", who, what, exc_info=error)

    def _answers(self, hook: Hook, read: Callable[[Any], Any] = lambda answer: answer) -> Iterator[Any]:
        for listener, call in self._overriding[hook]:
            try:
                answer = read(call())
            except Exception as error:  # noqa: BLE001 - logged and counted
                self.failed(type(listener).__name__, hook.__name__, error)
            else:
                yield answer

    # The hooks of `Listener`.

    def reason_to_refuse(self) -> Refusal | None:
        """The first reason that a listener gives; None: there is none."""
        return next(filter(None, self._answers(Listener.reason_to_refuse)), None)

    def metrics(self) -> Iterable[Metric]:
        # The other methods that return metrics are generators, so it is the reading that may raise.
        return chain.from_iterable(self._answers(Listener.metrics, list))

    def held_bytes(self) -> int:
        return sum(self._answers(Listener.held_bytes))

    called = _of_all(Listener.called)
    refused_unseen = _of_all(Listener.refused_unseen)
    completed = _of_all(Listener.completed)
    discarded = _of_all(Listener.discarded)
    call_finished = _of_all(Listener.call_finished)
    refused = _of_all(Listener.refused)
    call_refused = _of_all(Listener.call_refused)
    refused_in_session = _of_all(Listener.refused_in_session)
    session_opened = _of_all(Listener.session_opened)
    session_dropped = _of_all(Listener.session_dropped)
    acknowledged = _of_all(Listener.acknowledged)
    stream_connected = _of_all(Listener.stream_connected)
    stream_disconnected = _of_all(Listener.stream_disconnected)
    waited_for_turn = _of_all(Listener.waited_for_turn)
    tick = _of_all(Listener.tick)
    loop_lag_ms = _of_all(Listener.loop_lag_ms)
    reaper_failed = _of_all(Listener.reaper_failed)


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
        """Return once all previous changes are durable. Raises `RpcError` as soon as the disk fails: they may become
        durable later.
        """

    # With a replicated log, another daemon may have taken over. Without one, these hold always.

    @property
    def is_confirmed(self) -> bool:
        """Whether a recent commit has shown that no other daemon had taken over."""
        return True

    async def confirmed(self) -> None:
        """Return once a commit that began after this call is durable: until then no other daemon had taken over."""

    def heartbeat(self) -> None:
        """Commit a group, even an empty one."""
