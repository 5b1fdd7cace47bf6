"""The steps of an engine's tape, with their times and numbers of records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from purgatory.engine.calls import EXTEND
from purgatory_pipeline.engine_rows.row_chunk import Column

NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class TapeSteps:
    """Steps of one kind, in order; each takes the next `count` records of that kind."""

    call: Column
    time: Column
    code: Column
    count: Column


NO_STEPS: Final = TapeSteps(NOTHING, NOTHING, NOTHING, NOTHING)


def steps(call: Column, time: Column, code: Column | int, count: Column | int = 1) -> TapeSteps:
    """A single code or count holds for all steps."""
    rows = len(call)
    codes = np.full(rows, code) if isinstance(code, int) else code
    return TapeSteps(call, time, codes, np.full(rows, count) if isinstance(count, int) else count)


def merged(parts: Sequence[TapeSteps], *, by_time: bool) -> tuple[list[int], list[int], list[int]]:
    """Codes, times and counts of all steps by call, or by time and then call.

    Neighbours with the same code and instant become one step, but extensions do not: each has its own timeout.
    """
    call, time, code, count = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("call", "time", "code", "count")
    )
    # By call is the recorded order, which an unchanged replay must keep. Under a policy some steps move in time (late
    # progress, earlier expirations), so time decides, and calls only among steps of the same instant.
    order = np.lexsort((call, time)) if by_time else np.argsort(call, kind="stable")
    time, code, count = time[order], code[order], count[order]
    if not len(order):
        return [], [], []
    is_next = (time[1:] != time[:-1]) | (code[1:] != code[:-1]) | (code[1:] == EXTEND)
    first = np.flatnonzero(np.concatenate([[True], is_next]))
    return code[first].tolist(), time[first].tolist(), np.add.reduceat(count, first).tolist()
