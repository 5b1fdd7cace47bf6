"""Delivers the results of a session with a callback: takes them from its outbox, sends them, and acknowledges them.

It replaces the client's stream. Results stay in the outbox (and in the journal) until they are acknowledged, and while
too many are unacknowledged, registrations of the session are refused. Up to `OPEN_MAX` results are open at a time. They
are acknowledged in order: results behind one that keeps failing are sent, but not acknowledged.
"""

import asyncio
from typing import Final, Protocol

from purgatory.extensions.webhooks.deliveries import Deliveries
from purgatory.extensions.webhooks.webhook_poster import Attempt
from purgatory.service.sessions.outbox import ResultSlice
from purgatory.service.sessions.session import Callback, Session, SessionKey
from purgatory.service.translate.results import fill_row
from purgatory.v1 import result_pb2

OPEN_MAX: Final = 64
"""Maximum of open results per session: being sent, waiting for a retry, or delivered before an older one."""


class CallbackOwner(Protocol):
    """The operations that a stream needs from `Webhooks`."""

    @property
    def deliveries(self) -> Deliveries: ...

    async def attempt(self, url: str, webhook_id: str, session_id: str, result: result_pb2.Result) -> Attempt: ...

    def acknowledge(self, session: Session, sequence: int) -> None: ...

    def give_up(self, session: Session, webhook_id: str, result: result_pb2.Result, attempts: int, why: str) -> None:
        """Keep the result as a dead letter."""
        ...


class CallbackStream:
    """The stream of one session with a callback. It exists for as long as results may be waiting."""

    def __init__(self, session: Session, callback: Callback, host: str, owner: CallbackOwner) -> None:
        self.session: Final = session
        self.callback: Final = callback
        self.host: Final = host
        self.owner: Final = owner
        self._open: Final[dict[int, ResultDelivery]] = {}
        """Unacknowledged deliveries by sequence number, in order."""
        self._undelivered: Final[set[int]] = set()
        self._is_scheduled = False
        self.is_closed = False

    def wake(self) -> None:
        """Schedule a look into the outbox. Called while the engine is working, so nothing is sent here."""
        if not self._is_scheduled and not self.is_closed:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_some)

    def taken_over(self) -> None:
        raise AssertionError(f"session {self.session.session_id!r} has a callback, and was given a stream")

    def session_closed(self) -> None:
        """Stop sending: the results are no longer needed."""
        self.is_closed = True

    def _take_some(self) -> None:
        self._is_scheduled = False
        while len(self._open) < OPEN_MAX and not self.is_closed:
            sequence, slices = self.session.outbox.take(1)
            if not slices:
                break
            delivery = self._open[sequence] = ResultDelivery(self, sequence, slices[0])
            self._undelivered.add(sequence)
            self.owner.deliveries.add(delivery)

    def ended(self, sequence: int) -> None:
        """A result was delivered or became a dead letter: acknowledge the results up to the first undelivered one."""
        self._undelivered.discard(sequence)
        last = 0
        for number in list(self._open):
            if number in self._undelivered:
                break
            del self._open[number]
            last = number
        if last:
            self.owner.acknowledge(self.session, last)
        self.wake()


class ResultDelivery:
    """One result of such a session."""

    def __init__(self, stream: CallbackStream, sequence: int, part: ResultSlice) -> None:
        self._stream: Final = stream
        self._sequence: Final = sequence
        self._part: Final = part
        operation_id = part.completions.operation_ids[part.start]
        self._webhook_id: Final = f"{stream.callback.token}.{operation_id}"

    @property
    def host(self) -> str:
        return self._stream.host

    @property
    def sender(self) -> SessionKey:
        return self._stream.session.key

    @property
    def is_wanted(self) -> bool:
        return not self._stream.is_closed

    async def attempt(self) -> Attempt:
        stream = self._stream
        return await stream.owner.attempt(
            stream.callback.url, self._webhook_id, stream.session.session_id, self._result()
        )

    def delivered(self) -> None:
        self._stream.ended(self._sequence)

    def given_up(self, attempts: int, reason: str) -> None:
        self._stream.owner.give_up(self._stream.session, self._webhook_id, self._result(), attempts, reason)
        self._stream.ended(self._sequence)

    def _result(self) -> result_pb2.Result:
        result = result_pb2.Result()
        part = self._part
        fill_row(result, part, part.start, part.item_start, part.fetched_start)
        return result
