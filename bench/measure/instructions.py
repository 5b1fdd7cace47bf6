"""Counts instructions per operation, which are the same on a busy machine as on a quiet one.

Each workload of bench/counted.py runs twice under valgrind's callgrind, with few and with many operations. The
difference of the counts, divided by the difference in operations, excludes the cost of starting.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bench.counted import WORKLOADS
from bench.measure.processes import ROOT, environment
from bench.measure.result_rows import Row
from purgatory.engine import COMPILED

__all__ = ["UNIT", "CountingMissing", "count", "counted_rows"]

UNIT: Final = "instructions/op"
FEW: Final = 5_000
MANY: Final = 20_000
VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")


class CountingMissing(Exception):
    """Instructions cannot be counted here; the message is the line to show."""


def counted_rows(workloads: Sequence[str] = tuple(WORKLOADS)) -> list[Row]:
    """One row for each workload. Raises CountingMissing."""
    if not COMPILED:
        raise CountingMissing("instructions are not counted: the engine is not compiled")
    if shutil.which("valgrind") is None:
        raise CountingMissing("instructions are not counted: valgrind is not installed")
    name = toolchain()
    rows = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        few = [pool.submit(count, workload, FEW) for workload in workloads]
        many = [pool.submit(count, workload, MANY) for workload in workloads]
        for place, workload in enumerate(workloads):
            each = (many[place].result() - few[place].result()) / (MANY - FEW)
            subject = workload.partition("-")[0]
            rows.append(Row(f"instructions/{workload}", subject, None, each, UNIT, None, 1, each, each, name))
            print(f"{rows[-1].name:<50} {each:>12,.0f} {UNIT}", file=sys.stderr, flush=True)
    return rows


def toolchain() -> str:
    """The versions that the counts depend on. Rows are compared only if these are equal."""
    compiler = first_line("cc", "--version").rpartition(" ")[2]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{first_line('valgrind', '--version')}, {python}, cc {compiler}, {platform.machine()}"


def first_line(*command: str) -> str:
    """The first line of a command's output; empty if the command is not installed."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n", 1)[0].strip()


def count(workload: str, operations: int) -> int:
    """The instructions of one run. Raises CountingMissing if the run or valgrind fails."""
    # The first run in a new tree would write bytecode, and so start at another cost than the second one.
    variables = {**environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*VALGRIND, sys.executable, "-m", "bench.counted", workload, str(operations)]
    ran = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    found = re.search(r"Collected\s*:\s*(\d+)", ran.stderr)
    if ran.returncode != 0 or found is None:
        raise CountingMissing(
            f"instructions are not counted: {workload} exited with {ran.returncode}: {ran.stderr[-300:]}"
        )
    return int(found[1])
