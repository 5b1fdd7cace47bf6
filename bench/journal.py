"""Measures what the journal costs the batched path: two real daemons side by side, one with `--data-dir`, in turn.

    python -m bench.journal
    python -m bench.journal --mode async --in-flight 16

The work, and what is printed, are those of `bench.archive`, with batches of 500.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.archive import Cost, Daemon, Work, run
from purgatory.engine import COMPILED


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=500, help="operations in a message")
    parser.add_argument("--operations", type=int, default=200_000, help="operations of a run")
    parser.add_argument("--in-flight", type=int, default=16, help="batches that are under way at a time")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs, after one that does not count")
    parser.add_argument("--mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--folder", type=Path, help="where to keep the journal: on the disk that is to be measured")
    given = parser.parse_args()
    batches = max(given.in_flight, given.operations // given.batch)
    print(f"engine: {'compiled' if COMPILED else 'UNCOMPILED'}; {batches} batches of {given.batch:,} a run")
    with tempfile.TemporaryDirectory(prefix="bench-journal-", dir=given.folder) as name:
        for part in ("plain", "kept"):
            Path(name, part).mkdir()
        quiet = ("--log-level", "warning")
        plain = Daemon(Path(name, "plain"), *quiet)
        kept = Daemon(Path(name, "kept"), *quiet, "--data-dir", str(Path(name, "data")), "--journal-mode", given.mode)
        pairs: list[tuple[Cost, Cost]] = []
        try:
            for number in range(given.pairs + 1):
                work = Work(f"run-{number}", batches, given.batch)
                pairs.append((run(plain, work, given.in_flight), run(kept, work, given.in_flight)))
        finally:
            plain.stop()
            kept.stop()
    show(pairs[1:])


def show(pairs: list[tuple[Cost, Cost]]) -> None:
    """Rates and their ratio, and what it takes of the processor."""
    rates = [[cost.operations / cost.wall_s for cost in column] for column in zip(*pairs, strict=True)]
    ratios = [kept / plain for plain, kept in zip(*rates, strict=True)]
    print(
        f"  without {statistics.median(rates[0]):,.0f} ops/s, with {statistics.median(rates[1]):,.0f}: "
        f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    processor = statistics.median(kept.all_s / plain.all_s for plain, kept in pairs)
    print(f"  processor time of the daemon: {processor:.2f} x")


if __name__ == "__main__":
    main()
