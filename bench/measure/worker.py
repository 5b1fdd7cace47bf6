"""One process of a subject or peer: reads "run WORKLOAD key=value ..." lines, answers each with one line of JSON.

Every subject and peer runs behind this protocol in its own process, whatever language it is written in. So they can
take turns within one run, warmed up, and share no heap or garbage collector. A process exits at the end of its input.
"""

import gc
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, get_type_hints

__all__ = ["Numbers", "Workload", "measured", "on_uvloop", "resident_bytes", "serve"]

Numbers = dict[str, float]
"""The numbers that a workload returns, by name; "seconds" and "operations" if it counted operations over a time."""

Workload = Callable[..., Numbers]
"""A workload's parameters are ints, floats and strings; their annotations determine how a line is parsed."""

P = ParamSpec("P")


def measured(seconds: float, operations: int) -> Numbers:
    """The answer of a workload that performed `operations` in `seconds`."""
    return {"seconds": seconds, "operations": float(operations)}


def resident_bytes(process_id: int | None = None) -> int:
    """Resident memory of a process in bytes, by default of this one."""
    folder = "self" if process_id is None else str(process_id)
    for line in Path("/proc", folder, "status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{folder}/status has no VmRSS")


def on_uvloop(work: Callable[P, Coroutine[Any, Any, Numbers]]) -> Callable[P, Numbers]:
    """Make a workload of a coroutine function, run on uvloop like the daemon."""

    @wraps(work)
    def run(*arguments: P.args, **keywords: P.kwargs) -> Numbers:
        import uvloop  # noqa: PLC0415 - not installed for other Pythons, which run the engine only

        return uvloop.run(work(*arguments, **keywords))

    return run


def serve(workloads: Mapping[str, Workload]) -> None:
    """Answer lines until the input ends. An exception of a workload becomes an error answer, and the process
    continues.
    """
    for line in sys.stdin:
        print(json.dumps(answer(workloads, line.split())), flush=True)


def answer(workloads: Mapping[str, Workload], words: list[str]) -> Numbers | dict[str, str]:
    if len(words) < 2 or words[0] != "run" or words[1] not in workloads:
        return {"error": f"no such workload; there are {', '.join(sorted(workloads))}"}
    workload = workloads[words[1]]
    try:
        given = dict(word.split("=", 1) for word in words[2:])
        types = get_type_hints(workload)
        # Subject and peers get the same parameters; each picks those that it has.
        return workload(**{name: types[name](value) for name, value in given.items() if name in types})
    except Exception as error:  # noqa: BLE001 - whatever it is, the harness reports it
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
