"""Runs steps on engine and oracle side by side, or on the engine alone for speed. Both give a trace hash."""

from collections.abc import Iterable

from tests.engine import plain
from tests.engine.adapter import EngineUnderTest
from tests.engine.pair import Pair
from tests.simulator import steps
from tests.simulator.swarm import Swarm

RECOUNT_EVERY = 64
"""Batches between two comparisons of all visible state; more if more is pending. After the other batches, only the
state that they touched is compared.
"""
TRACE_MASK = 0xFFFFFFFF


class Failure(Exception):
    """A step after which engine and oracle differ, or in which one of them raised."""

    def __init__(self, step_index: int, cause: BaseException) -> None:
        super().__init__(f"step {step_index}: {type(cause).__name__}: {cause}")
        self.step_index = step_index
        self.cause = cause


class Simulation:
    def __init__(self, swarm: Swarm) -> None:
        self.pair = Pair(
            swarm.start_ms,
            tick_ms=swarm.tick_ms,
            wheel_size=swarm.wheel_size,
            strict=swarm.strict,
            lag_max_ms=swarm.lag_max_ms,
        )
        self.owners = [self.pair.add_owner() for _ in range(swarm.owners)]
        self.recount_at = RECOUNT_EVERY
        self.steps_done = 0
        self.weight_done = 0
        self.ended = 0
        self.trace = 0

    def run(self, sequence: Iterable[steps.Step]) -> None:
        """Take the steps in order, then let all operations end."""
        for step in sequence:
            try:
                self.take(step)
                if self.steps_done >= self.recount_at:
                    self.pair.compare_everything()
                    self.recount_at = self.steps_done + max(RECOUNT_EVERY, len(self.pair.oracle.pending))
            except Exception as error:
                raise Failure(self.steps_done, error) from error
            self.steps_done += 1
            self.weight_done += steps.weight(step)
        try:
            self.pair.compare_everything()
            self.pair.heal()
        except Exception as error:
            raise Failure(self.steps_done, error) from error

    def take(self, step: steps.Step) -> None:
        """Take one step and add the operations that it ended to the trace."""
        pair = self.pair
        pair.last_ended = []
        match step:
            case steps.Register(owner, operations):
                pair.register(self.owners[owner], list(operations))
            case steps.Apply(events, limit):
                pair.apply(list(events), limit)
            case steps.Advance(ms, limit):
                pair.advance(ms, limit)
            case steps.Sleep(ms):
                pair.now_ms += ms
            case steps.Cancel(owner, operation_ids):
                pair.cancel(self.owners[owner], list(operation_ids))
            case steps.CancelAll(owner):
                pair.cancel_all(self.owners[owner])
            case steps.CancelName(name):
                pair.cancel_name(name)
            case steps.FailStale(stale):
                pair.fail_stale(dict(stale))
            case steps.ReplaceOwner(owner):
                pair.remove_owner(self.owners[owner])
                self.owners[owner] = pair.add_owner()
            case steps.ShutDown(limit):
                pair.shut_down(limit)
        self.note(pair.last_ended)

    def note(self, ended: list[plain.Ended]) -> None:
        """The trace is a hash over all ends, in order."""
        self.ended += len(ended)
        for row in ended:
            number = hash(row[:6])
            for item in row.items:
                number = number * 31 + hash(item[1:]) & TRACE_MASK
            self.trace = (self.trace * 31 + number) & TRACE_MASK


class EngineRun:
    """The engine alone with the steps of one run, to measure its own time and the generator's."""

    def __init__(self, swarm: Swarm) -> None:
        self.now_ms = swarm.start_ms
        self.engine = EngineUnderTest(
            swarm.start_ms,
            tick_ms=swarm.tick_ms,
            wheel_size=swarm.wheel_size,
            strict=swarm.strict,
            lag_max_ms=swarm.lag_max_ms,
        )
        self.owners = [self.engine.add_owner() for _ in range(swarm.owners)]
        self.steps_done = 0
        self.weight_done = 0
        self.ended = 0
        self.trace = 0

    def run(self, sequence: Iterable[steps.Step]) -> None:
        """Take the steps, then advance the time until the engine is empty."""
        for step in sequence:
            self.take(step)
            self.steps_done += 1
            self.weight_done += steps.weight(step)
        engine = self.engine.engine
        while engine.pending:
            self.now_ms = max(self.now_ms, engine.next_expiration_ms())
            self.note(engine.advance_clock(self.now_ms, 100_000))
        assert engine.next_expiration_ms() == -1, f"a timer is left at {engine.next_expiration_ms()}"

    def take(self, step: steps.Step) -> None:
        engine = self.engine
        match step:
            case steps.Register(owner, operations):
                receipt = engine.register(self.owners[owner], list(operations), self.now_ms)
                self.note(receipt.accepted)
            case steps.Apply(events, limit):
                for answer in engine.apply(list(events), self.now_ms, limit):
                    self.note(answer.ended)
            case steps.Advance(ms, limit):
                self.now_ms += ms
                self.note(engine.engine.advance_clock(self.now_ms, limit))
            case steps.Sleep(ms):
                self.now_ms += ms
            case steps.Cancel(owner, operation_ids):
                self.note(sum(engine.cancel(self.owners[owner], list(operation_ids), self.now_ms)))
            case steps.CancelAll(owner):
                self.note(engine.cancel_all(self.owners[owner], self.now_ms))
            case steps.CancelName(name):
                self.note(engine.cancel_name(name, self.now_ms))
            case steps.FailStale(stale):
                self.note(engine.fail_stale(dict(stale), self.now_ms))
            case steps.ReplaceOwner(owner):
                engine.remove_owner(self.owners[owner], self.now_ms)
                self.owners[owner] = engine.add_owner()
            case steps.ShutDown(limit):
                self.note(engine.engine.shut_down(self.now_ms, limit))

    def note(self, number: int) -> None:
        """The trace is a hash over the results of each step and the ended operations."""
        for completions in self.engine.engine.take_completions():
            self.ended += len(completions)
            number = hash((number, tuple(completions.operation_ids), tuple(completions.outcomes)))
        self.trace = (self.trace * 31 + number) & TRACE_MASK
