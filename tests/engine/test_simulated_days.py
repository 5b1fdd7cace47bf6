"""A few short runs of the simulator, each as a test: they find differences that the cases overlook."""

import pytest

from tests.simulator.generator import Generator
from tests.simulator.lives import steps_of
from tests.simulator.simulation import Simulation


@pytest.mark.parametrize("seed", range(1, 41))
def test_engine_equals_oracle(seed: int) -> None:
    """Outcomes, marks and counters are equal after each step, and the engine is empty at the end."""
    generator = Generator(seed)
    Simulation(generator.swarm, recount_every=8).run(steps_of(generator, 250))
