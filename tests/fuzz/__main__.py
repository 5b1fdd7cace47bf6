"""Command line: `python -m tests.fuzz --requests 1000000 --seed 7 [--target daemon]`."""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from purgatory.engine import COMPILED
from tests.fuzz.crowd import fuzz_crowd
from tests.fuzz.tally import Tally
from tests.fuzz.targets import fuzz_daemon, fuzz_servicer
from tests.fuzz.without_network import fuzz_direct

WARM_UP_SHARE = 0.3
SERVICER_SHARE = 0.2
"""Of the requests, where both targets are fuzzed: the daemon uses two cores, the servicer one."""

CROWD_SHARE = 0.1
REQUESTS_PER_LIFE = 5_000

TARGETS = ("servicer", "daemon", "direct", "crowd")


def fuzz_over_grpc(seed: int, requests: int, targets: Sequence[str]) -> Tally:
    """So many requests to the servicer, the daemon, or both; prints how the daemon's memory went."""
    tally = Tally()
    share = 0.0 if "servicer" not in targets else SERVICER_SHARE if "daemon" in targets else 1.0
    of_servicer = round(requests * share)
    if of_servicer:
        asyncio.run(fuzz_servicer(seed, of_servicer, tally))
    if share < 1:
        warm_up = round((requests - of_servicer) * WARM_UP_SHARE)
        memory = asyncio.run(fuzz_daemon(seed, requests - of_servicer - warm_up, tally, warm_up=warm_up))
        print(f"memory of the daemon: {memory}")
    return tally


def fuzz_crowds(seed: int, requests: int) -> Tally:
    """Ten callers at once, over many lives of daemons at tiny limits: in memory, and with both modes of the journal."""
    tally = Tally()
    lives = max(1, requests // REQUESTS_PER_LIFE // 3)
    for journal in (None, "sync", "async"):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(fuzz_crowd(Path(folder), seed, lives, REQUESTS_PER_LIFE, tally, journal))
    return tally


def main() -> int:
    """Prints what was sent and found. Exit code 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    parser.add_argument("--requests", type=int, default=50_000, help="how many, and cases for direct (default 50000)")
    parser.add_argument("--target", choices=(*TARGETS, "all"), default="all")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}, {'compiled' if COMPILED else 'uncompiled'} engine", flush=True)
    targets = TARGETS if given.target == "all" else (given.target,)
    findings: list[str] = []
    if "direct" in targets:
        began = time.monotonic()
        tried = fuzz_direct(seed, given.requests)
        seconds = time.monotonic() - began
        print(f"host called directly: {tried.total():,} cases in {seconds:.1f} s, {tried.total() / seconds:,.0f}/s")
    runs: list[Callable[[], Tally]] = []
    if set(targets) & {"servicer", "daemon"}:
        runs.append(lambda: fuzz_over_grpc(seed, given.requests, targets))
    if "crowd" in targets:
        crowd = given.requests if targets == ("crowd",) else round(given.requests * CROWD_SHARE)
        runs.append(lambda: fuzz_crowds(seed, crowd))
    for run in runs:
        began = time.monotonic()
        tally = run()
        seconds = time.monotonic() - began
        print(tally.table())
        print(f"{tally.total:,} requests in {seconds:.1f} s, {tally.total / seconds:,.0f}/s")
        findings += tally.findings
    for finding in findings:
        print(f"FOUND: {finding}\n")
    print(f"{len(findings)} findings; again with: python -m tests.fuzz --seed {seed} --requests {given.requests}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
