"""A few short days of the simulator, each a test: what the cases overlook shows where engine and oracle differ.

Not named `test_…`: `make test` has its own share of the simulator, and only the mutants' judge asks for this one.
"""

import itertools

import pytest

from tests.simulator.generator import Generator
from tests.simulator.simulation import Simulation

SEEDS = 40
STEPS = 250


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_engine_and_oracle_agree(seed: int) -> None:
    """The same outcomes, marks and counters after each step, and an empty engine at the end."""
    generator = Generator(seed)
    Simulation(generator.swarm).run(itertools.islice(iter(generator.next_step, None), STEPS))
