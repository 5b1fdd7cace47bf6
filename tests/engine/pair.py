"""Engine and oracle side by side: every call goes to both, and all visible state must be equal afterwards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from purgatory.engine.calls import Call, Cancel, CancelAll, CancelName, Extend, Pause
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, pending_of
from tests.engine.oracle.purgatory import Oracle

if TYPE_CHECKING:
    from purgatory.engine.batches import Receipt


class Difference(Exception):
    """Engine and oracle disagree."""


def demand(what: str, engine: object, oracle: object) -> None:
    if engine != oracle:
        raise Difference(f"{what}\n  engine: {plain.brief(engine)}\n  oracle: {plain.brief(oracle)}")


def compare_ends(rows: list[plain.Ended], expected: list[plain.Ended]) -> None:
    """Report how the ended operations differ, in any order, narrowed down to the item."""
    ended = {(row.owner_id, row.operation_id): row for row in rows}
    wanted = {(row.owner_id, row.operation_id): row for row in expected}
    demand("nobody ends twice", len(ended), len(rows))
    demand("who ended", sorted(ended), sorted(wanted))
    for key, row in ended.items():
        what = f"the end of {key} of kind {row.kind}"
        for item, wanted_item in zip(row.items, wanted[key].items, strict=False):
            demand(what, item, wanted_item)
        demand(what, row, wanted[key])


class Pair:
    """An engine and its oracle."""

    def __init__(self, settings: plain.Settings = plain.DEFAULTS) -> None:
        self.engine = EngineUnderTest(settings)
        self.oracle = Oracle(settings)
        self.last_ended: list[plain.Ended] = []
        self._evaluations = [0] * len(plain.KINDS)

    @property
    def now_ms(self) -> int:
        return self.engine.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.engine.now_ms = now_ms

    def add_owner(self) -> int:
        owner_id = self.engine.add_owner()
        self.oracle.add_owner(owner_id)
        return owner_id

    def remove_owner(self, owner_id: int) -> None:
        self.engine.remove_owner(owner_id)
        self.oracle.remove_owner(owner_id, self.now_ms)
        self.compare_ended()

    def register(self, owner_id: int, operations: list[plain.Operation]) -> Receipt:
        """Register a batch of one kind."""
        receipt = self.engine.register(owner_id, operations)
        answers = self.oracle.register(owner_id, operations, self.now_ms)
        refused = {i: answer.refused for i, answer in enumerate(answers) if answer.refused}
        if refused or receipt.refusals:
            demand("refused registrations", {r.index: r.code for r in receipt.refusals}, refused)
        accepted = 0
        for answer in answers:
            accepted += answer.accepted
        demand("accepted registrations", receipt.accepted, accepted)
        demand("known registrations", receipt.already_known, len(operations) - accepted - len(refused))
        demand("highest operation id", receipt.highest_operation_id, self.oracle.highest_ids[owner_id])
        self.compare_ended()
        self.compare_marks({item.name for operation in operations for item in operation.items})
        return receipt

    def apply(self, events: list[plain.Event], limit: int = 100_000) -> list[plain.EventAnswer]:
        answers = self.engine.apply(events, limit)
        for event, answer in zip(events, answers, strict=True):
            wanted = self.oracle.apply(event, self.now_ms)
            if len(events) > 1:  # the receipt of a batch only has their sum
                wanted = wanted._replace(unchanged=answer.unchanged)
            if answer != wanted:
                demand(f"answer to {plain.brief(event)}", answer, wanted)
        self.compare_ended()
        self.compare_marks({event.name for event in events})
        return answers

    def perform(self, owner_id: int, call: Call) -> Receipt:
        """Perform a call without rows."""
        receipt = self.engine.perform(owner_id, call)
        match call:
            case Cancel(operation_ids=ids):
                demand("cancelled", receipt.were_pending, self.oracle.cancel(owner_id, ids, self.now_ms))
            case CancelAll():
                demand("cancelled of owner", receipt.ended, self.oracle.cancel_all(owner_id, self.now_ms))
            case CancelName(name=name):
                demand("cancelled on a name", receipt.ended, self.oracle.cancel_name(name, self.now_ms))
                self.compare_mark(name)
            case Extend(operation_ids=ids, timeout_ms=timeout_ms):
                demand("extended", receipt.were_pending, self.oracle.extend(owner_id, ids, timeout_ms, self.now_ms))
            case Pause(pause_ms=ms) if not receipt.unchanged:
                self.oracle.paused_ms += ms
        self.compare_ended()
        return receipt

    def fail_stale(self, stale_ms: dict[plain.Name, int]) -> int:
        failed = self.engine.fail_stale(stale_ms)
        demand("failed as stale", failed, self.oracle.fail_stale(stale_ms, self.now_ms))
        self.compare_ended()
        return failed

    def advance(self, ms: int, limit: int = 100_000) -> int:
        """Advance the time, with one call of `PassTime`, which may leave due operations if `limit` is small."""
        expired = self.engine.advance(ms, limit)
        due = self.oracle.due(self.now_ms)
        demand("how many expired", expired, min(limit, len(due)))
        rows = self.engine.take_ended()
        keys = [(row.owner_id, row.operation_id) for row in rows]
        in_order = sorted(due, key=due.__getitem__)[:limit]
        if any(self.oracle.pending[key].operation.heartbeat_timeout_ms > 0 for key in due):
            # A silence may be noticed in one go with earlier deadlines, so the order is not specified.
            demand("who was not due", sorted(set(keys) - set(due)), [])
        elif keys != in_order:
            # The engine returns them owner by owner.
            demand("who expired", sorted(keys), sorted(in_order))
            for owner_id in {key[0] for key in keys}:
                of_owner = [key for key in in_order if key[0] == owner_id]
                demand("the order of expirations", [key for key in keys if key[0] == owner_id], of_owner)
        self.oracle.finish(keys, plain.EXPIRED, self.now_ms)
        self.compare_rows(rows)
        return expired

    def shut_down(self, limit: int) -> int:
        """End some operations as shutting down; the engine chooses which."""
        count = self.engine.shut_down(limit)
        demand("how many shut down", count, min(limit, len(self.oracle.pending)))
        rows = self.engine.take_ended()
        self.oracle.finish([(row.owner_id, row.operation_id) for row in rows], plain.SHUTTING_DOWN, self.now_ms)
        self.compare_rows(rows)
        return count

    # Comparing.

    def compare_ended(self) -> None:
        self.compare_rows(self.engine.take_ended())

    def compare_rows(self, rows: list[plain.Ended]) -> None:
        """Compare the ended operations and their results, in any order."""
        self.last_ended = rows
        expected = self.oracle.take_ended()
        if (rows or expected) and sorted(rows) != sorted(expected):
            compare_ends(rows, expected)
        demand("pending", self.engine.engine.pending, len(self.oracle.pending))
        evaluations = [self.engine.engine.inspection.counts(kind).evaluations for kind in plain.KINDS]
        if any(now < before for now, before in zip(evaluations, self._evaluations, strict=True)):
            raise Difference(f"evaluations fell from {self._evaluations} to {evaluations}")
        self._evaluations = evaluations
        earliest = self.oracle.earliest_deadline_ms()
        next_ms = self.engine.engine.next_expiration_ms()
        if earliest >= 0 and not -1 < next_ms <= earliest:
            raise Difference(f"next_expiration_ms {next_ms}, but a deadline is at {earliest}")

    def compare_marks(self, names: set[plain.Name]) -> None:
        """Compare the visible state of partitions."""
        for name in names:
            self.compare_mark(name)

    def compare_mark(self, name: plain.Name) -> None:
        """Compare the visible state of a partition; a key has none."""
        if name[1] < 0:
            return
        partition = self.oracle.world.partitions.get(name)
        marks = self.engine.marks(name)
        if marks is not None or partition is not None:
            demand(f"marks of {name}", marks, None if partition is None else partition.marks())

    def compare_everything(self) -> None:
        """Compare all visible state, recounted, and check the engine's invariants."""
        self.engine.engine.check()
        demand("an operation is pending whose condition holds", self.oracle.check_everything(self.now_ms), 0)
        for name in set(self.oracle.world.partitions) | set(self.engine.engine.inspection.partition_names()):
            self.compare_mark(name)
        watched = Counter[int]()
        for waiting in self.oracle.pending.values():
            fetch = waiting.operation.kind == plain.FETCH
            watched[waiting.operation.kind] += sum(fetch or not item.decided for item in waiting.items)
        for kind in plain.KINDS:
            demand("counts of a kind", self.engine.counts(kind), self.oracle.counts(kind))
            demand("watched of a kind", self.engine.engine.inspection.counts(kind).watched, watched[kind])
        seen = {(view.owner_id, view.operation_id): pending_of(view) for view in self.engine.all_pending()}
        demand("who is pending", sorted(seen), sorted(self.oracle.pending))
        for key, waiting in self.oracle.pending.items():
            view = self.oracle.view(waiting)
            if seen[key] != view:
                demand(f"the view of {key}", seen[key], view)

    def heal(self) -> None:
        """Advance past all deadlines, and check that the engine is empty."""
        while self.oracle.pending:
            pending = len(self.oracle.pending)
            next_ms = self.engine.engine.next_expiration_ms()
            self.advance(max(next_ms - self.now_ms, 0))
            if len(self.oracle.pending) == pending and self.engine.engine.next_expiration_ms() <= self.now_ms:
                raise Difference(f"nothing expires at {self.now_ms}, and yet the reaper is to come again at once")
        self.compare_everything()
        demand("pending at the end", self.engine.engine.pending, 0)
        demand("next expiration at the end", self.engine.engine.next_expiration_ms(), -1)
        for kind in plain.KINDS:
            demand(f"watched at the end, kind {kind}", self.engine.engine.inspection.counts(kind).watched, 0)
        for name in self.engine.engine.inspection.partition_names():
            view = self.engine.engine.inspection.partition_view(name)
            demand(f"watched at the end on {name}", view.watched if view else None, 0)
