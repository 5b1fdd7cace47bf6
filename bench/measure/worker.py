"""One process of a subject or peer: reads "run WORKLOAD key=value ..." lines, answers each with one line of JSON.

Everything that is measured runs behind this protocol, each in a process of its own, whatever it is written in: so
subject and peers can take turns in one run, warmed up and without sharing a heap or a garbage collector. A process ends
with its input.
"""

import gc
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, get_type_hints

import uvloop

__all__ = ["Numbers", "Workload", "measured", "on_uvloop", "resident_bytes", "serve"]

Numbers = dict[str, float]
"""What a workload answers, by name; "seconds" and "operations" where something was counted in a time."""

Workload = Callable[..., Numbers]
"""Its parameters are whole numbers, floats and texts, and annotated as such: that is how a line is read."""

P = ParamSpec("P")


def measured(seconds: float, operations: int) -> Numbers:
    """The answer of a workload that did so many operations in such a time."""
    return {"seconds": seconds, "operations": float(operations)}


def resident_bytes(process_id: int | None = None) -> int:
    """Resident memory of a process, by default of this one."""
    folder = "self" if process_id is None else str(process_id)
    for line in Path("/proc", folder, "status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{folder}/status has no VmRSS")


def on_uvloop(work: Callable[P, Coroutine[Any, Any, Numbers]]) -> Callable[P, Numbers]:
    """Makes a workload of a coroutine function; it runs on the event loop that the daemon runs on."""

    @wraps(work)
    def run(*arguments: P.args, **keywords: P.kwargs) -> Numbers:
        return uvloop.run(work(*arguments, **keywords))

    return run


def serve(workloads: Mapping[str, Workload]) -> None:
    """Answers lines until the input ends. What a workload raises is answered as an error, and the process goes on."""
    for line in sys.stdin:
        print(json.dumps(answer(workloads, line.split())), flush=True)


def answer(workloads: Mapping[str, Workload], words: list[str]) -> Numbers | dict[str, str]:
    if len(words) < 2 or words[0] != "run" or words[1] not in workloads:
        return {"error": f"no such workload; there are {', '.join(sorted(workloads))}"}
    workload = workloads[words[1]]
    try:
        given = dict(word.split("=", 1) for word in words[2:])
        types = get_type_hints(workload)
        # Subject and peers are given the same words; each takes those that it has parameters for.
        return workload(**{name: types[name](value) for name, value in given.items() if name in types})
    except Exception as error:  # noqa: BLE001 - whatever it is, the harness reports it
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
