"""Registration of operations: each is accepted by the engine, already known, or refused; refusals become results.

A batch of a session is registered part by part. The gate has checked the batch; the gate and the engine check each
operation.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from purgatory.engine.batches import Receipt, Refusal
from purgatory.engine.calls import Register
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.kinds.batch_columns import OPERATION_ID_MAX
from purgatory.engine.waiting.tables import Owner
from purgatory.service.access.account import Account
from purgatory.service.access.audit import NAME
from purgatory.service.access.authorization_filter import filter_operations, replace_reasons
from purgatory.service.access.roles import WAIT
from purgatory.service.errors import from_refusal, unreadable_batch
from purgatory.service.host import Host
from purgatory.service.listeners.events import Registered
from purgatory.service.sessions.outbox import slices_of
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


class BatchReceipt:
    """The outcome of a part of a batch: counts, and the refusals with their operation ids."""

    def __init__(self) -> None:
        self.highest_operation_id = 0
        self.accepted = 0
        self.already_known = 0
        self.refused: list[tuple[Refusal, int]] = []


class Registration:
    """The registration of one batch of a session."""

    def __init__(self, host: Host, session: Session) -> None:
        self._host: Final = host
        self._session: Final = session
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
        reason = self._host.gate.reason_to_refuse(session)
        for run in runs:
            if reason is not None:
                failures.extend(refuse_all(run, reason))
                self._notify_refused_run(run, reason)
                continue
            answer = _add_to_engine(self._host, session.owner, session, session.account, run, known)
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
            self._host.count_refused([refusal for refusal, _ in receipt.refused])
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
        self._host.listeners.refused_in_session(session, refused)
        session.outbox.append(slices_of(refused_completions(refused), [entry.refusal for entry in refused]))
        session.wake()
        known = [entry.operation_id for entry in refused if entry.operation_id <= OPERATION_ID_MAX]
        session.owner.highest_operation_id = max(session.owner.highest_operation_id, *known, 0)

    def _notify_refused_run(self, run: OperationRun, reason: Refusal) -> None:
        """Notify listeners of a run that was refused before the engine; ids that were known before are left out."""
        session, now_ms = self._session, self._host.time.now_ms()
        receipt = engine_receipt(run, reason, self._known, session.refused_ids)
        event = Registered(session, session.account.principal, run.kind, run.batch, receipt, now_ms)
        self._host.listeners.refused_unseen(event)


def register_unary_wait(host: Host, run: OperationRun, account: Account) -> None:
    """Register the operation of a unary wait. Raises `RpcError` if the operation is refused."""
    host.gate.check_unary_items(account, len(run.batch.item_indexes))
    # Known ids up to 0: ids of unary waits are assigned here, so none is a repetition.
    receipt = _add_to_engine(host, host.unary_waits.owner_of(account), None, account, run, 0)
    host.count_refused(receipt.refusals)
    if receipt.refusals:
        retry_after_ms = host.gate.retry_after_ms(account, run)
        raise from_refusal(located(run, receipt.refusals[0]), "operation", retry_after_ms)


def _add_to_engine(
    host: Host, owner: Owner, session: Session | None, account: Account, run: OperationRun, known: int
) -> Receipt:
    """Register a run in the engine, notify listeners, and route what it completed.

    Raises:
        BatchRejected: The columns cannot be decoded.
    """
    now_ms = host.registration_ms()
    allowed, denied = run.batch, None
    if WAIT not in account.grants.everywhere:
        allowed, denied = filter_operations(account, run.kind, run.batch)
    host.gate.shares.set_in_engine(account)
    try:
        receipt = host.engine.perform(owner, Register(run.kind, allowed, known), now_ms)
    except InvalidBatch as error:
        raise unreadable_batch(f"columns.{error.field}", error.message) from None
    if denied:
        replace_reasons(receipt.refusals, denied)
    if session is not None and session.refused_ids:
        session.refused_ids.correct(receipt, run.batch, known)
    # The batch as the caller sent it and not `allowed`, so that the archive has the names that were refused.
    event = Registered(session, account.principal, run.kind, run.batch, receipt, now_ms)
    host.listeners.registered(event)
    host.deliver()
    if denied:
        first = next(iter(denied.values())).message
        host.sessions.accounts.audit.refused(NAME, account.principal, role=WAIT, name=first, count=len(denied))
    host.reaper.deadline_may_be_earlier()
    # After `deliver`: an operation that ended at once needs no mark, and the engine is asked which names have waits.
    if host.source_links.demand.is_wanted:
        host.source_links.demand.registered(run.batch.partitions)
    if run.batch.stale_timeouts_ms:
        host.stale_reaper.may_have_come()
    return receipt


def _ids(runs: Sequence[OperationRun], refused: Sequence[tuple[Refusal, int]]) -> list[int]:
    ids = [operation_id for run in runs for operation_id in run.batch.operation_ids]
    return ids + [operation_id for _, operation_id in refused]
