"""Makes the archive of a plan, run by run: `python -m tests.pipeline.history.make 400000 .build/history --runs 160`."""

import argparse
import json
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.pipeline.history.cluster import Cluster
from tests.pipeline.history.plan import Plan

TRUTH: Final = Path("_truth") / "truth.json"
"""Written last: with it, a history is complete. Readers of archives skip folders that begin with an underscore."""


def make_history(plan: Plan, out: Path, processes: int = 1) -> Counter[int]:
    """Makes all runs and the truth; returns how many produces needed how many ms, without a timeout."""
    arguments = [plan] * plan.runs, range(plan.runs), [str(out)] * plan.runs
    if processes == 1:
        counted = list(map(_make_run, *arguments))
    else:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            counted = list(pool.map(_make_run, *arguments))
    (out / TRUTH).parent.mkdir(parents=True, exist_ok=True)
    (out / TRUTH).write_text(json.dumps({"operations": plan.operations, "hours": plan.hours}), "utf-8")
    return sum(counted, Counter())


def _make_run(plan: Plan, index: int, out: str) -> Counter[int]:
    cluster = Cluster(plan.run(index), out)
    cluster.play()
    return cluster.waits_ms


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--hours", type=int, default=24)
    given = parser.parse_args()
    make_history(Plan(given.operations, given.runs, hours=given.hours), given.out, os.cpu_count() or 1)
