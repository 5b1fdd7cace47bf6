"""Keeps a session and its outbox consistent, on the event loop.

The order of writes and sends makes a crash safe:

- A registration is sent only after it has been written to the file. A crash before that leaves nothing at the daemon;
  after a later crash, the next client sends it again under the same id, which is harmless.
- A result reaches the session only after it has been written to the file, because the session acknowledges it, and the
  daemon then drops it.
- The opening of the session is written before anything is sent, and compared with the file: if another program uses a
  copy of the file, this is detected before anything is acknowledged.
- Writes finish in the order in which they were made, so ids in the file never have a gap that is filled later.

A record that cannot be written is refused: registrations end with the error, and results stay at the daemon, which
sends them again over the next connection.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory_client.argument_checks import checked_type
from purgatory_client.batches import Entry, WaitBatch
from purgatory_client.errors import InvalidRequest, OutboxError, OutboxReason, PurgatoryClientError
from purgatory_client.outbox.outbox_file import (
    ConfirmationRecord,
    OpeningRecord,
    OutboxFile,
    Record,
    RegistrationRecord,
    ResultsRecord,
)
from purgatory_client.outbox.ticket import Ticket, ticket_of
from purgatory_client.results import OperationKind
from purgatory_client.session.pending_waits import Ended, settle
from purgatory_client.session.session_core import SessionCore
from purgatory_client.waits import ITEM_DEFAULTS, Wait
from purgatory_client.wire.encode_waits import fill_with_entry

Written = Callable[[PurgatoryClientError | None], None]
"""Called on the event loop after the commit of a record, with its error if it failed."""


class OutboxWriter:
    """The writer of one file, which does not block the event loop.

    Records that arrive during a commit are written with the next one, so that all of them share one sync of the disk.
    `changed` is called after each commit. Only failed confirmations are tried again, with the next commit: their
    callers got the error, but a used result should not be recovered. A registration or result that failed was refused,
    and must not appear later.
    """

    def __init__(self, file: OutboxFile, changed: Callable[[], None]) -> None:
        self.file: Final = file
        self._changed: Final = changed
        self._thread: Final = ThreadPoolExecutor(1, "purgatory outbox")
        self._queue: Final[list[tuple[Record, Written]]] = []
        self._failed: list[tuple[Record, Written]] = []
        """Confirmations that the last commit could not write."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def write(self, record: Record, written: Written) -> None:
        """Write a record with the next commit. Does nothing after `close`."""
        if self._is_closed:
            return
        self._queue.append((record, written))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all(), name="purgatory outbox")

    async def close(self) -> None:
        """Write the remaining records and release the file. Does nothing if it is already closed."""
        self._is_closed = True
        # A task of another loop, which is closed by now, does not go on: its records are lost as in a crash.
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await self._task
        if self._failed:
            await self._commit_queue()
            self._failed.clear()
        self._thread.shutdown()
        self.file.close()

    async def _write_all(self) -> None:
        while self._queue:
            await self._commit_queue()

    async def _commit_queue(self) -> None:
        items = [*self._failed, *self._queue]
        self._queue.clear()
        records = [record for record, _ in items]
        try:
            error = await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, records)
        except RuntimeError:  # the interpreter is ending, and threads accept no more work
            error = self._commit(records)
        self._failed = [one for one in items if isinstance(one[0], ConfirmationRecord)] if error is not None else []
        for _, written in items:
            written(error)
        self._changed()

    def _commit(self, records: Sequence[Record]) -> PurgatoryClientError | None:
        try:
            self.file.commit(records)
        except PurgatoryClientError as error:
            return error
        except Exception as error:  # noqa: BLE001 - callers that wait for this commit must hear of it
            return OutboxError(OutboxReason.FAILED, f"writing to {self.file.path} failed: {error!r}")
        return None


COLUMNS: Final = (
    "min_bytes", "replica_id", "isolation_level", "follower_reads", "any", "from_now", "heartbeat_timeout_ms",
    "required_terms", "unless_count", "stale_timeout_ms", *ITEM_DEFAULTS,
)  # fmt: skip
"""The optional columns of a stored registration."""


def entry_of(columns: operation_pb2.OperationColumns, is_batch: bool) -> Entry:
    """The stored wait or batch, which is sent in the same columns."""
    batch = WaitBatch(
        OperationKind(columns.kind),
        [*((one.topic, one.partition) for one in columns.partitions), *columns.keys],
        indexes=list(columns.item_index),
        offsets=list(columns.offset),
        timeouts_ms=list(columns.timeout_ms),
        item_counts=list(columns.item_count) or None,
    )
    assert batch.count == len(columns.operation_id), f"{len(columns.operation_id)} ids for {batch.count} operations"
    batch.set_columns({field: list(column) for field in COLUMNS if (column := getattr(columns, field))})
    batch.operation_id = columns.operation_id[0]
    return batch if is_batch else _wait_of(batch)


def _wait_of(batch: WaitBatch) -> Wait:
    """The only operation of a batch."""
    items = batch.item_total
    options = {field: column[0] for field, column in batch.operation_columns.items()}
    stale_timeout_ms = options.pop("stale_timeout_ms", None)
    if batch.kind == OperationKind.SIGNAL:
        # Outboxes of older versions do not have it, and all waits of one kind must have the same columns.
        options.setdefault("heartbeat_timeout_ms", -1)
    return Wait(
        batch.kind,
        batch.names_of(0),
        [*batch.offsets] * (items // len(batch.offsets)),
        batch.timeouts_ms[0] if batch.timeouts_ms else None,
        options,
        {field: [*column] * (items // len(column)) for field, column in batch.item_columns.items()},
        stale_timeout_ms,
        operation_id=batch.operation_id,
    )


T = TypeVar("T")

TICKET: Final = "give a ticket from submit or recovered"


class OutboxGate:
    """The outbox of one session. `changed` is called when there may be messages to send, or waits have ended."""

    def __init__(self, file: OutboxFile, core: SessionCore, changed: Callable[[], None]) -> None:
        self._writer: Final = OutboxWriter(file, self._on_commit)
        self._core: Final = core
        self._changed: Final = changed
        self._loaded = False
        self._staging_scheduled = False
        self._unwritten: Final[set[Entry]] = set()
        """Staged waits that are not in the file yet."""
        self._submitting: Final[dict[Entry, asyncio.Future[None]]] = {}
        self._tags: Final[dict[Entry, str]] = {}
        """Waits that stay in the file until they are confirmed, with their tags."""
        self._unwritten_messages = 0
        self._failure: asyncio.Future[str] | None = None
        self._lost_confirmations: PurgatoryClientError | None = None
        self.recovered: Final[list[Ticket]] = []
        """The tickets of waits that an earlier client left in the file."""

    def load(self) -> None:
        """Load the file's contents into the session, on the running loop. Does nothing if they are already loaded."""
        if self._loaded:
            return
        self._loaded = True
        loop, file = asyncio.get_running_loop(), self._writer.file
        entries: list[Entry] = []
        for one in file.registrations():
            columns = operation_pb2.OperationColumns.FromString(one.columns)
            entry = entry_of(columns, one.is_batch)
            entry.submitted_at = loop.time() - max(0.0, time.time() - one.submitted_time)
            self._keep(entry, one.tag)
            entries.append(entry)
            self.recovered.append(ticket_of(entry, one.tag, one.submitted_time))
        self._core.restore(entries, file.next_operation_id, loop.time(), file.incarnation)
        # Only after `restore`, because results are matched with the waits by operation id.
        for batch in file.results():
            for wait, answer in self._core.replay(wire.ResultBatch.FromString(batch)):
                settle(wait, answer)

    # Calls from the client

    def schedule_staging(self) -> None:
        """Schedule a write of the submitted waits. Waits submitted until the previous commit is done share the next
        one.
        """
        if not self._staging_scheduled and not self._unwritten:
            self._staging_scheduled = True
            asyncio.get_running_loop().call_soon(self._stage)

    async def keep(self, entry: Entry, tag: str) -> Ticket:
        """Keep a submitted wait until it is confirmed. Returns when it has been written to the file."""
        self._keep(entry, tag)
        self._submitting[entry] = written = asyncio.get_running_loop().create_future()
        await written
        return ticket_of(entry, tag, _wall_time(entry))

    async def result(self, ticket: Ticket, expected: type[T], otherwise: str) -> T:
        """Wait for the answer of a ticket. `otherwise`: the error message if the answer does not have the type
        `expected`.
        """
        future = checked_type(ticket, Ticket, "ticket", TICKET).entry.future
        assert future is not None, f"{ticket} does not belong to an outbox"
        answer = await asyncio.shield(future)
        if not isinstance(answer, expected):
            raise InvalidRequest("ticket", otherwise)
        return answer

    async def confirm(self, ticket: Ticket) -> None:
        """Remove an entry whose result was used. Returns when the removal is on disk; does nothing if it was removed
        before.
        """
        entry = checked_type(ticket, Ticket, "ticket", TICKET).entry
        if entry not in self._tags:
            return
        if entry.future is None or not entry.future.done():
            raise InvalidRequest(
                "ticket", f"operation {ticket.operation_id} is still pending; confirm it after its result"
            )
        del self._tags[entry]
        confirmed = asyncio.get_running_loop().create_future()
        self._forget(entry, confirmed)
        await confirmed

    def cancelled(self, entry: Entry) -> None:
        """Remove an entry whose caller was cancelled."""
        self._tags.pop(entry, None)
        self._submitting.pop(entry, None)
        self._forget(entry)

    async def close(self) -> None:
        """Write the remaining records and release the file.

        Raises OutboxError (UNWRITABLE) if a confirmation could not be written; the next client will recover its wait
        once more.
        """
        if self._loaded:
            self._stage()
        await self._writer.close()
        if self._lost_confirmations is not None:
            raise self._lost_confirmations

    # Calls from the connection

    def connecting(self) -> asyncio.Future[str]:
        """Start a connection. The future returns why the connection must end, or raises an error that makes
        reconnecting useless.
        """
        self._failure = asyncio.get_running_loop().create_future()
        return self._failure

    @staticmethod
    def must_write_first(message: wire.SessionResponse) -> bool:
        """Whether a message must go to `write_message` before the session gets it: the opening, results, and the
        refusal of a whole batch.
        """
        return message.WhichOneof("message") in ("opened", "results") or message.receipt.HasField("batch_refusal")

    def write_message(self, message: wire.SessionResponse) -> None:
        """Write an opening or results to the file; the session gets the message after that.

        Once the connection has failed, no more of its messages are written: the daemon sends them again over the next
        one. Raises OutboxError (COPIED) for results that belong to another program's waits.
        """
        assert self._failure is not None, "a message without a connection"
        if self._failure.done():
            return
        if message.HasField("opened"):
            record: Record = OpeningRecord(message.opened.incarnation, message.opened.highest_operation_id)
        elif message.HasField("results"):
            self._core.check_names(message.results)
            record = ResultsRecord(message.results.SerializeToString())
        else:
            record = ResultsRecord(self._core.refused_results(message.receipt).SerializeToString())
        self._unwritten_messages += 1
        self._writer.write(record, partial(self._on_message, message))

    def settle_all(self, ended: Sequence[Ended]) -> None:
        """Give waits their answers. Plain calls are removed from the file; they need no confirmation."""
        for wait, answer in ended:
            settle(wait, answer)
            if wait not in self._tags:
                self._forget(wait)

    @property
    def is_settled(self) -> bool:
        """Whether no messages are waiting to be written to the file."""
        return not self._unwritten_messages

    # Callbacks from the writer

    def _on_commit(self) -> None:
        if not self._unwritten:
            self._stage()
        self._changed()

    def _on_registration(self, entry: Entry, error: PurgatoryClientError | None) -> None:
        self._unwritten.remove(entry)
        # Raised even after a failed write: the entry is withdrawn below, and must not hold back later ones.
        self._core.written_id = entry.operation_id + entry.count - 1
        written = self._submitting.pop(entry, None)
        if error is not None:
            self._core.withdraw(entry)
            if written is None:
                settle(entry, error)
            elif not written.cancelled():
                del self._tags[entry]
        _set_done(written, error)

    def _on_message(self, message: wire.SessionResponse, error: PurgatoryClientError | None) -> None:
        self._unwritten_messages -= 1
        assert self._failure is not None, "a message without a connection"
        if self._failure.done():
            return
        if isinstance(error, OutboxError) and error.reason is OutboxReason.UNWRITABLE:
            self._failure.set_result(str(error))
            return
        if error is not None:
            self._failure.set_exception(error)
            return
        try:
            ended = self._core.receive(message, asyncio.get_running_loop().time())
        except Exception as failure:  # noqa: BLE001 - ends the connection, whatever it is: the message is in no queue
            self._failure.set_exception(failure)
            return
        self.settle_all(ended)

    def _on_confirmation(self, confirmed: asyncio.Future[None] | None, error: PurgatoryClientError | None) -> None:
        self._lost_confirmations = error
        _set_done(confirmed, error)

    # Internals

    def _stage(self) -> None:
        self._staging_scheduled = False
        for entry in self._core.stage():
            self._unwritten.add(entry)
            record = _registration(entry, self._tags.get(entry, ""))
            self._writer.write(record, partial(self._on_registration, entry))

    def _keep(self, entry: Entry, tag: str) -> None:
        """Give the entry its future. The result need not be awaited, so asyncio must not report an error that was never
        read.
        """
        self._tags[entry] = tag
        entry.future = asyncio.get_running_loop().create_future()
        entry.future.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _forget(self, entry: Entry, confirmed: asyncio.Future[None] | None = None) -> None:
        if entry.operation_id:
            self._writer.write(ConfirmationRecord(entry.operation_id), partial(self._on_confirmation, confirmed))


def _set_done(future: asyncio.Future[None] | None, error: PurgatoryClientError | None) -> None:
    """Tell the caller that waits for a record, if there is one. It may have been cancelled, or told before."""
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _registration(entry: Entry, tag: str) -> RegistrationRecord:
    columns = operation_pb2.OperationColumns()
    fill_with_entry(columns, entry)
    is_batch, encoded = isinstance(entry, WaitBatch), columns.SerializeToString()
    return RegistrationRecord(entry.operation_id, entry.count, is_batch, tag, _wall_time(entry), encoded)


def _wall_time(entry: Entry) -> float:
    """When the entry was submitted, in seconds since the epoch."""
    return time.time() - (asyncio.get_running_loop().time() - entry.submitted_at)
