"""`make crash ARGS="--kills 200 --seed 7"`."""

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.crash.crash_run import CrashRun
from tests.kit.faults import LimitedDisk, NotPossibleHere, Power

ASYNC_SHARE: Final = 4
POWER_SHARE: Final = 10
ROOM_SHARE: Final = 10
"""One async kill, power cut, or kill on a full disk per this number of kills in sync mode."""


def run(title: str, kills: int, life: CrashRun) -> None:
    began_s = time.monotonic()
    tally = asyncio.run(life.run(kills))
    print(
        f"{title}: {tally.kills} kills, {tally.operations} operations, {tally.repeats} results sent again, "
        f"{tally.refused_batches} batches refused; the caller with an outbox: {tally.outbox_kills} kills, "
        f"{tally.outbox_waits} waits; {time.monotonic() - began_s:.0f} s",
        flush=True,
    )


def main() -> None:
    """Run each kind of crash test in turn. A broken rule raises."""
    parser = argparse.ArgumentParser("python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("sync", given.kills, CrashRun(folder / "sync", given.seed))
        run("async", given.kills // ASYNC_SHARE, CrashRun(folder / "async", given.seed, "async"))
        try:
            power = Power(folder / "shim")
            run("power cuts", given.kills // POWER_SHARE, CrashRun(folder / "power", given.seed, power=power))
        except NotPossibleHere as error:
            print(f"power cuts: SKIPPED, {error}", flush=True)
        try:
            room = LimitedDisk(folder / "room" / "disk")
            run("full disks", given.kills // ROOM_SHARE, CrashRun(folder / "room", given.seed, room=room))
        except NotPossibleHere as error:
            print(f"full disks: SKIPPED, {error}", flush=True)
    print("lost: 0, ended twice: 0, too early: 0")


if __name__ == "__main__":
    main()
