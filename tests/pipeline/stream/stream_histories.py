"""The simulator's histories, once through the engine call by call and once as rows through shards.

    python -m tests.pipeline.stream.stream_histories --histories 200 --steps 10000 [--seed 7 --processes 2]

says how many of them have the same outcomes, times, codes and items, and ends with 1 if any has not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

from tests.pipeline.stream.shard_drive import Drive
from tests.pipeline.stream.simulated_history import SimulatedHistory


class DrivenHistory(NamedTuple):
    """What came of a seed: its steps are the same in both ways, `differing` has the outcomes of one way alone."""

    seed: int
    rows: int
    outcomes: int
    differing: list[str]
    how: str


def driven(seed: int, step_count: int) -> DrivenHistory:
    """A seed's history, cut into batches as the seed says."""
    history = SimulatedHistory.of_seed(seed, step_count)
    rng = random.Random(seed)
    shards, delay_ms, strays = rng.choice((1, 2, 4, 16)), rng.choice((0, 1, 50, 3_000)), rng.random() < 0.5
    drive = Drive(history, rng, shards=shards, delay_ms=delay_ms, strays=strays)
    how = f"{shards} shards, a delay of {delay_ms} ms" + (", and stray rows" if strays else "")
    assert drive.late == drive.strays_late, f"seed {seed}, {how}: {drive.late} rows late, {drive.strays_late} sent so"
    bad = history.refused_events + drive.strays_malformed
    assert drive.malformed == bad, f"seed {seed}, {how}: {drive.malformed} rows set aside, {bad} were bad"
    assert not any(shard.pending for shard in drive.shards), f"seed {seed}, {how}: something still waits"
    found = Counter(map(repr, drive.outcomes()))
    found.subtract(map(repr, history.outcomes))
    differing = sorted(outcome for outcome, surplus in found.items() if surplus)
    return DrivenHistory(seed, len(history.rows), len(history.outcomes), differing, how)


def main() -> int:
    """Drives histories and says what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    began, rows, outcomes, equal = time.monotonic(), 0, 0, 0
    seeds = range(options.seed, options.seed + options.histories)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for life in pool.imap(partial(driven, step_count=options.steps), seeds):
            rows += life.rows
            outcomes += life.outcomes
            equal += not life.differing
            if life.differing:
                print(f"seed {life.seed} ({life.how}): {len(life.differing)} differ, such as {life.differing[:2]}")
    print(
        f"{equal} of {options.histories} histories of {options.steps:,} steps equal ({equal / options.histories:.2%}):"
        f" {outcomes:,} outcomes of {rows:,} rows in {time.monotonic() - began:.0f} s"
    )
    return 0 if equal == options.histories else 1


if __name__ == "__main__":
    sys.exit(main())
