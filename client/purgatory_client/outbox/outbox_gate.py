"""Between a session and its outbox, on the event loop: nothing is sent before it is in the file, and no result is given
to the session, which would acknowledge it, before that.

What cannot be written is refused: registrations end with the error; results are left to the daemon, which sends them
again over the next connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.errors import InvalidRequest, OutboxUnwritable, PurgatoryClientError
from purgatory_client.many import WaitColumns
from purgatory_client.outbox.outbox_file import (
    ConfirmationRecord,
    OutboxFile,
    Record,
    RegistrationRecord,
    ResultsRecord,
)
from purgatory_client.outbox.outbox_writer import OutboxWriter
from purgatory_client.outbox.ticket import Ticket, first_id, ticket_of
from purgatory_client.results import Result, ResultColumns
from purgatory_client.session.pending_waits import Ended, settle
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import Wait
from purgatory_client.wire.decode_waits import batch_of, wait_of
from purgatory_client.wire.encode_waits import fill_with_many, fill_with_waits

Entry = Wait | WaitColumns
NEVER_LOST: Final = float("-inf")


class OutboxGate:
    """The outbox of one session. `changed` is called when there may be something to send, or something has ended."""

    def __init__(self, file: OutboxFile, core: SessionCore, changed: Callable[[], None]) -> None:
        self._outbox: Final = OutboxWriter(file, self._done)
        self._core: Final = core
        self._changed: Final = changed
        self._begun = False
        self._staging = False
        self._unwritten: Final[deque[Entry]] = deque()
        self._written: Final[dict[Entry, asyncio.Future[None]]] = {}
        self._tags: Final[dict[Entry, str]] = {}
        """Those that are kept until they are confirmed."""
        self._confirming: Final[dict[int, asyncio.Future[None]]] = {}
        self._arrived: Final[deque[wire.SessionResponse]] = deque()
        self._failure: asyncio.Future[str] | None = None
        self._lost_confirmations: PurgatoryClientError | None = None
        self.recovered: Final[list[Ticket]] = []
        """What an earlier client has left in the file."""

    def begin(self) -> None:
        """Takes in what is in the file, on the running loop. Harmless when done already."""
        if self._begun:
            return
        self._begun = True
        loop, file = asyncio.get_running_loop(), self._outbox.file
        entries: list[Entry] = []
        for one in file.registrations():
            columns = operation_pb2.OperationColumns.FromString(one.columns)
            entry = batch_of(columns) if one.is_batch else wait_of(columns)
            entry.submitted_at = loop.time() - max(0.0, time.time() - one.submitted_time)
            self._keep(entry, one.tag)
            entries.append(entry)
            self.recovered.append(ticket_of(entry, one.tag, one.submitted_time))
        self._core.keep(entries, file.next_operation_id, loop.time())
        for batch in file.results():
            for wait, answer in self._core.replay(wire.ResultBatch.FromString(batch)):
                settle(wait, answer)
        self._outbox.start()

    # What callers do

    def submitted(self) -> None:
        """Something was submitted: it is written with all that gathers until the commit before it is through."""
        if not self._staging and not self._unwritten:
            self._staging = True
            asyncio.get_running_loop().call_soon(self._stage)

    async def keep(self, entry: Entry, tag: str) -> Ticket:
        """What was just submitted is kept until it is confirmed. Returns when it is in the file."""
        self._keep(entry, tag)
        self._written[entry] = written = asyncio.get_running_loop().create_future()
        await written
        return ticket_of(entry, tag, _wall_time(entry))

    async def result(self, ticket: Ticket) -> Result:
        """The result of a single wait."""
        answer = await self._answer(ticket)
        if not isinstance(answer, Result):
            raise InvalidRequest("ticket", "is of a batch; ask for it by result_many")
        return answer

    async def result_many(self, ticket: Ticket) -> ResultColumns:
        """The results of a batch."""
        answer = await self._answer(ticket)
        if not isinstance(answer, ResultColumns):
            raise InvalidRequest("ticket", "is of a single wait; ask for it by result")
        return answer

    async def confirm(self, ticket: Ticket) -> None:
        """The caller is done with it. Returns when the file says so; harmless when it says so already."""
        entry = ticket.entry
        if entry not in self._tags:
            return
        if entry.future is None or not entry.future.done():
            raise InvalidRequest("ticket", f"operation {ticket.operation_id} has not ended; ask for its result first")
        del self._tags[entry]
        self._confirming[first_id(entry)] = confirmed = asyncio.get_running_loop().create_future()
        self._forget(entry)
        await confirmed

    def cancelled(self, entry: Entry) -> None:
        """Nobody waits for it any more."""
        self._tags.pop(entry, None)
        self._written.pop(entry, None)
        self._forget(entry)

    async def close(self) -> None:
        """Writes what is left and gives the file free. Raises OutboxUnwritable when a confirmation could not be
        written: what it was for will be recovered once more.
        """
        if self._begun:
            self._stage()
        await self._outbox.close()
        if self._lost_confirmations is not None:
            raise self._lost_confirmations

    # What the connection does

    def connecting(self) -> asyncio.Future[str]:
        """A connection begins; the future says why it has to end, or raises what makes another one useless."""
        self._failure = asyncio.get_running_loop().create_future()
        return self._failure

    def takes(self, message: wire.SessionResponse) -> bool:
        """Whether the message is to be given to `arrived`: results, and the refusal of a whole batch."""
        return message.HasField("results") or message.receipt.HasField("batch_refusal")

    def arrived(self, message: wire.SessionResponse) -> None:
        """Results have come: the session gets them when they are in the file."""
        assert self._failure is not None, "results without a connection"
        if self._failure.done():
            return
        results = message.results if message.HasField("results") else self._core.refused_results(message.receipt)
        self._arrived.append(message)
        self._outbox.write(ResultsRecord(results.SerializeToString()))

    def ended(self, ended: Sequence[Ended]) -> None:
        """Waits have ended: gives them their answers. Those of plain calls are done with."""
        for wait, answer in ended:
            settle(wait, answer)
            if wait not in self._tags:
                self._forget(wait)

    @property
    def settled(self) -> bool:
        """True: all results that came are in the file, or have been left to the daemon."""
        return not self._arrived

    # What the outbox does

    def _done(self, items: Sequence[Record], error: PurgatoryClientError | None) -> None:
        """These have been written, or could not be."""
        for item in items:
            if isinstance(item, RegistrationRecord):
                self._registered(item, error)
            elif isinstance(item, ResultsRecord):
                self._received(error)
            else:
                self._confirmed(item, error)
        if not self._unwritten:
            self._stage()
        self._changed()

    def _registered(self, item: RegistrationRecord, error: PurgatoryClientError | None) -> None:
        entry = self._unwritten.popleft()
        assert first_id(entry) == item.first_operation_id, f"{item.first_operation_id} was written out of order"
        self._core.written_id = item.first_operation_id + item.operations - 1
        written = self._written.pop(entry, None)
        if error is None:
            if written is not None and not written.cancelled():
                written.set_result(None)
            return
        self._core.withdraw(entry)
        if written is None:
            settle(entry, error)
        elif not written.cancelled():
            del self._tags[entry]
            written.set_exception(error)

    def _received(self, error: PurgatoryClientError | None) -> None:
        message = self._arrived.popleft()
        assert self._failure is not None, "results without a connection"
        if self._failure.done():
            return
        if isinstance(error, OutboxUnwritable):
            self._failure.set_result(str(error))
            return
        try:
            if error is not None:
                raise error
            ended = self._core.receive(message, asyncio.get_running_loop().time())
        except PurgatoryClientError as failure:
            self._failure.set_exception(failure)
            return
        self.ended(ended)

    def _confirmed(self, item: ConfirmationRecord, error: PurgatoryClientError | None) -> None:
        self._lost_confirmations = error
        confirmed = self._confirming.pop(item.first_operation_id, None)
        if confirmed is None or confirmed.cancelled():
            return
        if error is None:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(error)

    # Inside

    def _stage(self) -> None:
        self._staging = False
        for entry in self._core.stage():
            self._unwritten.append(entry)
            self._outbox.write(_registration(entry, self._tags.get(entry, "")))

    def _keep(self, entry: Entry, tag: str) -> None:
        """Its future may be asked for, or not; if it has an error that nobody asks for, that is no mistake."""
        self._tags[entry] = tag
        entry.future = asyncio.get_running_loop().create_future()
        entry.future.add_done_callback(lambda future: future.cancelled() or future.exception())

    @staticmethod
    async def _answer(ticket: Ticket) -> Result | ResultColumns:
        assert ticket.entry.future is not None, f"{ticket} is of no outbox"
        return await asyncio.shield(ticket.entry.future)

    def _forget(self, entry: Entry) -> None:
        if first_id(entry):
            self._outbox.write(ConfirmationRecord(first_id(entry)))


def _registration(entry: Entry, tag: str) -> RegistrationRecord:
    columns = operation_pb2.OperationColumns()
    count = 1
    if isinstance(entry, WaitColumns):
        count = entry.count
        fill_with_many(columns, entry, range(count), NEVER_LOST, 0.0)
    else:
        fill_with_waits(columns, [entry], NEVER_LOST, 0.0)
    is_batch = isinstance(entry, WaitColumns)
    return RegistrationRecord(first_id(entry), count, is_batch, tag, _wall_time(entry), columns.SerializeToString())


def _wall_time(entry: Entry) -> float:
    """When it was submitted by the wall clock, seconds."""
    return time.time() - (asyncio.get_running_loop().time() - entry.submitted_at)
