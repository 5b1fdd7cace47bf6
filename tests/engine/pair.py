"""Engine and oracle side by side: every call goes to both, and all visible state must be equal afterwards."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from purgatory.engine import calls
from purgatory.engine.waiting.wakeups import UNLIMITED
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, pending_of
from tests.engine.oracle.purgatory import Oracle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from purgatory.engine.account_usage import AccountUsage
    from purgatory.engine.batches import Receipt
    from purgatory.engine.limits import EngineLimits


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


class Pair(EngineUnderTest):
    """An engine and its oracle. The oracle knows no limits and accounts: with them, the engine is alone."""

    def __init__(self, settings: plain.Settings = plain.DEFAULTS, limits: EngineLimits | None = None) -> None:
        super().__init__(settings, limits)
        self.oracle = Oracle(settings)
        self.has_oracle = limits is None
        self.last_ended: list[plain.Ended] = []
        self.forget_evaluations()

    def forget_evaluations(self) -> None:
        """They are counted from now on: the engine is a new one."""
        self._evaluations = [0] * len(plain.KINDS)

    def add_owner(self, usage: AccountUsage | None = None) -> int:
        owner_id = super().add_owner(usage)
        if self.has_oracle:
            self.oracle.add_owner(owner_id)
        return owner_id

    def remove_owner(self, owner_id: int) -> None:
        super().remove_owner(owner_id)
        if self.has_oracle:
            self.oracle.remove_owner(owner_id, self.now_ms)
        self.compare_ended()

    def perform(self, owner_id: int, call: calls.Call, rows: Sequence[Any] = (), work_max: int = UNLIMITED) -> Receipt:
        """Perform a call. `rows` are the operations or events of its batch."""
        receipt = super().perform(owner_id, call, rows, work_max)
        if not self.has_oracle:
            self.compare_ended()
        elif isinstance(call, calls.PassTime | calls.ShutDown):
            self._compare_chosen(call, receipt)
        else:
            self._compare_answers(owner_id, call, rows, receipt)
            self.compare_ended()
        return receipt

    def _compare_answers(self, owner_id: int, call: calls.Call, rows: Sequence[Any], receipt: Receipt) -> None:
        now_ms, oracle = self.now_ms, self.oracle
        match call:
            case calls.Register():
                answers = oracle.register(owner_id, rows, now_ms)
                refused = {place: answer for place, answer in enumerate(answers) if answer > 0}
                demand("refused registrations", {one.index: one.code for one in receipt.refusals}, refused)
                demand("accepted registrations", receipt.accepted, answers.count(0))
                demand("known registrations", receipt.already_known, answers.count(-1))
                demand("highest operation id", receipt.highest_operation_id, oracle.highest_ids[owner_id])
                self.compare_marks({item.name for operation in rows for item in operation.items})
            case calls.Apply():
                told = [oracle.apply(event, now_ms) for event in rows]
                refused_events = {place: one.refused for place, one in enumerate(told) if one.refused}
                by_index = {one.index: (one.code, one.error_code) for one in receipt.refusals}
                demand("refused events", by_index, refused_events)
                demand("ended by event", receipt.ended_by_event, [one.ended for one in told])
                demand("unchanged events", receipt.unchanged, sum(one.unchanged for one in told))
                self.compare_marks({event.name for event in rows})
            case calls.Cancel(operation_ids=ids):
                demand("cancelled", receipt.were_pending, oracle.cancel(owner_id, ids, now_ms))
            case calls.CancelAll():
                demand("cancelled of owner", receipt.ended, oracle.cancel_all(owner_id, now_ms))
            case calls.CancelName(name=name):
                demand("cancelled on a name", receipt.ended, oracle.cancel_name(name, now_ms))
                self.compare_marks({name})
            case calls.Extend(operation_ids=ids, timeout_ms=timeout_ms):
                demand("extended", receipt.were_pending, oracle.extend(owner_id, ids, timeout_ms, now_ms))
            case calls.Pause(pause_ms=ms) if not receipt.unchanged:
                oracle.paused_ms += ms

    def _compare_chosen(self, call: calls.PassTime | calls.ShutDown, receipt: Receipt) -> None:
        """Compare a call that ends a number of operations. The engine chooses them among those due, by deadline."""
        oracle, outcome = self.oracle, plain.SHUTTING_DOWN
        rows = self.take_ended()
        keys = [(row.owner_id, row.operation_id) for row in rows]
        due = dict.fromkeys(oracle.pending, 0)
        if isinstance(call, calls.PassTime):
            due, outcome = oracle.due(self.now_ms), plain.EXPIRED
        demand("how many ended", receipt.ended, min(call.limit, len(due)))
        demand("who was not to end", sorted(set(keys) - set(due)), [])
        # A silence may be noticed in one go with earlier deadlines, so then the order is not specified.
        if outcome == plain.EXPIRED and not any(oracle.pending[key].operation.heartbeat_timeout_ms > 0 for key in due):
            in_order = sorted(due, key=due.__getitem__)[: call.limit]
            for owner_id in {owner_id for owner_id, _ in in_order + keys}:  # the engine returns them owner by owner
                of_owner = [key for key in in_order if key[0] == owner_id]
                demand("the order of expirations", [key for key in keys if key[0] == owner_id], of_owner)
        oracle.finish(keys, outcome, self.now_ms)
        self.compare_rows(rows)

    def fail_stale(self, stale_ms: dict[plain.Name, int]) -> int:
        failed = super().fail_stale(stale_ms)
        demand("failed as stale", failed, self.oracle.fail_stale(stale_ms, self.now_ms))
        self.compare_ended()
        return failed

    # Comparing.

    def compare_ended(self) -> None:
        self.compare_rows(self.take_ended())

    def compare_rows(self, rows: list[plain.Ended]) -> None:
        """Compare the ended operations and their results, in any order."""
        self.last_ended = rows
        if not self.has_oracle:
            return
        expected = self.oracle.take_ended()
        if (rows or expected) and sorted(rows) != sorted(expected):
            compare_ends(rows, expected)
        demand("pending", self.engine.pending, len(self.oracle.pending))
        evaluations = [self.engine.inspection.counts(kind).evaluations for kind in plain.KINDS]
        if any(now < before for now, before in zip(evaluations, self._evaluations, strict=True)):
            raise Difference(f"evaluations fell from {self._evaluations} to {evaluations}")
        self._evaluations = evaluations
        earliest = self.oracle.earliest_deadline_ms()
        next_ms = self.engine.next_expiration_ms()
        if earliest >= 0 and not -1 < next_ms <= earliest:
            raise Difference(f"next_expiration_ms {next_ms}, but a deadline is at {earliest}")

    def compare_marks(self, names: set[plain.Name]) -> None:
        """Compare the visible state of partitions; keys have none."""
        for name in names:
            if name[1] >= 0:
                partition = self.oracle.world.partitions.get(name)
                demand(f"marks of {name}", self.marks(name), None if partition is None else partition.marks())

    def compare_everything(self) -> None:
        """Compare all visible state, recounted, and check the engine's invariants."""
        self.engine.check()
        if not self.has_oracle:
            return
        demand("an operation is pending whose condition holds", self.oracle.check_everything(self.now_ms), 0)
        self.compare_marks(set(self.oracle.world.partitions) | set(self.engine.inspection.partition_names()))
        watched = Counter[int]()
        for waiting in self.oracle.pending.values():
            fetch = waiting.operation.kind == plain.FETCH
            watched[waiting.operation.kind] += sum(fetch or not item.decided for item in waiting.items)
        for kind in plain.KINDS:
            demand("counts of a kind", self.counts(kind), self.oracle.counts(kind))
            demand("watched of a kind", self.engine.inspection.counts(kind).watched, watched[kind])
        seen = {(view.owner_id, view.operation_id): pending_of(view) for view in self.all_pending()}
        demand("who is pending", sorted(seen), sorted(self.oracle.pending))
        for key, waiting in self.oracle.pending.items():
            view = self.oracle.view(waiting)
            if seen[key] != view:
                demand(f"the view of {key}", seen[key], view)

    def heal(self) -> None:
        """Advance past all deadlines, and check that the engine is empty."""
        if not self.has_oracle:
            return
        while self.oracle.pending:
            pending = len(self.oracle.pending)
            next_ms = self.engine.next_expiration_ms()
            self.now_ms = max(next_ms, self.now_ms)
            self.perform(-1, calls.PassTime(UNLIMITED))
            if len(self.oracle.pending) == pending and self.engine.next_expiration_ms() <= self.now_ms:
                raise Difference(f"nothing expires at {self.now_ms}, and yet the reaper is to come again at once")
        self.compare_everything()
        demand("pending at the end", self.engine.pending, 0)
        demand("next expiration at the end", self.engine.next_expiration_ms(), -1)
        for kind in plain.KINDS:
            demand(f"watched at the end, kind {kind}", self.engine.inspection.counts(kind).watched, 0)
        for name in self.engine.inspection.partition_names():
            view = self.engine.inspection.partition_view(name)
            demand(f"watched at the end on {name}", view.watched if view else None, 0)
