"""Instructions that an operation takes, counted: the same on a busy machine as on a quiet one.

Each workload of bench/counted.py runs twice under valgrind's callgrind, with a few operations and with more; the
difference of the counts, divided by that of the operations, is free of what starting up costs. Where there is no
valgrind, `perf stat` counts if the processor lets it.
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

__all__ = ["UNIT", "CountingMissing", "count", "counted_rows", "counting_tool"]

UNIT: Final = "instructions/op"
FEW: Final = 5_000
MANY: Final = 20_000
VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
PERF: Final = ("perf", "stat", "-x,", "-e", "instructions:u")


class CountingMissing(Exception):
    """Instructions cannot be counted here; the message is the line to show."""


def counted_rows(workloads: Sequence[str] = tuple(WORKLOADS)) -> list[Row]:
    """One row for each workload. Raises CountingMissing."""
    tool = counting_tool()
    name = toolchain(tool)
    rows = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        few = [pool.submit(count, tool, workload, FEW) for workload in workloads]
        many = [pool.submit(count, tool, workload, MANY) for workload in workloads]
        for place, workload in enumerate(workloads):
            each = (many[place].result() - few[place].result()) / (MANY - FEW)
            subject = workload.partition("-")[0]
            rows.append(Row(f"instructions/{workload}", subject, None, each, UNIT, None, 1, each, each, name))
            print(f"{rows[-1].name:<50} {each:>12,.0f} {UNIT}", file=sys.stderr, flush=True)
    return rows


def counting_tool() -> tuple[str, ...]:
    """The command that counts. Raises CountingMissing."""
    if not COMPILED:
        raise CountingMissing("instructions are not counted: the engine is not compiled")
    if shutil.which("valgrind"):
        return VALGRIND
    if shutil.which("perf"):
        said = subprocess.run([*PERF, "true"], capture_output=True, text=True, check=False).stderr
        if counted_by_perf(said) is not None:
            return PERF
    raise CountingMissing("instructions are not counted: there is no valgrind, and no perf that could")


def toolchain(tool: Sequence[str]) -> str:
    """What the counts depend on: they are compared only where it is the same."""
    compiler = first_line("cc", "--version").rpartition(" ")[2]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{first_line(tool[0], '--version')}, {python}, cc {compiler}, {platform.machine()}"


def first_line(*command: str) -> str:
    """What a command says first; empty when there is no such command."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n", 1)[0].strip()


def count(tool: Sequence[str], workload: str, operations: int, module: str = "bench.counted") -> int:
    """Instructions of one run. Raises CountingMissing when the tool does not say."""
    command = [*tool, sys.executable, "-m", module, workload, str(operations)]
    ran = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    found = counted_by_valgrind(ran.stderr) if tool[0] == "valgrind" else counted_by_perf(ran.stderr)
    if ran.returncode != 0 or found is None:
        raise CountingMissing(
            f"instructions are not counted: {workload} ended with {ran.returncode}: {ran.stderr[-300:]}"
        )
    return found


def counted_by_valgrind(said: str) -> int | None:
    """From "==1== Collected : 181655256"."""
    found = re.search(r"Collected\s*:\s*(\d+)", said)
    return int(found.group(1)) if found else None


def counted_by_perf(said: str) -> int | None:
    """From "181655256,,instructions:u,..."; None where it says "<not supported>"."""
    found = re.search(r"^(\d+),[^,]*,instructions", said, re.MULTILINE)
    return int(found.group(1)) if found else None
