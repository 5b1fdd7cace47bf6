"""A row of the results: one measurement compared with one peer, in JSON and in the table.

`ratio` is how many times better our value is than the peer's (above 1: ours is better), whatever the unit; `value` is
ours, in its unit. `min` and `max` are the extremes of the ratio over the pairs, or of the value if the row has no peer.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.reach import reach_of

__all__ = ["HIGHER_IS_BETTER", "Row", "read_rows", "table", "write_rows"]

HIGHER_IS_BETTER: Final = {"ops/s", "calls/s", "calls/CPU s", "ops/CPU s"}
"""Units in which more is better. In all other units, less is better."""


@dataclass(frozen=True)
class Row:
    """One line of bench/results/latest.json."""

    name: str
    subject: str
    peer: str | None
    value: float
    unit: str
    ratio: float | None
    runs: int
    min: float
    max: float
    machine: str

    @property
    def key(self) -> tuple[str, str | None]:
        return self.name, self.peer

    @property
    def peer_value(self) -> float | None:
        """The peer's value, computed from our value and the median ratio."""
        if self.ratio is None or self.ratio == 0:
            return None
        return self.value / self.ratio if self.unit in HIGHER_IS_BETTER else self.value * self.ratio


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as JSON, one per line, to keep diffs readable."""
    lines = ",\n  ".join(json.dumps(rounded(row)) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[\n  {lines}\n]\n" if rows else "[]\n", "utf-8")


def rounded(row: Row) -> dict[str, object]:
    """The row's fields, with floats rounded to five significant digits."""
    return {field: float(f"{value:.5g}") if isinstance(value, float) else value for field, value in asdict(row).items()}


def read_rows(path: Path) -> list[Row]:
    """Read rows from JSON. Raises OSError, or ValueError for a file not written by `write_rows`."""
    try:
        return [Row(**row) for row in json.loads(path.read_text("utf-8"))]
    except TypeError as error:
        raise ValueError(f"{path} does not hold rows of results: {error}") from None


def table(rows: Sequence[Row]) -> str:
    head = "| what | peer | ours | ratio | of the pairs | reach | |\n|---|---|---|---|---|---|---|\n"
    return head + "\n".join(_line(row) for row in rows)


def _line(row: Row) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:,.3g} x"
    spread = f"{row.min:,.3g} to {row.max:,.3g}" if row.runs > 1 else "one run"
    reach = reach_of(row.name, row.peer)
    wanted = "" if reach is None else str(reach)
    verdict = "" if reach is None else "yes" if reach.is_met(row.value, row.ratio) else "**no**"
    cells = (row.name, row.peer or "", figure(row.value, row.unit), ratio, spread, wanted, verdict)
    return f"| {' | '.join(cells)} |"


def figure(value: float, unit: str) -> str:
    """A value with its unit, to three significant digits."""
    for limit, divisor, prefix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit and unit in HIGHER_IS_BETTER | {"B", "instructions/op"}:
            return f"{value / divisor:.3g} {prefix}{unit}" if unit == "B" else f"{value / divisor:.3g} {prefix} {unit}"
    return f"{value:.3g} {unit}"
