"""Random histories of calls, run once through the engine call by call and once as rows through shards.

Both must give the same outcomes, times, codes and items. In full: `python -m tests.pipeline stream-histories`.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

from tests.pipeline.stream.shard_drive import Drive
from tests.pipeline.stream.simulated_history import SimulatedHistory


class DrivenHistory(NamedTuple):
    """The result of one seed. `differing` has the outcomes that only one of the two ways produced."""

    seed: int
    rows: int
    outcomes: int
    differing: list[str]
    how: str


def driven(seed: int, step_count: int) -> DrivenHistory:
    """Run the history of a seed, cut into batches at random (reproducible by seed)."""
    history = SimulatedHistory.of_seed(seed, step_count)
    rng = random.Random(seed)
    shards, delay_ms, strays = rng.choice((1, 2, 4, 16)), rng.choice((0, 1, 50, 3_000)), rng.random() < 0.5
    drive = Drive(history, rng, shards=shards, delay_ms=delay_ms, strays=strays)
    how = f"{shards} shards, a delay of {delay_ms} ms" + (", and stray rows" if strays else "")
    assert drive.late == drive.strays_late, f"seed {seed}, {how}: {drive.late} rows late, {drive.strays_late} sent so"
    bad = history.refused_events + drive.strays_malformed
    assert drive.malformed == bad, f"seed {seed}, {how}: {drive.malformed} rows set aside, {bad} were bad"
    assert not any(shard.pending for shard in drive.shards), f"seed {seed}, {how}: operations are still pending"
    found = Counter(map(repr, drive.outcomes()))
    found.subtract(map(repr, history.outcomes))
    differing = sorted(outcome for outcome, surplus in found.items() if surplus)
    return DrivenHistory(seed, len(history.rows), len(history.outcomes), differing, how)


def run(histories: int, steps: int, first_seed: int, processes: int) -> int:
    """Run many histories and print how many are equal. Returns the exit code."""
    began, rows, outcomes, equal = time.monotonic(), 0, 0, 0
    seeds = range(first_seed, first_seed + histories)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for life in pool.imap(partial(driven, step_count=steps), seeds):
            rows += life.rows
            outcomes += life.outcomes
            equal += not life.differing
            if life.differing:
                print(f"seed {life.seed} ({life.how}): {len(life.differing)} differ, such as {life.differing[:2]}")
    print(
        f"{equal} of {histories} histories of {steps:,} steps equal ({equal / histories:.2%}):"
        f" {outcomes:,} outcomes of {rows:,} rows in {time.monotonic() - began:.0f} s"
    )
    return 0 if equal == histories else 1
