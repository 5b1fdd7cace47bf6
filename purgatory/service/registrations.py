"""Registers the batches of sessions: refusals before the engine, registration in the engine, and the receipt."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from purgatory.engine.batches import Refusal, RegisterReceipt
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.service.admission import Admission
from purgatory.service.engine_time import EngineTime
from purgatory.service.errors import BatchRejected, unreadable_batch
from purgatory.service.listeners.events import Registered
from purgatory.service.listeners.listener import Listener
from purgatory.service.sessions.outbox import slices_of
from purgatory.service.sessions.refused import (
    RefusedOperation,
    engine_receipt,
    first_of_each_id,
    located,
    refuse_all,
    refused_completions,
)
from purgatory.service.sessions.refused_ids import FULL
from purgatory.service.sessions.session import Session
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.receipts import BatchReceipt

Register = Callable[[Session, OperationRun, int], RegisterReceipt]
"""Registers a run in the engine and notifies listeners; ids up to the given one are known. Raises `InvalidBatch`."""


class OpenBatch:
    """A batch of a session that is registered part by part."""

    def __init__(self, session: Session) -> None:
        self.session: Final = session
        self.known: Final = int(session.owner.highest_operation_id)
        """Ids up to this one were registered before this batch, so the batch repeats them."""
        self._rising: Final[list[int]] = []
        self._others: Final[set[int]] = set()

    def add_ids(self, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]) -> None:
        """Remember the ids of a part that has been registered, if others follow."""
        ids = [operation_id for run in runs for operation_id in run.batch.operation_ids]
        ids += [operation_id for _, operation_id in refused]
        last = self._rising[-1] if self._rising else 0
        for operation_id in ids:
            if operation_id > last:
                self._rising.append(operation_id)
                last = operation_id
            else:
                self._others.add(operation_id)

    def has_id(self, operation_id: int) -> bool:
        """Return whether an earlier part had this id, and so has a result or will have one."""
        place = bisect_left(self._rising, operation_id)
        return self._rising[place : place + 1] == [operation_id] or operation_id in self._others


class Registrations:
    """Registers batches in sessions."""

    def __init__(
        self, time: EngineTime, listeners: Sequence[Listener], admission: Admission, register: Register
    ) -> None:
        self._time: Final = time
        self._listeners: Final = listeners
        self._admission: Final = admission
        self._register: Final = register

    def begin(self, session: Session) -> OpenBatch:
        """Begin a batch.

        Raises:
            BatchRejected: The journal cannot be written, or the session has no room for the results of refused
                registrations or for more ids of batches that were refused as a whole.
        """
        if session.refused_ids.is_full:
            raise BatchRejected(FULL)
        self._admission.check_journal_writable()
        self._admission.check_room_for_refusals(session)
        return OpenBatch(session)

    def register(
        self, batch: OpenBatch, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]
    ) -> BatchReceipt:
        """Register the next part of a batch: each operation is accepted, already known, or refused.

        When this returns, refused operations have their results: the daemon may stop between two parts. `refused` are
        those refused during translation, each with its operation id.

        Raises:
            BatchRejected: The columns cannot be decoded. This is found in the first part.
        """
        session, known = batch.session, batch.known
        receipt = BatchReceipt()
        failures = [RefusedOperation(refusal, operation_id, 0) for refusal, operation_id in refused]
        reason = self._admission.reason_to_refuse(session)
        for run in runs:
            if reason is not None:
                failures.extend(refuse_all(run, reason))
                self._notify_refused_run(session, run, reason, known)
            else:
                failures.extend(self._register_run(batch, run, receipt))
        # An id up to `known` was registered before this batch, so a repeated refusal already has a result. Ids of
        # batches that were refused as a whole are the exception.
        skipped = session.refused_ids
        new = [entry for entry in failures if not 0 < entry.operation_id <= known or entry.operation_id in skipped]
        receipt.already_known += len(failures) - len(new)
        if new:
            new.sort(key=lambda entry: entry.refusal.index)
            receipt.refused = [(refusal, operation_id) for refusal, operation_id, _ in new]
            count_refused(self._listeners, [refusal for refusal, _ in receipt.refused])
            first = [entry for entry in first_of_each_id(new, runs) if not batch.has_id(entry.operation_id)]
            self._deliver_refused(session, first)
        if skipped:
            skipped.discard(
                [
                    *(operation_id for _, operation_id in refused),
                    *(operation_id for run in runs for operation_id in run.batch.operation_ids),
                ]
            )
        receipt.highest_operation_id = session.owner.highest_operation_id
        return receipt

    def _register_run(self, batch: OpenBatch, run: OperationRun, receipt: BatchReceipt) -> list[RefusedOperation]:
        try:
            answer = self._register(batch.session, run, batch.known)
        except InvalidBatch as error:
            raise unreadable_batch(f"columns.{error.field}", error.message) from None
        receipt.accepted += answer.accepted
        receipt.already_known += answer.already_known
        ids = run.batch.operation_ids
        return [RefusedOperation(located(run, refusal), ids[refusal.index], run.kind) for refusal in answer.refusals]

    def _deliver_refused(self, session: Session, refused: list[RefusedOperation]) -> None:
        """Append the results of refused registrations. From then on their ids count as known."""
        if not refused:
            return
        for listener in self._listeners:
            # Must precede the append: the journal derives sequence numbers from the outbox.
            listener.refused_in_session(session, refused)
        session.outbox.append(slices_of(refused_completions(refused), [entry.refusal for entry in refused]))
        session.wake()
        known = [entry.operation_id for entry in refused if entry.operation_id <= OPERATION_ID_MAX]
        session.owner.highest_operation_id = max(session.owner.highest_operation_id, *known, 0)

    def _notify_refused_run(self, session: Session, run: OperationRun, reason: Refusal, known: int) -> None:
        """Notify listeners of a run that was refused before the engine; ids that were known before are left out."""
        receipt, now_ms = engine_receipt(run, reason, known, session.refused_ids), self._time.now_ms()
        event = Registered(session, session.account.principal, run.kind, run.batch, receipt, now_ms)
        for listener in self._listeners:
            listener.refused_unseen(event)


def count_refused(listeners: Sequence[Listener], refusals: Sequence[Refusal]) -> None:
    if refusals:
        for listener in listeners:
            listener.refused(refusals)
