"""`make soak ARGS="--minutes 120 --seed 7"`."""

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.soak.soak_run import FILES_GROWTH_MAX, MEMORY_GROWTH_MAX, Sample, SoakRun

INTERVAL_S: Final = 10.0


def show(sample: Sample) -> None:
    print(f"{sample.at_s:>8.0f} s {sample.memory_kb / 1024:>8.1f} MB {sample.files:>5} files", flush=True)


def main() -> int:
    """Runs the soak. A broken rule raises; memory or open files that grew end it with 1."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--places", type=int, default=2, help="half as many as callers at a time")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="purgatory-soak-") as folder:
        soak = SoakRun(Path(folder), given.seed, given.places)
        asyncio.run(soak.run(given.minutes * 60, INTERVAL_S, show))
    print("\n".join(f"{count:>10} {what}" for what, count in sorted(soak.tally.items())))
    print("lost: 0, ended twice: 0, left behind: 0")
    if not soak.is_long_enough:
        print("memory and open files: not judged, the run is too short")
        return 0
    memory, files = soak.memory_growth, soak.files_growth
    print(f"at the end, beside after 10 minutes: memory x {memory:.3f} (at most {MEMORY_GROWTH_MAX}), "
          f"open files x {files:.2f} (at most {FILES_GROWTH_MAX})")  # fmt: skip
    return 0 if memory <= MEMORY_GROWTH_MAX and files <= FILES_GROWTH_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
