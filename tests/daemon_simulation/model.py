"""How every operation must have ended, by the calls that the engine got: lists and loops, from docs/semantics.md alone.

It knows as much of the rules as the simulated days need: partitions without replicas, no positions of bytes, no
truncation. (All of the rules are the simulator's, tests/simulator.) It shares no code with the engine but the numbers
of kinds, outcomes and events.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, OperationBatch
from tests.daemon_simulation import engine_tap as tap

TIMEOUT_MS_DEFAULT = 30_000
PARTITION_MAX_BYTES = 1_048_576


@dataclass
class ModelMarks:
    """A partition. -1: not known."""

    high_watermark: int = -1
    log_end: int = -1
    log_start: int = 0
    leads: bool = True
    epoch: int = -1
    failed: bool = False


@dataclass
class ModelItem:
    name: tuple[str, int] | str
    required: int
    code: int | None = None
    """None: still waited for."""


@dataclass
class ModelWait:
    owner: int
    operation_id: int
    kind: int
    items: list[ModelItem]
    timeout_ms: int
    registered_ms: int
    min_bytes: int = 1
    follower: bool = False
    any_key: bool = False


@dataclass(frozen=True)
class ExpectedEnd:
    """How an operation must have ended. `codes` are those of its items; empty: not predicted."""

    session_id: str | None
    operation_id: int
    kind: int
    names: tuple[tuple[str, int] | str, ...]
    outcome: int
    timeout_ms: int
    registered_ms: int
    ended_ms: int
    codes: tuple[int, ...]
    told: bool = True
    """False: it ended with its session, so no result is sent."""


@dataclass
class Run:
    """What must have come of one daemon's life, by the model."""

    ends: list[ExpectedEnd] = field(default_factory=list)
    pending: list[tuple[str | None, int]] = field(default_factory=list)
    registered: Counter[int] = field(default_factory=Counter)
    outcomes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By (kind, outcome)."""
    signals: dict[str, list[int]] = field(default_factory=dict)
    """Each signal of each key, in order."""


def value_at(column: Sequence[int], place: int, default: int) -> int:
    """A column has a value for each, one for all, or none for the default."""
    return column[place if len(column) > 1 else 0] if column else default


class Model:
    def __init__(self, session_ids: dict[int, str]) -> None:
        self.run = Run()
        self._session_ids = session_ids
        self._marks: dict[tuple[str, int], ModelMarks] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[tuple[int, int], ModelWait] = {}
        self._highest: Counter[int] = Counter()

    def finish(self) -> Run:
        """The result; what is pending now stays pending."""
        self.run.pending = [(self._session_ids.get(owner), number) for owner, number in self._waiting]
        return self.run

    def tell(self, entry: tap.Entry) -> None:
        if isinstance(entry, tap.BatchRegistered):
            self._register(entry)
        elif isinstance(entry, tap.Applied):
            for place in range(entry.start, entry.stop):
                self._event(entry.batch, place, entry.now_ms)
        elif isinstance(entry, tap.ClockAdvanced):
            due = [wait for wait in self._waiting.values() if wait.registered_ms + wait.timeout_ms <= entry.now_ms]
            assert len(due) <= entry.limit, "more due than one slice: this model does not cut slices"
            self._end_all(due, codes.EXPIRED, entry.now_ms)
        elif isinstance(entry, tap.EngineShutDown):
            assert len(self._waiting) <= entry.limit, "more pending than one slice: this model does not cut slices"
            self._end_all(list(self._waiting.values()), codes.SHUTTING_DOWN, entry.now_ms)
        elif isinstance(entry, tap.Cancelled):
            self._end_all(self._named(entry.what), codes.CANCELLED, entry.now_ms)
        elif isinstance(entry, tap.OwnerRemoved):
            for wait in self._named(entry.owner):
                self._end(wait, codes.CANCELLED, entry.now_ms, told=False)

    def _named(self, what: tuple[int, tuple[int, ...]] | int | tuple[str, int] | str) -> list[ModelWait]:
        if isinstance(what, int):
            return [wait for (owner, _), wait in self._waiting.items() if owner == what]
        if isinstance(what, tuple) and isinstance(what[1], tuple):
            return [self._waiting[what[0], number] for number in what[1] if (what[0], number) in self._waiting]
        return [
            wait
            for wait in self._waiting.values()
            if any(item.name == what and item.code is None for item in wait.items)
        ]

    # Registrations.

    def _register(self, entry: tap.BatchRegistered) -> None:
        batch = entry.batch
        known = self._highest[entry.owner]
        first_item = 0
        for row, operation_id in enumerate(batch.operation_ids):
            count = value_at(batch.item_counts, row, 1)
            items = [self._item(batch, entry.kind, first_item + place) for place in range(count)]
            first_item += count
            if operation_id <= known:
                continue
            self._highest[entry.owner] = max(self._highest[entry.owner], operation_id)
            lowest = {codes.DELETE_RECORDS: -1, codes.SIGNAL: 1}.get(entry.kind, 0)
            if any(item.required < lowest for item in items):
                continue  # refused
            wait = ModelWait(
                entry.owner,
                operation_id,
                entry.kind,
                items,
                value_at(batch.timeouts_ms, row, TIMEOUT_MS_DEFAULT),
                entry.now_ms,
                value_at(batch.min_bytes, row, 1),
                value_at(batch.replica_ids, row, -1) >= 0,
                bool(value_at(batch.any_key, row, 0)),
            )
            self.run.registered[entry.kind] += 1
            self._waiting[entry.owner, operation_id] = wait
            self._begin(wait, bool(value_at(batch.from_now, row, 0)), batch, first_item - count)
            self._settle(wait, entry.now_ms)
            if wait.timeout_ms == 0 and (wait.owner, operation_id) in self._waiting:
                self._end(wait, codes.EXPIRED, entry.now_ms)

    @staticmethod
    def _item(batch: OperationBatch, kind: int, place: int) -> ModelItem:
        index = value_at(batch.item_indexes, place, 0)
        if kind == codes.SIGNAL:
            return ModelItem(batch.keys[index], value_at(batch.offsets, place, 1))
        return ModelItem(batch.partitions[index], value_at(batch.offsets, place, 0))

    def _begin(self, wait: ModelWait, from_now: bool, batch: OperationBatch, first_item: int) -> None:
        """Decides what depends on the marks at registration, once."""
        for place, item in enumerate(wait.items, start=first_item):
            local_error = value_at(batch.local_error_codes, place, 0)
            if local_error:
                item.code = local_error
            elif isinstance(item.name, str):
                item.required += self._counts[item.name] if from_now else 0
            elif wait.kind == codes.DELETE_RECORDS:
                self._begin_delete(item, self._of(item.name))

    @staticmethod
    def _begin_delete(item: ModelItem, marks: ModelMarks) -> None:
        if marks.failed or not marks.leads:
            return
        if item.required < 0:
            item.required = marks.high_watermark
            item.code = codes.OFFSET_NOT_AVAILABLE if marks.high_watermark < 0 else None
        elif 0 <= marks.high_watermark < item.required:
            item.code = codes.OFFSET_OUT_OF_RANGE

    # Events.

    def _of(self, name: tuple[str, int]) -> ModelMarks:
        return self._marks.setdefault(name, ModelMarks())

    def _event(self, batch: EventBatch, place: int, now_ms: int) -> None:
        kind, index = batch.types[place], value_at(batch.item_indexes, place, 0)
        offset = value_at(batch.offsets, place, 1)
        name: tuple[str, int] | str
        if kind == codes.KEY_SIGNALLED:
            name = batch.keys[index]
            self._counts[name] += offset
            self.run.signals.setdefault(name, []).append(offset)
        else:
            name = partition = batch.partitions[index]
            flag = bool(value_at(batch.flags, place, 0))
            if kind == codes.PARTITION_REMOVED:
                self._remove(
                    partition, codes.NOT_LEADER_OR_FOLLOWER if flag else codes.UNKNOWN_TOPIC_OR_PARTITION, now_ms
                )
                return
            epoch = value_at(batch.leader_epochs, place, -1)
            self._change(self._of(partition), kind, offset, epoch, flag)
        for wait in [wait for wait in self._waiting.values() if any(item.name == name for item in wait.items)]:
            self._settle(wait, now_ms)

    @staticmethod
    def _change(marks: ModelMarks, kind: int, offset: int, epoch: int, flag: bool) -> None:
        if kind == codes.STORAGE_ONLINE:
            marks.failed = False
        elif kind == codes.LEADERSHIP:
            if epoch >= marks.epoch:
                marks.epoch, marks.leads = epoch, flag
        elif marks.failed:
            return
        elif kind == codes.STORAGE_FAILED:
            marks.failed = True
        elif kind == codes.LEADER_APPEND:
            if marks.high_watermark < 0:
                marks.high_watermark = marks.log_start
            marks.log_end = max(marks.log_end, offset)
        elif kind == codes.HIGH_WATERMARK:
            if marks.leads:
                marks.high_watermark = max(marks.high_watermark, offset, marks.log_start)
            else:
                marks.high_watermark = max(marks.log_start, offset if marks.log_end < 0 else min(offset, marks.log_end))
            marks.log_end = max(marks.log_end, marks.high_watermark)
        elif kind == codes.LOG_START_OFFSET:
            if marks.log_start < offset <= marks.high_watermark:
                marks.log_start = offset
        else:
            raise AssertionError(f"the plan has no event of type {kind}")

    def _remove(self, name: tuple[str, int], code: int, now_ms: int) -> None:
        for wait in list(self._waiting.values()):
            for item in wait.items:
                if item.name == name and item.code is None:
                    item.code = code
                    self._settle(wait, now_ms)
                    break
        self._marks.pop(name, None)

    # Ends.

    def _settle(self, wait: ModelWait, now_ms: int) -> None:
        """Ends the wait if its items say so by now."""
        if wait.kind == codes.FETCH:
            self._settle_fetch(wait, now_ms)
            return
        for item in wait.items:
            if item.code is None:
                item.code = self._code(wait.kind, item)
        decided = [item.code for item in wait.items if item.code is not None]
        if wait.any_key and 0 in decided:
            self._end(wait, codes.SATISFIED, now_ms)
        elif len(decided) == len(wait.items):
            self._end(wait, codes.FAILED if any(decided) else codes.SATISFIED, now_ms)

    def _code(self, kind: int, item: ModelItem) -> int | None:
        if isinstance(item.name, str):
            return 0 if self._counts[item.name] >= item.required else None
        marks = self._of(item.name)
        if marks.failed:
            return codes.KAFKA_STORAGE_ERROR
        if not marks.leads:
            return codes.NOT_LEADER_OR_FOLLOWER
        mark = marks.high_watermark if kind == codes.PRODUCE else marks.log_start
        return 0 if mark >= item.required else None

    def _settle_fetch(self, wait: ModelWait, now_ms: int) -> None:
        """A fetch is looked at as a whole: bytes of all partitions, or one that gives a reason to answer."""
        gathered, reason = 0, False
        answers = []
        for item in wait.items:
            assert not isinstance(item.name, str), "a fetch of a key"
            marks = self._of(item.name)
            error = item.code or 0
            if not error and marks.failed:
                error = codes.KAFKA_STORAGE_ERROR
            if not error and not marks.leads:
                error = codes.NOT_LEADER_OR_FOLLOWER
            end = marks.log_end if wait.follower else marks.high_watermark
            reason = reason or bool(error) or 0 <= end < item.required
            if not error and 0 <= marks.log_end < item.required:
                error = codes.OFFSET_OUT_OF_RANGE
            gathered += min(end - item.required, PARTITION_MAX_BYTES) if end > item.required else 0
            answers.append(error)
        if reason or gathered >= wait.min_bytes:
            for item, error in zip(wait.items, answers, strict=True):
                item.code = error
            self._end(wait, codes.FAILED if any(answers) else codes.SATISFIED, now_ms)

    def _end_all(self, waits: list[ModelWait], outcome: int, now_ms: int) -> None:
        for wait in waits:
            self._end(wait, outcome, now_ms)

    def _end(self, wait: ModelWait, outcome: int, now_ms: int, *, told: bool = True) -> None:
        del self._waiting[wait.owner, wait.operation_id]
        self.run.outcomes[wait.kind, outcome] += 1
        predicted = wait.kind != codes.FETCH or outcome in {codes.SATISFIED, codes.FAILED}
        end = ExpectedEnd(
            self._session_ids.get(wait.owner),
            wait.operation_id,
            wait.kind,
            tuple(item.name for item in wait.items),
            outcome,
            wait.timeout_ms,
            wait.registered_ms,
            now_ms,
            tuple(codes.REQUEST_TIMED_OUT if item.code is None else item.code for item in wait.items)
            if predicted
            else (),
            told,
        )
        self.run.ends.append(end)


def run_of(entries: Sequence[tap.Entry], session_ids: dict[int, str]) -> Run:
    model = Model(session_ids)
    for entry in entries:
        model.tell(entry)
    return model.finish()
