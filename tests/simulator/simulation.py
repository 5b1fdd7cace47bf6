"""Runs steps on engine and oracle side by side, with a hash over everything that ended."""

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


class Owners:
    """The owners of a run, and the calls that its steps make for them, on an engine alone or beside the oracle."""

    def __init__(self, swarm: Swarm, world: Pair | EngineUnderTest) -> None:
        self.world = world
        self.ids = [world.add_owner() for _ in range(swarm.owners)]

    def take(self, step: steps.Step) -> None:
        world = self.world
        match step:
            case steps.Register(owner, operations):
                world.register(self.ids[owner], list(operations))
            case steps.Apply(events, limit):
                world.apply(list(events), limit)
            case steps.Advance(ms, limit):
                world.advance(ms, limit)
            case steps.Sleep(ms):
                world.now_ms += ms
            case steps.Pause(ms):
                world.pause(ms)
            case steps.Cancel(owner, operation_ids):
                world.cancel(self.ids[owner], list(operation_ids))
            case steps.CancelAll(owner):
                world.cancel_all(self.ids[owner])
            case steps.CancelName(name):
                world.cancel_name(name)
            case steps.FailStale(stale):
                world.fail_stale(dict(stale))
            case steps.Extend(owner, operation_ids, timeout_ms):
                world.extend(self.ids[owner], list(operation_ids), timeout_ms)
            case steps.ReplaceOwner(owner):
                world.remove_owner(self.ids[owner])
                self.ids[owner] = world.add_owner()
            case steps.ShutDown(limit):
                world.shut_down(limit)


class Simulation:
    def __init__(self, swarm: Swarm, recount_every: int = RECOUNT_EVERY) -> None:
        self.pair = Pair(swarm.settings)
        self.owners = Owners(swarm, self.pair)
        self.recount_every = self.recount_at = recount_every
        self.steps_done = 0
        self.weight_done = 0
        self.ended = 0
        self.trace = 0

    def run(self, sequence: Iterable[steps.Step]) -> None:
        """Take the steps in order, then let all operations end."""
        for step in sequence:
            try:
                self.pair.last_ended = []
                self.owners.take(step)
                self.note(self.pair.last_ended)
                if self.steps_done >= self.recount_at:
                    self.pair.compare_everything()
                    self.recount_at = self.steps_done + max(self.recount_every, len(self.pair.oracle.pending))
            except Exception as error:
                raise Failure(self.steps_done, error) from error
            self.steps_done += 1
            self.weight_done += steps.weight(step)
        try:
            self.pair.compare_everything()
            self.pair.heal()
        except Exception as error:
            raise Failure(self.steps_done, error) from error

    def note(self, ended: list[plain.Ended]) -> None:
        """The trace is a hash over all ends, in order."""
        self.ended += len(ended)
        for row in ended:
            number = hash(row[:6])
            for item in row.items:
                number = number * 31 + hash(item[1:]) & TRACE_MASK
            self.trace = (self.trace * 31 + number) & TRACE_MASK
