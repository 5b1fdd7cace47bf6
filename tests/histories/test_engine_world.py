"""Histories of the engine and the oracle, and a planted fault that must be found and cut down."""

import re

import pytest

from tests.engine.oracle.partition import Partition
from tests.histories.history import run_history
from tests.histories.plan import Generator
from tests.histories.worlds.engine import Run

BLOCKS = 4
SEEDS_PER_BLOCK = 12


@pytest.mark.parametrize("seed", range(1, 41))
def test_engine_equals_oracle_after_each_step(seed: int) -> None:
    generator = Generator(seed)
    Run(generator.swarm, recount_every=8).run(generator.steps(250))


@pytest.mark.slow  # some 65,000 steps
@pytest.mark.parametrize("block", range(BLOCKS))
def test_engine_equals_oracle_in_long_histories(block: int) -> None:
    for seed in range(100 + block * SEEDS_PER_BLOCK, 100 + (block + 1) * SEEDS_PER_BLOCK):
        assert run_history("engine", seed).complaints == []


def test_trace_follows_from_seed() -> None:
    first, other, again = (run_history("engine", seed).trace for seed in (7, 8, 7))
    assert first == again != other


@pytest.fixture
def faulty_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle reads a high watermark of 7 as 6. For the comparison, it does not matter which side is wrong."""
    right = Partition.set_high_watermark
    monkeypatch.setattr(Partition, "set_high_watermark", lambda self, offset: right(self, offset - (offset == 7)))


@pytest.mark.slow  # it is cut down for seconds
@pytest.mark.usefixtures("faulty_oracle")
def test_planted_fault_is_found_and_cut_down() -> None:
    found = next(filter(None, (run_history("engine", seed).complaints for seed in range(1, 51))))
    text = "\n".join(found)
    assert re.match(r"step \d+: Difference: ", text), text
    enough = re.search(r"^(\d+) steps are enough:$", text, re.MULTILINE)
    assert enough is not None, text
    assert int(enough[1]) <= 40, text
