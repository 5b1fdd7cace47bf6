"""Command line: `python -m tests.simulator --seed 7 --steps 20000 [--seeds 10] [--engine-only]`."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
import time
from collections.abc import Iterator, Sequence

from tests.engine import plain
from tests.simulator import steps
from tests.simulator.generator import Generator
from tests.simulator.run import EngineRun, Failure, Simulation
from tests.simulator.shrink import shrink
from tests.simulator.swarm import Swarm

SHRINK_SECONDS = 10.0
PRINTED_STEPS_MAX = 15


def endless(generator: Generator) -> Iterator[steps.Step]:
    """A generator's steps, without end."""
    while True:
        yield generator.next_step()


def fails_likewise(swarm: Swarm, sequence: Sequence[steps.Step], cause: type[BaseException]) -> bool:
    """True: these steps fail too, and in the same manner."""
    try:
        Simulation(swarm).run(sequence)
    except Failure as failure:
        return type(failure.cause) is cause
    return False


def simulate(seed: int, steps_max: int, shrink_seconds: float) -> int:
    """One seed, engine against oracle. Returns the trace hash; a difference is printed, cut down, and exits with 1."""
    generator = Generator(seed)
    simulation = Simulation(generator.swarm)
    taken: list[steps.Step] = []

    def recorded() -> Iterator[steps.Step]:
        for step in itertools.islice(endless(generator), steps_max):
            taken.append(step)
            yield step

    try:
        simulation.run(recorded())
    except Failure as failure:
        print(f"seed {seed}: {failure}")
        cause = type(failure.cause)
        prefix = shrink(taken, lambda some: fails_likewise(generator.swarm, some, cause), shrink_seconds)
        print_prefix(generator.swarm, prefix)
        print(f"replay with: python -m tests.simulator --seed {seed} --steps {steps_max}")
        sys.exit(1)
    return simulation.trace


def print_prefix(swarm: Swarm, prefix: Sequence[steps.Step]) -> None:
    """The shortest failing steps found, and how they fail."""
    settings = ("tick_ms", "wheel_size", "start_ms", "lag_max_ms", "strict", "owners")
    print("settings: " + ", ".join(f"{name}={getattr(swarm, name)}" for name in settings))
    print(f"{len(prefix)} steps are enough" + (", the last of them:" if len(prefix) > PRINTED_STEPS_MAX else ":"))
    for step in prefix[-PRINTED_STEPS_MAX:]:
        print(f"  {plain.brief(step)}")
    try:
        Simulation(swarm).run(prefix)
    except Failure as failure:
        print(failure)


def simulate_engine_only(seed: int, steps_max: int) -> int:
    """One seed on the engine alone. Returns its trace hash."""
    generator = Generator(seed)
    run = EngineRun(generator.swarm)
    run.run(itertools.islice(endless(generator), steps_max))
    return run.trace


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the simulator."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: a random one)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other (default 1)")
    parser.add_argument("--steps", type=int, default=20_000, help="steps for each seed (default 20000)")
    parser.add_argument("--engine-only", action="store_true", help="no oracle: how fast the engine goes")
    parser.add_argument("--shrink-seconds", type=float, default=SHRINK_SECONDS, help="time to cut a failure down")
    given = parser.parse_args(arguments)
    first = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {first}", flush=True)
    trace = 0
    began = time.monotonic()
    for seed in range(first, first + given.seeds):
        if given.engine_only:
            one = simulate_engine_only(seed, given.steps)
        else:
            one = simulate(seed, given.steps, given.shrink_seconds)
        trace = one if given.seeds == 1 else (trace * 31 + one) & 0xFFFFFFFF
    seconds = time.monotonic() - began
    print(f"{given.seeds * given.steps} steps in {seconds:.1f} s, {given.seeds * given.steps / seconds:.0f} steps/s")
    print(f"{trace:08x}")


if __name__ == "__main__":
    main()
