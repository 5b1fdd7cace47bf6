"""Command line: `python -m tests.fuzz --requests 1000000 --seed 7 [--target daemon]`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from collections.abc import Sequence

from purgatory.engine import COMPILED
from tests.fuzz.tally import Tally
from tests.fuzz.targets import fuzz_daemon, fuzz_servicer

WARM_UP_SHARE = 0.3
SERVICER_SHARE = 0.2
"""Of the requests, where both targets are fuzzed: the daemon uses two cores, the servicer one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzzes; prints what was tried and found; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    parser.add_argument("--requests", type=int, default=50_000, help="how many (default 50000)")
    parser.add_argument("--target", choices=("servicer", "daemon", "both"), default="both")
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}, {'compiled' if COMPILED else 'uncompiled'} engine", flush=True)
    tally = Tally()
    began = time.monotonic()
    share = {"servicer": 1.0, "daemon": 0.0, "both": SERVICER_SHARE}[given.target]
    if share > 0:
        tally.merge(asyncio.run(fuzz_servicer(seed, round(given.requests * share))))
    if share < 1:
        warm_up = round(given.requests * (1 - share) * WARM_UP_SHARE)
        rest = round(given.requests * (1 - share)) - warm_up
        tried, memory = asyncio.run(fuzz_daemon(seed, rest, warm_up=warm_up, check_memory=True))
        tally.merge(tried)
        print(f"memory of the daemon: {memory}")
    seconds = time.monotonic() - began
    print(tally.table())
    print(f"{tally.total:,} requests in {seconds:.1f} s, {tally.total / seconds:,.0f}/s")
    for finding in tally.findings:
        print(f"FOUND: {finding}\n")
    print(f"{len(tally.findings)} findings; again with: python -m tests.fuzz --seed {seed} --requests {given.requests}")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
