"""Runs one seed, and reports its failure. Each run gives a `SeedResult`, which can be sent between processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.engine import plain
from tests.simulator import steps
from tests.simulator.generator import Generator
from tests.simulator.simulation import Failure, Simulation
from tests.simulator.swarm import Swarm

PRINTED_STEPS_MAX = 15


class SeedResult(NamedTuple):
    """The result of one seed. `trace` is a hash over all ended operations; `report` is empty unless it failed."""

    seed: int
    steps: int
    ended: int
    trace: int
    report: str


def steps_of(generator: Generator, steps_max: int) -> Iterator[steps.Step]:
    """A generator's steps, as batches, until `steps_max` have been drawn."""
    left = steps_max
    while left > 0:
        step = generator.next_step()
        left -= steps.weight(step)
        yield step


def live(seed: int, steps_max: int, shrink_seconds: float) -> SeedResult:
    """Run one seed, engine against oracle. A difference is shrunk to few steps, which the report shows."""
    generator = Generator(seed)
    simulation = Simulation(generator.swarm)
    report = ""
    try:
        simulation.run(steps_of(generator, steps_max))
    except Failure as failure:
        report = f"seed {seed}: {failure}\n" + shortest(seed, steps_max, failure, shrink_seconds)
    return SeedResult(seed, simulation.weight_done, simulation.ended, simulation.trace, report)


def shortest(seed: int, steps_max: int, failure: Failure, seconds: float) -> str:
    """Cut a failed run down and describe the rest."""
    generator = Generator(seed)
    swarm = generator.swarm
    taken = list(steps_of(generator, steps_max))[: failure.step_index + 1]

    def fails(some: Sequence[steps.Step]) -> bool:
        """Whether these steps also fail, with the same type of error."""
        try:
            Simulation(swarm).run(some)
        except Failure as other:
            return type(other.cause) is type(failure.cause)
        return False

    prefix = without_chunks(taken, fails, seconds)
    return f"{describe(swarm, prefix)}\nreplay with: python -m tests.simulator --seed {seed} --steps {steps_max}"


def without_chunks(
    sequence: list[steps.Step], fails: Callable[[Sequence[steps.Step]], bool], seconds: float
) -> list[steps.Step]:
    """Remove chunks of steps, of decreasing size and from the end, while the rest still fails, within `seconds`."""
    kept = sequence
    deadline = time.monotonic() + seconds
    size = max(1, len(kept) // 2)
    while size:
        for start in range(len(kept) - size, -size, -size):
            candidate = kept[: max(start, 0)] + kept[max(start, 0) + size :]
            if time.monotonic() < deadline and candidate and fails(candidate):
                kept = candidate
        size //= 2
    return kept


def describe(swarm: Swarm, prefix: Sequence[steps.Step]) -> str:
    """The shortest failing steps found, and how they fail."""
    lines = [f"settings: {plain.brief(swarm.settings)}, owners={swarm.owners}"]
    number = sum(steps.weight(step) for step in prefix)
    lines.append(f"{number} steps are enough" + (", the last of them:" if len(prefix) > PRINTED_STEPS_MAX else ":"))
    lines += [f"  {plain.brief(step)}" for step in prefix[-PRINTED_STEPS_MAX:]]
    try:
        Simulation(swarm).run(prefix)
    except Failure as failure:
        lines.append(str(failure))
    return "\n".join(lines)
