"""The printed end of a run: a table of waits, then what was checked."""

from __future__ import annotations

import math
from typing import Final

from examples.replicated_log.ledger import Ledger
from examples.replicated_log.proof import Check

PERCENTILES: Final = (50, 95, 99)


def percentile(values: list[float], percent: int) -> float:
    """The smallest value that at least `percent` of a hundred do not exceed. `values` is sorted and not empty."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def wait_table(ledger: Ledger) -> list[str]:
    """A line for each kind and outcome: how many, and the milliseconds from asking to answer."""
    rows = [("wait", "outcome", "count", *(f"p{percent} ms" for percent in PERCENTILES), "max ms")]
    for (kind, outcome), waits in sorted(ledger.ended_ms.items()):
        waited = sorted(waits)
        times = [percentile(waited, percent) for percent in PERCENTILES]
        rows.append((kind, outcome, str(len(waited)), *(f"{ms:.1f}" for ms in (*times, waited[-1]))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def check_lines(checks: list[Check]) -> list[str]:
    """A line for each check."""
    return [f"{'ok  ' if check.holds else 'FAIL'}  {check.text}" for check in checks]
