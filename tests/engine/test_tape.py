"""A tape has the effect of its calls made one by one: random histories, played both ways."""

import random

import pytest

from purgatory.engine import calls as codes
from purgatory.engine import tape as tapes
from purgatory.engine.batches import EventBatch, OperationBatch
from purgatory.engine.calls import Apply, Cancel, CancelName, Extend, FailStale, PassTime, Pause, Register
from purgatory.engine.codes import CANCELLED, HIGH_WATERMARK, PRODUCE, SHUTTING_DOWN, SIGNAL
from purgatory.engine.engine import Engine
from purgatory.engine.errors import InvalidBatch
from purgatory.engine.limits import EngineLimits
from purgatory.engine.tape import Tape
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, ended_of, event_batch, operation_batch
from tests.histories.plan import Generator, Step

BATCHES = 400
ORDERS = ("orders", 0)

REGISTER_PRODUCE = codes.REGISTER + PRODUCE


class Calls:
    """The calls of a run, for one owner with ascending ids: made on one engine, and recorded for a tape."""

    def __init__(self, seed: int, prompt: bool) -> None:
        self.generator = Generator(seed)
        self.prompt = prompt
        swarm = self.generator.swarm
        self.engines = [EngineUnderTest(swarm.settings).engine for _ in range(2)]
        self.owners = [engine.add_owner() for engine in self.engines]
        self.now_ms = self.expired_ms = swarm.settings.now_ms
        self.next_id = 1
        self.refused: list[int] = []
        self.begin_tape()

    def begin_tape(self) -> None:
        self.noted: list[tuple[int, int, int]] = []
        self.operations: dict[int, list[plain.Operation]] = {kind: [] for kind in plain.KINDS}
        self.events: list[plain.Event] = []
        self.ids: list[int] = []
        self.names: list[plain.Name] = []
        self.stale: dict[int, set[plain.Name]] = {}
        self.extensions_ms: list[int] = []

    def perform(self, step: Step) -> None:
        """Make the calls of one step on the first engine, and record them for the second."""
        engine, owner = self.engines[0], self.owners[0]
        self.now_ms += step.pass_ms
        if self.prompt:
            while 0 <= (due_ms := engine.next_expiration_ms()) <= self.now_ms:
                self.expired_ms = max(self.expired_ms, due_ms)
                engine.perform(None, PassTime(3), self.expired_ms)
            self.expired_ms = self.now_ms
        match step.call:
            case Register(kind=kind):
                operations = [
                    row._replace(operation_id=self.next_id + i)
                    for i, row in enumerate(step.rows)
                    if isinstance(row, plain.Operation)
                ]
                self.next_id += len(operations)
                batch = operation_batch(operations)
                receipt = engine.perform(owner, Register(kind, batch), self.now_ms)
                self.refused += [batch.operation_ids[refusal.index] for refusal in receipt.refusals]
                self.operations[kind] += operations
                self.note(codes.REGISTER + kind, len(operations))
            case Apply() as call:
                engine.perform(None, call, self.now_ms)
                self.events += [row for row in step.rows if isinstance(row, plain.Event)]
                self.note(codes.APPLY, len(step.rows))
            case PassTime() as call if not self.prompt:
                self.note(codes.PASS_TIME, engine.perform(None, call, self.now_ms).ended)
            case Pause(pause_ms=ms) as call:
                if not engine.perform(None, call, self.now_ms).unchanged:
                    self.note(codes.PAUSE, ms)
            case Cancel(operation_ids=back):
                ids = [max(1, self.next_id - number % 40) for number in back]
                engine.perform(owner, Cancel(ids), self.now_ms)
                self.ids += ids
                self.note(codes.CANCEL, len(ids))
            case Extend(operation_ids=back, timeout_ms=timeout_ms):
                ids = [max(1, self.next_id - number % 40) for number in back]
                engine.perform(owner, Extend(ids, timeout_ms), self.now_ms)
                self.ids += ids
                self.extensions_ms.append(timeout_ms)
                self.note(codes.EXTEND, len(ids))
            case CancelName(name=name) as call:
                engine.perform(None, call, self.now_ms)
                self.names.append(name)
                self.note(codes.CANCEL_NAME, 1)
            case FailStale(stale=stale):
                waits = engine.stale_waits
                ids = [waits.operation_id(slot) for slot in waits.due(waits.slots(), dict(step.rows), self.now_ms)]  # type: ignore[arg-type]
                engine.perform(owner, FailStale(ids, stale), self.now_ms)
                self.ids += ids
                self.stale.update((number, stale) for number in ids)
                self.note(codes.FAIL_STALE, len(ids))
            case _:
                self.note(codes.PASS_TIME, 0)

    def note(self, code: int, count: int) -> None:
        self.noted.append((code, self.now_ms, count))

    def play(self) -> list[int]:
        """Play the recorded tape on the second engine; returns the refused ids."""
        batches = [None, *(operation_batch(given) if given else None for given in self.operations.values())]
        tape = Tape(
            [code for code, _, _ in self.noted],
            [now_ms for _, now_ms, _ in self.noted],
            [count for _, _, count in self.noted],
            operations=batches,
            events=event_batch(self.events),
            operation_ids=self.ids,
            names=self.names,
            stale=self.stale,
            extensions_ms=self.extensions_ms,
        )
        played = self.engines[1].play(self.owners[1], tape, self.prompt)
        assert played.not_due == 0, "every expiration was due"
        self.begin_tape()
        return played.refused_ids

    def ended(self, which: int) -> list[plain.Ended]:
        """The operations that ended on an engine since the last call, in order.

        A silence may be noticed in one go with earlier deadlines, so with heartbeats the order is not specified.
        """
        rows = [row for completions in self.engines[which].take_completions() for row in ended_of(completions)]
        return sorted(rows) if self.generator.swarm.heartbeats else rows


@pytest.mark.parametrize("seed", range(1, 41))
def test_a_tape_does_what_its_calls_do(seed: int) -> None:
    calls = Calls(seed, prompt=seed % 2 == 0)
    rng = random.Random(seed)
    refused: list[int] = []
    for batch in range(BATCHES):
        calls.perform(calls.generator.next_step())
        if rng.random() < 0.01 or batch == BATCHES - 1:
            refused += calls.play()
            assert calls.ended(1) == calls.ended(0)
    assert refused == calls.refused
    direct, played = calls.engines
    assert played.pending == direct.pending
    for engine in calls.engines:
        while engine.pending:
            engine.perform(None, PassTime(1_000), calls.now_ms + 100_000)
    assert calls.ended(1) == calls.ended(0)


def one_wait(operation_id: int = 1, timeout_ms: int = 10) -> OperationBatch:
    return OperationBatch([operation_id], partitions=[ORDERS], offsets=[5], timeouts_ms=[timeout_ms])


def play(engine: Engine, tape: Tape, prompt: bool = False) -> tuple[list[plain.Ended], tapes.Played]:
    """Play a tape for a new owner; returns the ended operations and the other effects."""
    played = engine.play(engine.add_owner(), tape, prompt)
    return [row for completions in engine.take_completions() for row in ended_of(completions)], played


def test_expirations_that_are_not_due_are_counted() -> None:
    batch = OperationBatch([1, 2], partitions=[ORDERS], offsets=[5], timeouts_ms=[10, 90])
    tape = Tape([REGISTER_PRODUCE, codes.PASS_TIME], [0, 20], [2, 2], operations=[None, batch])
    ended, played = play(Engine(EngineLimits(), 0), tape)
    assert [row.operation_id for row in ended] == [1]
    assert played.not_due == 1


def test_ids_end_as_the_step_says() -> None:
    batch = OperationBatch([1, 2], keys=["k"], timeouts_ms=[10])
    steps_of = [codes.REGISTER + SIGNAL, codes.CANCEL, codes.SHUT_DOWN]
    tape = Tape(steps_of, [0, 1, 2], [2, 1, 2], operations=[None, None, None, None, batch], operation_ids=[2, 2, 1])
    ended, _ = play(Engine(EngineLimits(), 0), tape)
    assert [(row.operation_id, row.outcome) for row in ended] == [(2, CANCELLED), (1, SHUTTING_DOWN)]


def test_columns_that_cannot_be_read_are_refused_before_the_first_step() -> None:
    engine = Engine(EngineLimits(), 0)
    bad = EventBatch([HIGH_WATERMARK], partitions=[ORDERS], offsets=[5, 6, 7])
    tape = Tape([REGISTER_PRODUCE, codes.APPLY], [0, 0], [1, 1], operations=[None, one_wait()], events=bad)
    with pytest.raises(InvalidBatch, match="offset"):
        play(engine, tape)
    assert engine.pending == 0


def test_a_clock_that_goes_back_is_a_broken_invariant() -> None:
    tape = Tape([codes.PASS_TIME, codes.PASS_TIME], [5, 4], [0, 0], operations=[])
    with pytest.raises(AssertionError, match="clock went back"):
        play(Engine(EngineLimits(), 0), tape)
