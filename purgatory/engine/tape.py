"""A tape: a packed list of calls, which the engine plays in order without leaving compiled code in between.

A tape has exactly the effect of the same calls performed one by one. It is for replaying a recorded history, where most
calls have a single operation and the call itself costs more than the operation. Results are collected as usual, for
`take_completions` after the tape.

A step is the code of a call (see `calls`), a time and a count: how many of the next operations of a kind, events, ids
or names it consumes, how many operations expire (PASS_TIME; 0: only the time passes), or the length of a PAUSE.
SHUT_DOWN has the ids of the operations that ended. Each column is read once, from beginning to end.
"""

from typing import Final

from mypy_extensions import i64

from purgatory.engine.batches import EventBatch, OperationBatch, PartitionName, Receipt, Refusal
from purgatory.engine.calls import APPLY, CANCEL, CANCEL_NAME, EXTEND, FAIL_STALE, PASS_TIME, PAUSE, REGISTER, SHUT_DOWN
from purgatory.engine.codes import CANCELLED, KINDS, SHUTTING_DOWN
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.marks.event_checks import check_columns
from purgatory.engine.marks.registry import NamedPartitions
from purgatory.engine.performer import Performer
from purgatory.engine.waiting.admission import Admission
from purgatory.engine.waiting.tables import Owner
from purgatory.engine.waiting.wakeups import UNLIMITED


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
        self.events: Final = Receipt()
        self.not_due = 0


class TapePlayer:
    """Plays tapes for one owner; `now_ms` is the engine's clock.

    With `prompt`, due operations expire before each step, at their own millisecond, like a reaper that is never late.
    """

    def __init__(self, performer: Performer, owner: Owner, now_ms: i64, prompt: bool) -> None:
        self.now_ms: i64 = now_ms
        self._performer: Final = performer
        self._pending: Final = performer.pending
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
                self._performer.pause(count)
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
            elif step == PASS_TIME:
                played.not_due += self._expire(count, now_ms)
            elif step == CANCEL_NAME:
                for name in tape.names[self._next_name : self._next_name + count]:
                    self._performer.cancel_name(name, now_ms, UNLIMITED)
                self._next_name += count
            elif step != PAUSE:
                self._change_ids(step, tape, count, now_ms)
        return played

    def _kind_columns(self, tape: Tape, kind: int) -> "KindColumns | None":
        batch = tape.operations[kind] if kind < len(tape.operations) else None
        return None if batch is None else KindColumns(kind, batch, self._performer.admission)

    def _register(self, kind: "KindColumns", count: int, now_ms: i64, played: Played) -> None:
        owner = self._owner
        columns = kind.columns
        admission = self._performer.admission
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
            self._performer.events.apply_row(batch, self._next_event, now_ms, played.events, known)
            self._next_event += 1

    def _expire_due(self, until_ms: i64) -> None:
        while True:
            due_ms: i64 = self._pending.wheel.next_expiration_ms()
            if due_ms < 0 or due_ms > until_ms:
                return
            # A due time in the past is left from an earlier step; the clock must not go back to it.
            if due_ms > self.now_ms:
                self.now_ms = due_ms
            self._performer.expire(UNLIMITED, self.now_ms, self._pending.work_total + UNLIMITED)

    def _expire(self, count: int, now_ms: i64) -> int:
        """Expire up to `count` operations. Returns how many of them were not due."""
        while count > 0:
            due_ms: i64 = self._pending.wheel.next_expiration_ms()
            if due_ms < 0 or due_ms > now_ms:
                break
            # An advance may cascade entries without firing any, so the end is recognised by the time of the next bucket
            # and not by an advance that fires nothing.
            count -= self._performer.expire(count, now_ms, self._pending.work_total + UNLIMITED)
        return count

    def _change_ids(self, step: int, tape: Tape, count: int, now_ms: i64) -> None:
        """Perform a step on the operations with the next `count` ids."""
        ids = tape.operation_ids[self._next_id : self._next_id + count]
        assert len(ids) == count, f"{count} ids from {self._next_id} on, the tape has {len(tape.operation_ids)}"
        self._next_id += count
        deadline_ms = now_ms
        if step == EXTEND:
            deadline_ms += tape.extensions_ms[self._next_extension]
            self._next_extension += 1
        for operation_id in ids:
            if step == CANCEL:
                self._performer.end(self._owner, operation_id, CANCELLED, now_ms)
            elif step == SHUT_DOWN:
                self._performer.end(self._owner, operation_id, SHUTTING_DOWN, now_ms)
            elif step == FAIL_STALE:
                self._performer.fail_stale(self._owner, operation_id, tape.stale.get(operation_id, set()), now_ms)
            else:
                assert step == EXTEND, f"no step has the code {step}"
                self._performer.extend(self._owner, operation_id, deadline_ms)


class KindColumns:
    """The operations of one kind on a tape, and the position of the next one."""

    def __init__(self, kind: int, batch: OperationBatch, admission: Admission) -> None:
        # One for each kind: steps of several kinds alternate, and a shared one would discard its names at each change.
        named = NamedPartitions(admission.pending.partitions)
        self.kind: Final = admission.pending.kinds[kind]
        self.columns: Final = BatchColumns(kind, batch, admission.limits, named)
        self.next_row = 0
        self.next_item = 0
