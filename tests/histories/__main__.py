"""Runs histories of a world, one seed after another, and prints the pairs that they have seen."""

import argparse
import itertools
import math
import multiprocessing
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.histories.history import WORLDS, Report, run_history, world_of
from tests.histories.planted import find_all
from tests.histories.tables import FAULTS, FEATURES, Seen

COMPLAINTS_PRINTED_MAX = 10
TRACE_MASK = 0xFFFFFFFF


def reports_of(given: argparse.Namespace, faults: frozenset[str]) -> Iterator[Report]:
    """Yield the reports of the seeds in order; `jobs` run at a time. None is begun after the time is up."""
    until_s = time.monotonic() + given.seconds
    seeds = itertools.count(given.seed) if given.count is None else range(given.seed, given.seed + given.count)
    left = itertools.takewhile(lambda _: time.monotonic() < until_s, seeds)
    if given.jobs == 1:
        yield from (run_history(given.world, seed, faults) for seed in left)
        return
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        while some := list(itertools.islice(left, 4 * given.jobs)):
            yield from pool.map(run_history, itertools.repeat(given.world), some, itertools.repeat(faults))


def print_failure(given: argparse.Namespace, report: Report) -> None:
    print(f"seed {report.seed} FAILED after {report.seconds:.1f} s")
    for complaint in report.complaints[:COMPLAINTS_PRINTED_MAX]:
        print(f"  {complaint}")
    if len(report.complaints) > COMPLAINTS_PRINTED_MAX:
        print(f"  and {len(report.complaints) - COMPLAINTS_PRINTED_MAX} more")
    print(f"replay with: python -m tests.histories --world {given.world} --seed {report.seed} --count 1", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    worlds = "\n".join(f"  {name:<8} {what}" for name, what in WORLDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.histories",
        description=__doc__,
        epilog=f"worlds:\n{worlds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--world", choices=WORLDS)
    what.add_argument("--planted", action="store_true", help="plant one fault after another in a copy, and find it")
    parser.add_argument(
        "--faults",
        "--kills",
        help="comma-separated rows of the table of faults (default: all of the world); for `crash` and `pair` also how "
        "many to cause at least",
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="first seed (default: random)")
    parser.add_argument("--seconds", type=float, help="begin no history after this time (default: 60, without --count)")
    parser.add_argument("--count", type=int, help="how many seeds (default: as many as the time allows)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    given = parser.parse_args(arguments)
    if given.seconds is None:
        given.seconds = 60.0 if given.count is None else float("inf")
    if (given.faults or "").isdecimal():
        per_history = getattr(world_of(given.world), "FAULTS_PER_HISTORY", 0) if given.world else 0
        if not per_history:
            parser.error("only the worlds crash and pair cause a number of faults")
        given.faults, given.count = None, math.ceil(int(given.faults) / per_history)
    unknown = set((given.faults or "none").split(",")) - FAULTS.keys()
    if unknown:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the histories. The last line is the trace: one hex word, a hash over the traces of all histories."""
    given = parse(arguments)
    if given.planted:
        return min(1, find_all(given.seconds))
    world = world_of(given.world)
    faults = frozenset(world.FAULTS if given.faults is None else given.faults.split(","))
    print(f"world {given.world}, seed {given.seed}", flush=True)
    began_s, seen, figures, trace, histories = time.monotonic(), Seen(), Counter[str](), 0, 0
    for report in reports_of(given, faults):
        histories += 1
        figures += report.figures
        seen.pairs.update(report.pairs)
        trace = (trace * 31 + report.trace) & TRACE_MASK
        if report.complaints:
            print_failure(given, report)
            return 1
    columns = [*world.PATHS, *sorted(faults)]
    print(seen.table(world.FEATURES, columns))
    print("not drawn by this world:", ", ".join(one for one in FEATURES if one not in world.FEATURES))
    if missing := seen.missing(world.FEATURES, columns):
        print("drawn but not seen:", "; ".join(f"{feature} with {column}" for feature, column in missing))
    print(", ".join(f"{count} {name}" for name, count in sorted(figures.items())))
    print(f"{histories} histories in {time.monotonic() - began_s:.1f} s")
    print(f"{trace:08x}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
