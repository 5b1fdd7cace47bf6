"""A small part of `make sim-long`, and tests of the command: repeatable traces, planted bugs found.

Without a compiled simulator in .build/simulator, or on the uncompiled build, only a few steps are run.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator import build

BLOCKS = 4
SECONDS_MAX = 300


def simulate(where: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def is_compiled() -> bool:
    """Whether a current compiled simulator exists, and this is not the run on the uncompiled build."""
    return os.environ.get("PURGATORY_BUILD") != "pure" and build.is_current() and any(build.BUILT.glob("*.so"))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_engine_and_oracle_agree(block: int) -> None:
    """Engine and oracle agree over 400,000 steps. Each block has ten seeds, or one short one when uncompiled."""
    where, seeds, steps = (build.BUILT, 10, 10_000) if is_compiled() else (build.ROOT, 1, 1_000)
    first = 1 + block * seeds
    run = simulate(where, "--seed", str(first), "--seeds", str(seeds), "--steps", str(steps))
    assert run.returncode == 0, run.stdout + run.stderr
    counted = re.search(r"^(\d+) steps, ", run.stdout, re.MULTILINE)
    assert counted is not None, run.stdout
    assert int(counted[1]) >= seeds * steps, run.stdout


@pytest.mark.slow
def test_trace_is_repeatable() -> None:
    """The last line is a hex word that depends only on the seeds, not on the number of processes."""
    few = ("--seeds", "3", "--steps", "600")
    runs = [simulate(build.ROOT, "--seed", seed, *few) for seed in ("7", "8")]
    runs.append(simulate(build.ROOT, "--seed", "7", "--processes", "2", *few))
    first, other, again = [run.stdout.splitlines()[-1] for run in runs]
    assert re.fullmatch("[0-9a-f]{8}", first)
    assert first == again != other


@pytest.mark.slow
def test_compiled_and_uncompiled_live_the_same_life() -> None:
    """The compiled simulator has the same trace as the sources."""
    if not is_compiled():
        pytest.skip("the simulator is not compiled here; `make sim` does it")
    few = ("--seed", "7", "--steps", "2000")
    assert simulate(build.BUILT, *few).stdout.splitlines()[-1] == simulate(build.ROOT, *few).stdout.splitlines()[-1]


LOWERED = """

def _lowered(self, offset):
    return _told(self, offset - 1 if offset == 7 else offset)

_told, Partition.{method} = Partition.{method}, _lowered
"""
PLANTED = {
    "purgatory/engine/marks/partition.py": LOWERED.format(method="raise_high_watermark"),
    "tests/engine/oracle/partition.py": LOWERED.format(method="set_high_watermark"),
}
"""Text appended to a module, which makes it read a high watermark of 7 as 6."""


@pytest.mark.slow
@pytest.mark.parametrize("path", PLANTED)
def test_planted_bug_is_found_and_cut_down(path: str, tmp_path: Path) -> None:
    """A faulty engine or oracle soon differs; seed, step and at most 40 steps to reproduce it are printed."""
    build.copy_sources(tmp_path)
    with (tmp_path / path).open("a", encoding="utf-8") as module:
        module.write(PLANTED[path])
    run = simulate(tmp_path, "--seed", "1", "--seeds", "50", "--steps", "1000")
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"^seed \d+: step \d+: Difference: ", run.stdout, re.MULTILINE), run.stdout
    enough = re.search(r"^(\d+) steps are enough:$", run.stdout, re.MULTILINE)
    assert enough is not None, run.stdout
    assert int(enough[1]) <= 40, run.stdout
    assert "replay with: python -m tests.simulator --seed" in run.stdout
