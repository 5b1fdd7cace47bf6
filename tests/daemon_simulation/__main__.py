"""Command line: `python -m tests.daemon_simulation --seed 7 [--seeds 200 --jobs 2]`."""

import argparse
import multiprocessing
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.daemon_simulation.simulated_day import DayReport, simulate_seed

PRINTED_MAX = 10


def reports_of(seeds: Sequence[int], jobs: int) -> Iterator[DayReport]:
    """Yield the reports of these seeds in order; `jobs` run at a time, each in its own process."""
    if jobs == 1:
        yield from map(simulate_seed, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(simulate_seed, seeds)


def show(report: DayReport) -> None:
    print(f"seed {report.plan.seed} FAILED: {report.plan.describe()}")
    for complaint in report.complaints[:PRINTED_MAX]:
        print(f"  {complaint}")
    if len(report.complaints) > PRINTED_MAX:
        print(f"  and {len(report.complaints) - PRINTED_MAX} more")
    print(f"replay with: python -m tests.daemon_simulation --seed {report.plan.seed}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.daemon_simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: a random one)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from the first one on (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1; a day waits more than it works)")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    given = parser.parse_args(arguments)
    first = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"seed {first}", flush=True)
    began = time.monotonic()
    outcomes: Counter[str] = Counter()
    waits = faults = lost = failed = 0
    for report in reports_of(range(first, first + given.seeds), given.jobs):
        if given.verbose or given.seeds == 1:
            print(f"seed {report.plan.seed}: {report.plan.describe()}", flush=True)
        outcomes.update(report.outcomes)
        waits, faults, lost = waits + report.plan.operations, faults + report.faults, lost + report.sessions_lost
        if report.complaints:
            failed += 1
            show(report)
    print(
        f"{given.seeds} seeds in {time.monotonic() - began:.0f} s, {failed} failed: {waits} waits, {faults} faults, "
        f"{lost} waits lost their session"
    )
    print(", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
