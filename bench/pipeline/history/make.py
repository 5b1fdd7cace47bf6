"""Makes an archive: `python -m bench.pipeline.history.make FOLDER OPERATIONS RUNS HOURS`."""

import json
import multiprocessing
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from bench.pipeline.history.cluster import Cluster
from bench.pipeline.history.plan import Plan

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
    (out / TRUTH).parent.mkdir(parents=True)
    (out / TRUTH).write_text(json.dumps({"operations": plan.operations, "hours": plan.hours}), "utf-8")
    return sum(counted, Counter())


def _make_run(plan: Plan, index: int, out: str) -> Counter[int]:
    cluster = Cluster(plan.run(index), out)
    cluster.play()
    return cluster.waits_ms


if __name__ == "__main__":
    folder, operations, runs, hours = sys.argv[1:]
    make_history(Plan(int(operations), int(runs), hours=int(hours)), Path(folder), os.cpu_count() or 1)
