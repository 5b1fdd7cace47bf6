"""Registration of operations: each is accepted by the engine, already known, or refused; refusals become results.

A batch of a session is registered part by part. The gate has checked the batch; the gate and the engine check each
operation.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from purgatory.engine.batches import Receipt, Refusal
from purgatory.engine.calls import Register
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.service.access.account import Account
from purgatory.service.gate import Gate
from purgatory.service.listeners.listener import Called, Listener
from purgatory.service.sessions.refused import (
    RefusedOperation,
    engine_receipt,
    first_of_each_id,
    located,
    refuse_all,
    refused_completions,
)
from purgatory.service.sessions.session import Session
from purgatory.service.translate.operations import OperationRun
from purgatory.service.translate.result_slices import slices_of

Perform = Callable[[Account, Session, Register], Receipt]
"""`Host.perform` for a registration. Raises `BatchRejected` if the columns cannot be decoded."""


class BatchReceipt:
    """The outcome of a part of a batch: counts, and the refusals with their operation ids."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refused: list[tuple[Refusal, int]] = []


class Registration:
    def __init__(
        self, session: Session, gate: Gate, listeners: Listener, perform: Perform, now_ms: Callable[[], int]
    ) -> None:
        """`perform` is that of the host."""
        self._session: Final = session
        self._gate: Final = gate
        self._listeners: Final = listeners
        self._perform: Final = perform
        self._now_ms: Final = now_ms
        self._known: Final = int(session.owner.highest_operation_id)
        """Ids up to this one were registered before this batch, so the batch repeats them."""
        self._rising: Final[list[int]] = []
        self._others: Final[set[int]] = set()

    def register(self, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]) -> BatchReceipt:
        """Register the next part of the batch: each operation is accepted, already known, or refused.

        When this returns, refused operations have their results: the daemon may stop between two parts. `refused` are
        those refused during translation, each with its operation id.

        Raises:
            BatchRejected: The columns cannot be decoded. This is found in the first part.
        """
        session, known = self._session, self._known
        receipt = BatchReceipt()
        failures = [RefusedOperation(refusal, operation_id, 0) for refusal, operation_id in refused]
        # Once for each part: what the first runs complete must not refuse the others of the same part.
        reason = self._gate.reason_to_refuse(session)
        for run in runs:
            if reason is not None:
                failures.extend(refuse_all(run, reason))
                self._notify_refused_run(run, reason)
                continue
            answer = self._perform(session.account, session, Register(run.kind, run.batch, known))
            receipt.accepted += answer.accepted
            receipt.already_known += answer.already_known
            ids = run.batch.operation_ids
            failures.extend(RefusedOperation(located(run, one), ids[one.index], run.kind) for one in answer.refusals)
        # An id up to `known` was registered before this batch, so a repeated refusal already has a result. Ids of
        # batches that were refused as a whole are the exception.
        skipped = session.refused_ids
        new = [entry for entry in failures if not 0 < entry.operation_id <= known or entry.operation_id in skipped]
        receipt.already_known += len(failures) - len(new)
        if new:
            # Several runs and the translation have added to it, and clients expect refusals in the order of their
            # batch.
            new.sort(key=lambda entry: entry.refusal.index)
            receipt.refused = [(refusal, operation_id) for refusal, operation_id, _ in new]
            self._listeners.refused([refusal for refusal, _ in receipt.refused])
            self._deliver_refused([one for one in first_of_each_id(new, runs) if not self._has_id(one.operation_id)])
        if skipped:
            skipped.discard(_ids(runs, refused))
        receipt.highest_operation_id = session.owner.highest_operation_id
        return receipt

    def remember_ids(self, runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]) -> None:
        """Remember the ids of a part that has been registered, if others follow."""
        last = self._rising[-1] if self._rising else 0
        for operation_id in _ids(runs, refused):
            if operation_id > last:
                # Clients send rising ids, so nearly all of them are in this list, which can be bisected without a set
                # of the same size.
                self._rising.append(operation_id)
                last = operation_id
            else:
                self._others.add(operation_id)

    def _has_id(self, operation_id: int) -> bool:
        """Return whether an earlier part had this id, and so has a result or will have one."""
        place = bisect_left(self._rising, operation_id)
        return self._rising[place : place + 1] == [operation_id] or operation_id in self._others

    def _deliver_refused(self, refused: list[RefusedOperation]) -> None:
        """Append the results of refused registrations. From then on their ids count as known."""
        session = self._session
        if not refused:
            return
        # Must precede the append: the journal derives sequence numbers from the outbox.
        self._listeners.refused_in_session(session, refused)
        session.outbox.append(slices_of(refused_completions(refused), [entry.refusal for entry in refused]))
        session.wake()
        known = [entry.operation_id for entry in refused if entry.operation_id <= OPERATION_ID_MAX]
        session.owner.highest_operation_id = max(session.owner.highest_operation_id, *known, 0)

    def _notify_refused_run(self, run: OperationRun, reason: Refusal) -> None:
        """Notify listeners of a run that was refused before the engine; ids that were known before are left out."""
        session, now_ms = self._session, self._now_ms()
        receipt = engine_receipt(run, reason, self._known, session.refused_ids)
        event = Called(session, session.account.principal, Register(run.kind, run.batch), receipt, now_ms)
        self._listeners.refused_unseen(event)


def _ids(runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]) -> list[int]:
    ids = [operation_id for run in runs for operation_id in run.batch.operation_ids]
    return ids + [operation_id for _, operation_id in refused]
