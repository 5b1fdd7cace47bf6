"""Engine and oracle side by side. The same seed gives the same trace, compiled or not. A failure is cut down."""

import random
import time
from collections.abc import Callable, Iterable, Sequence

from purgatory.engine import calls
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest
from tests.engine.pair import Pair
from tests.histories.history import History
from tests.histories.plan import Generator, Leave, Step, Swarm
from tests.histories.tables import OF_OPERATIONS, Seen, features_of, features_of_end

PATHS = ("engine",)
FAULTS = ("none", "stall", "stop")
FEATURES = tuple(OF_OPERATIONS)
LENGTHS = (250, 250, 250, 1_000, 5_000)
"""Steps of a history, which draws one of these."""
RECOUNT_EVERY = 64
"""Batches between two comparisons of all visible state; more if more is pending. After the other batches, only the
state that they touched is compared.
"""
TRACE_MASK = 0xFFFFFFFF
SHRINK_SECONDS = 10.0
PRINTED_STEPS_MAX = 15


class Failure(Exception):
    """A step after which engine and oracle differ, or in which one of them raised."""

    def __init__(self, step_index: int, cause: BaseException) -> None:
        super().__init__(f"step {step_index}: {type(cause).__name__}: {cause}")
        self.step_index = step_index
        self.cause = cause


class Owners:
    """The owners of a history, and the calls that its steps make for them, on an engine alone or with the oracle."""

    def __init__(self, swarm: Swarm, world: Pair | EngineUnderTest) -> None:
        self.world = world
        self.ids = [world.add_owner() for _ in range(swarm.owners)]

    def perform(self, step: Step) -> None:
        self.world.now_ms += step.pass_ms
        owner_id = self.ids[step.owner]
        if isinstance(step.call, Leave):
            self.world.remove_owner(owner_id)
            self.ids[step.owner] = self.world.add_owner()
        elif isinstance(step.call, calls.FailStale):
            self.world.fail_stale(dict(step.rows))  # type: ignore[arg-type]
        elif step.call is not None:
            self.world.perform(owner_id, step.call, step.rows, step.work_max)


class Run:
    """A sequence of steps on engine and oracle, with a hash over everything that ended."""

    def __init__(self, swarm: Swarm, recount_every: int = RECOUNT_EVERY) -> None:
        self.pair = Pair(swarm.settings)
        self.owners = Owners(swarm, self.pair)
        self.recount_every = self.recount_at = recount_every
        self.steps_done = self.weight_done = self.ended = self.trace = 0
        self.seen = Seen()
        self.met: dict[tuple[int, int], set[str]] = {}
        """The faults that each pending operation has met."""

    def run(self, sequence: Iterable[Step]) -> None:
        """Perform the steps in order, then let all operations end."""
        for step in sequence:
            try:
                self._perform(step)
            except Exception as error:
                raise Failure(self.steps_done, error) from error
            self.steps_done += 1
            self.weight_done += step.weight
        try:
            self.pair.compare_everything()
            self.pair.heal()
        except Exception as error:
            raise Failure(self.steps_done, error) from error

    def _perform(self, step: Step) -> None:
        self.pair.last_ended = []
        if step.call is None or isinstance(step.call, calls.Pause):
            fault = "stall" if step.call is None else "stop"
            for key, waiting in self.pair.oracle.pending.items():
                self.met.setdefault(key, set()).add(fault)
                self.seen.note(features_of(waiting.operation), fault)
        if isinstance(step.call, calls.Extend):
            owner_id = self.owners.ids[step.owner]
            for key in {(owner_id, one) for one in step.call.operation_ids} & self.pair.oracle.pending.keys():
                self.seen.note(["extended"], "engine", *self.met.get(key, ["none"]))
        self.owners.perform(step)
        for row in step.rows:
            if isinstance(row, plain.Operation):
                self.seen.note(features_of(row), "engine", "none")
        for ended in self.pair.last_ended:
            faults = self.met.pop((ended.owner_id, ended.operation_id), {"none"})
            self.seen.note(features_of_end(ended), "engine", *faults)
        self._note(self.pair.last_ended)
        if self.steps_done >= self.recount_at:
            self.pair.compare_everything()
            self.recount_at = self.steps_done + max(self.recount_every, len(self.pair.oracle.pending))

    def _note(self, ended: list[plain.Ended]) -> None:
        self.ended += len(ended)
        for row in ended:
            number = hash(row[:6])
            for item in row.items:
                number = number * 31 + hash(item[1:]) & TRACE_MASK
            self.trace = (self.trace * 31 + number) & TRACE_MASK


def run(history: History) -> None:
    """Run one seed. A difference is reported with few steps that still show it."""
    steps_max = random.Random(history.seed).choice(LENGTHS)
    generator = Generator(history.seed, history.faults)
    run = Run(generator.swarm)
    try:
        run.run(generator.steps(steps_max))
    except Failure as failure:
        sequence = list(Generator(history.seed, history.faults).steps(steps_max))[: failure.step_index + 1]
        history.judge.complaints.extend([str(failure), *shortest(generator.swarm, sequence, failure)])
    history.trace = run.trace
    history.seen.pairs.update(run.seen.pairs)
    history.figures.update({"steps": run.weight_done, "operations ended": run.ended})


def shortest(swarm: Swarm, sequence: list[Step], failure: Failure) -> list[str]:
    """Cut a failed run down and describe the rest."""

    def fails(some: Sequence[Step]) -> bool:
        """Whether these steps also fail, with the same type of error."""
        try:
            Run(swarm).run(some)
        except Failure as other:
            return type(other.cause) is type(failure.cause)
        return False

    kept = without_chunks(sequence, fails)
    lines = [f"settings: {plain.brief(swarm.settings)}, owners={swarm.owners}"]
    lines.append(f"{sum(step.weight for step in kept)} steps are enough:")
    lines += [f"  {step}" for step in kept[-PRINTED_STEPS_MAX:]]
    try:
        Run(swarm).run(kept)
    except Failure as other:
        lines.append(str(other))
    return lines


def without_chunks(sequence: list[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Remove chunks of steps, of decreasing size and from the end, while the rest still fails."""
    kept = sequence
    deadline_s = time.monotonic() + SHRINK_SECONDS
    size = max(1, len(kept) // 2)
    while size:
        for start in range(len(kept) - size, -size, -size):
            candidate = kept[: max(start, 0)] + kept[max(start, 0) + size :]
            if time.monotonic() < deadline_s and candidate and fails(candidate):
                kept = candidate
        size //= 2
    return kept
