"""Many calls in one: a tape of steps that the engine plays in order, without leaving compiled code in between.

A tape has exactly the effect of the same calls made one by one. It is for replaying a recorded history, where most
calls have a single operation and the call itself costs more than the operation. Results are collected as usual, for
`take_completions` after the tape.

A step is a code, a time and a count: how many of the next operations of a kind, events, expirations, ids to end, or
names to cancel. Each column is read once, from beginning to end.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import EventBatch, EventsReceipt, OperationBatch, PartitionName, Refusal
from purgatory.engine.codes import CANCELLED, KINDS, SHUTTING_DOWN
from purgatory.engine.inspection import EngineInspection
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.marks.event_checks import check_columns
from purgatory.engine.marks.events import Events
from purgatory.engine.marks.registry import NamedPartitions
from purgatory.engine.waiting.admission import Admission
from purgatory.engine.waiting.stale_waits import StaleWaits
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED

__all__ = [
    "APPLY",
    "CANCEL",
    "CANCEL_ALL_ON",
    "EXPIRE",
    "EXTEND",
    "FAIL_STALE",
    "PASS",
    "PAUSE",
    "REGISTER",
    "SHUT_DOWN",
    "Played",
    "Tape",
    "TapePlayer",
]

# Codes of steps.
APPLY: Final = 1
"""Apply the next `count` events."""
EXPIRE: Final = 2
"""Expire up to `count` operations that are due."""
CANCEL: Final = 3
"""Cancel the operations with the next `count` ids, if they are pending."""
SHUT_DOWN: Final = 4
"""As CANCEL, but with the outcome SHUTTING_DOWN."""
CANCEL_ALL_ON: Final = 5
"""Cancel all operations that wait on the next `count` names."""
PASS: Final = 6
"""Only advance the time."""
FAIL_STALE: Final = 7
"""As CANCEL, but ended as by `Engine.fail_stale`, with the stale marks that the tape has for each id."""
EXTEND: Final = 8
"""Extend the operations with the next `count` ids, if they are pending, by the timeout that the tape has for the step.
"""
PAUSE: Final = 9
"""Note a pause of `count` milliseconds, as `Engine.note_pause` does."""
REGISTER: Final = 16
"""Plus the code of a kind: register the next `count` operations of that kind. Last, so that kinds may be added."""

ALL: Final = 1_000_000_000


class Tape:
    """Steps in order, and the columns that they consume. `operations` has the batch of each kind at its code, or None.

    Operation ids are ascending over the whole tape, across kinds. A name whose partition is -1 is a signal's key.
    `stale` maps ids to the marks that were stale when that operation ended as stale. `extensions_ms` has the timeout of
    each EXTEND step.
    """

    def __init__(
        self,
        steps: list[int],
        times_ms: list[int],
        counts: list[int],
        *,
        operations: list[OperationBatch | None],
        events: EventBatch | None = None,
        operation_ids: list[int] | None = None,
        names: list[PartitionName] | None = None,
        stale: dict[int, set[PartitionName]] | None = None,
        extensions_ms: list[int] | None = None,
    ) -> None:
        self.steps: Final = steps
        self.times_ms: Final = times_ms
        self.counts: Final = counts
        self.operations: Final = operations
        self.events: Final = events
        self.operation_ids: Final[list[int]] = [] if operation_ids is None else operation_ids
        self.names: Final[list[PartitionName]] = [] if names is None else names
        self.stale: Final[dict[int, set[PartitionName]]] = {} if stale is None else stale
        self.extensions_ms: Final[list[int]] = [] if extensions_ms is None else extensions_ms


class Played:
    """The effects of a tape other than completions: refusals, and requested expirations that were not due."""

    def __init__(self) -> None:
        self.refused_ids: Final[list[int]] = []
        self.refusals: Final[list[Refusal]] = []
        """The refusal of each of these ids; the index is the row in the batch of its kind."""
        self.events: Final = EventsReceipt()
        self.not_due = 0


class TapePlayer:
    """Plays tapes for one owner on an engine's parts; `now_ms` is the engine's clock.

    With `prompt`, due operations expire before each step, at their own millisecond, like a reaper that is never late.
    """

    def __init__(
        self,
        admission: Admission,
        events: Events,
        inspection: EngineInspection,
        owner: Owner,
        now_ms: i64,
        prompt: bool,
    ) -> None:
        self.now_ms: i64 = now_ms
        self._admission: Final = admission
        self._pending: Final = admission.pending
        self._wakeups: Final = events.wakeups
        self._events: Final = events
        self._inspection: Final = inspection
        self._stale_waits: Final = StaleWaits(admission.pending)
        self._owner: Final = owner
        self._prompt: Final = prompt
        self._next_event = 0
        self._next_id = 0
        self._next_name = 0
        self._next_extension = 0

    def play(self, tape: Tape) -> Played:
        """Play all steps. Raises InvalidBatch before the first step."""
        played = Played()
        # All columns are checked before the first step: an InvalidBatch in the middle would leave half of the tape
        # played.
        kinds = [self._kind_columns(tape, kind) for kind in range(len(KINDS) + 1)]
        known = NamedPartitions(self._pending.partitions)
        if tape.events is not None:
            check_columns(tape.events)
            known.use(tape.events.partitions)
        for place, step in enumerate(tape.steps):
            now_ms: i64 = tape.times_ms[place]
            count = tape.counts[place]
            # Before anything expires: a silence does not end in a pause.
            if step == PAUSE:
                self._pending.paused_ms += count
            # Before the time of the step is taken over: what is due earlier must end at its own millisecond.
            if self._prompt:
                self._expire_due(now_ms)
            assert now_ms >= self.now_ms, f"clock went back: now_ms={now_ms} engine={self.now_ms}"
            self.now_ms = now_ms
            if step >= REGISTER:
                columns = kinds[step - REGISTER]
                assert columns is not None, f"step {place} registers, the tape has none of kind {step - REGISTER}"
                self._register(columns, count, now_ms, played)
            elif step == APPLY:
                assert tape.events is not None, f"step {place} applies events, the tape has none"
                self._apply(tape.events, known, count, now_ms, played)
            elif step == EXPIRE:
                played.not_due += self._expire(count, now_ms)
            elif step in (CANCEL, SHUT_DOWN):
                self._end(tape.operation_ids, count, CANCELLED if step == CANCEL else SHUTTING_DOWN, now_ms)
            elif step == FAIL_STALE:
                self._fail_stale(tape, count, now_ms)
            elif step == EXTEND:
                self._extend(tape, count, now_ms)
            elif step == CANCEL_ALL_ON:
                self._cancel_all_on(tape.names, count, now_ms)
            else:
                assert step in (PASS, PAUSE), f"step {place} has the code {step}"
        return played

    def _kind_columns(self, tape: Tape, kind: int) -> KindColumns | None:
        batch = tape.operations[kind] if kind < len(tape.operations) else None
        return None if batch is None else KindColumns(kind, batch, self._admission)

    def _register(self, kind: KindColumns, count: int, now_ms: i64, played: Played) -> None:
        owner = self._owner
        columns = kind.columns
        admission = self._admission
        # For each step: events and expiries in between have changed the counts.
        admission.open_for(owner.usage)
        stop = kind.next_row + count
        while kind.next_row < stop:
            row = kind.next_row
            operation_id = columns.operation_ids.given(row)
            assert operation_id > owner.highest_operation_id, f"id {operation_id} after {owner.highest_operation_id}"
            kind.next_row = row + 1
            item = kind.next_item
            item_count = columns.item_counts.at(row)
            kind.next_item = item + item_count
            if columns.is_plain and admission.admit_plain(kind.kind, owner, columns, row, item, item_count, now_ms):
                continue
            fault = admission.admit_row(kind.kind, owner, columns, row, item, now_ms)
            if fault is not None:
                played.refused_ids.append(operation_id)
                played.refusals.append(Refusal(row, fault.code, fault.field, fault.message))

    def _apply(self, batch: EventBatch, known: NamedPartitions, count: int, now_ms: i64, played: Played) -> None:
        stop = self._next_event + count
        while self._next_event < stop:
            self._events.apply_row(batch, self._next_event, now_ms, played.events, known)
            self._next_event += 1

    def _expire_due(self, until_ms: i64) -> None:
        while True:
            due_ms: i64 = self._pending.wheel.next_expiration_ms()
            if due_ms < 0 or due_ms > until_ms:
                return
            # A due time in the past is left from an earlier step; the clock must not go back to it.
            if due_ms > self.now_ms:
                self.now_ms = due_ms
            self._advance(ALL)

    def _expire(self, count: int, now_ms: i64) -> int:
        """Expire up to `count` operations. Returns how many of them were not due."""
        while count > 0:
            due_ms: i64 = self._pending.wheel.next_expiration_ms()
            if due_ms < 0 or due_ms > now_ms:
                break
            # An advance may cascade entries without firing any, so the end is recognised by the time of the next bucket
            # and not by an advance that fires nothing.
            count -= self._advance(count)
        return count

    def _advance(self, limit: int) -> int:
        fired: list[int] = []
        self._pending.wheel.advance(self.now_ms, limit, fired)
        return self._pending.on_timers(fired, self.now_ms)

    def _end(self, operation_ids: list[int], count: int, outcome: i64, now_ms: i64) -> None:
        stop = self._next_id + count
        while self._next_id < stop:
            slot = self._inspection.find(self._owner, operation_ids[self._next_id])
            if slot >= 0:
                self._pending.end(slot, outcome, now_ms)
            self._next_id += 1

    def _fail_stale(self, tape: Tape, count: int, now_ms: i64) -> None:
        stop = self._next_id + count
        while self._next_id < stop:
            operation_id = tape.operation_ids[self._next_id]
            slot = self._inspection.find(self._owner, operation_id)
            if slot >= 0:
                self._stale_waits.fail(slot, tape.stale.get(operation_id, set()), now_ms)
            self._next_id += 1

    def _extend(self, tape: Tape, count: int, now_ms: i64) -> None:
        deadline_ms = now_ms + tape.extensions_ms[self._next_extension]
        self._next_extension += 1
        stop = self._next_id + count
        while self._next_id < stop:
            slot = self._inspection.find(self._owner, tape.operation_ids[self._next_id])
            if slot >= 0:
                self._pending.extend(slot, deadline_ms)
            self._next_id += 1

    def _cancel_all_on(self, names: list[PartitionName], count: int, now_ms: i64) -> None:
        stop = self._next_name + count
        while self._next_name < stop:
            name = names[self._next_name]
            if name[1] >= 0:
                partition = self._pending.partitions.get(name)
                if partition is not None:
                    self._wakeups.cancel_waiting(partition, CANCELLED, now_ms, UNLIMITED)
            else:
                key = self._pending.keys.get(name[0])
                if key is not None:
                    self._wakeups.cancel_waiting_key(key, CANCELLED, now_ms, UNLIMITED)
            self._next_name += 1


class KindColumns:
    """The operations of one kind on a tape, and the position of the next one."""

    def __init__(self, kind: int, batch: OperationBatch, admission: Admission) -> None:
        # One for each kind: steps of several kinds alternate, and a shared one would discard its names at each change.
        named = NamedPartitions(admission.pending.partitions)
        self.kind: Final = admission.pending.kinds[kind]
        self.columns: Final = BatchColumns(kind, batch, admission.limits, named)
        self.next_row = 0
        self.next_item = 0
