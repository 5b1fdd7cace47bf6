"""A row of the results: one thing measured beside one peer, in JSON and in the table.

`ratio` says how many times better ours is than the peer (more than 1: ours is better), whatever the unit; `value` is
ours in its unit. `min` and `max` are those of the ratio over the pairs, or of the value where there is no peer.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.reach import reach_of

__all__ = ["HIGHER_IS_BETTER", "Row", "read_rows", "table", "write_rows"]

HIGHER_IS_BETTER: Final = {"ops/s", "calls/s", "calls/CPU s", "ops/CPU s"}
"""Units of which more is better; of all others less is."""


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
        """The peer's value, computed back from the median ratio."""
        if self.ratio is None or self.ratio == 0:
            return None
        return self.value / self.ratio if self.unit in HIGHER_IS_BETTER else self.value * self.ratio


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Writes rows as JSON, one to a line, so that a difference can be read."""
    lines = ",\n  ".join(json.dumps(rounded(row)) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[\n  {lines}\n]\n" if rows else "[]\n", "utf-8")


def rounded(row: Row) -> dict[str, object]:
    """The row's fields, floats to five significant digits."""
    return {field: float(f"{value:.5g}") if isinstance(value, float) else value for field, value in asdict(row).items()}


def read_rows(path: Path) -> list[Row]:
    """Rows from JSON. Raises OSError, or ValueError for what `write_rows` did not write."""
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
