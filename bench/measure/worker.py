"""One process of a subject or peer: reads "run WORKLOAD key=value ..." lines, answers each with one line of JSON.

Everything that is measured runs behind this protocol, each in a process of its own, whatever it is written in: so
subject and peers can take turns in one run, warmed up and without sharing a heap or a garbage collector. A process ends
with its input.
"""

import gc
import json
import sys
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["Numbers", "Parameters", "Workload", "measured", "serve"]

Numbers = dict[str, float]
"""What a workload answers, by name; "seconds" and "operations" where something was counted in a time."""


class Parameters:
    def __init__(self, words: list[str]) -> None:
        self._values: Final = dict(word.split("=", 1) for word in words)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number. Raises KeyError when it is not given and has no default."""
        return int(self._values[name] if default is None else self._values.get(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._values[name] if default is None else self._values.get(name, default))

    def text(self, name: str) -> str:
        """Raises KeyError when it is not given."""
        return self._values[name]


Workload = Callable[[Parameters], Numbers]


def measured(seconds: float, operations: int) -> Numbers:
    """The answer of a workload that did so many operations in such a time."""
    return {"seconds": seconds, "operations": float(operations)}


def serve(workloads: Mapping[str, Workload]) -> None:
    """Answers lines until the input ends. What a workload raises is answered as an error, and the process goes on."""
    for line in sys.stdin:
        print(json.dumps(answer(workloads, line.split())), flush=True)


def answer(workloads: Mapping[str, Workload], words: list[str]) -> Numbers | dict[str, str]:
    if len(words) < 2 or words[0] != "run" or words[1] not in workloads:
        return {"error": f"no such workload; there are {', '.join(sorted(workloads))}"}
    try:
        return workloads[words[1]](Parameters(words[2:]))
    except Exception as error:  # noqa: BLE001 - whatever it is, the harness is to hear of it
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
