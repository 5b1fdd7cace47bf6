"""A few short runs of the simulator, each as a test: they find differences that the cases overlook.

Not named `test_…`: `make test` has its own simulator runs, and only mutation testing uses these.
"""

import itertools

import pytest

from tests.simulator.generator import Generator
from tests.simulator.simulation import Simulation

SEEDS = 40
STEPS = 250


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_engine_and_oracle_agree(seed: int) -> None:
    """Outcomes, marks and counters are equal after each step, and the engine is empty at the end."""
    generator = Generator(seed)
    Simulation(generator.swarm).run(itertools.islice(iter(generator.next_step, None), STEPS))
