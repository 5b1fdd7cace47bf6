"""Writes table and plots of a run into docs/performance.md, between two markers, and leaves all other words alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.measure.result_rows import Row, read_rows, table

__all__ = ["BEGIN", "END", "pictures_in", "with_table", "write_table"]

BEGIN: Final = "<!-- the table of bench/results/latest.json, written by make bench -->"
END: Final = "<!-- end of the table -->"
PICTURES: Final = {
    "throughput": "Throughput against what is pending on each key",
    "timers": "Timers",
    "whole-path": "Throughput of the whole path",
    "latency": "Latency, idle and under load",
    "memory": "Memory of a pending operation",
    "lateness": "Expiry lateness",
}


def write_table(page: Path, results: Path, pictures: Sequence[str] = (), begins: str = BEGIN) -> None:
    """Replaces the page's table by that of a file of results (read, since writing rounds), and its plots by these.

    Raises ValueError without the markers.
    """
    page.write_text(with_table(page.read_text("utf-8"), read_rows(results), pictures, begins), "utf-8")


def pictures_in(results: Path) -> list[str]:
    return [name for name in PICTURES if (results / f"{name}.png").exists()]


def with_table(text: str, rows: Sequence[Row], pictures: Sequence[str] = (), begins: str = BEGIN) -> str:
    """The page's text with the table of these rows and these plots. Raises ValueError when it lacks the markers."""
    before, begin, rest = text.partition(begins)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: the page should have {begins!r} and {END!r}")
    parts = ["Not measured yet."]
    if rows:
        parts = [f"Measured on: {'; '.join(sorted({row.machine for row in rows}))}.", table(rows)]
        parts += [f"![{PICTURES[name]}](../bench/results/{name}.png)" for name in pictures]
    shown = "\n\n".join(parts)
    return f"{before}{begins}\n\n{shown}\n\n{END}{after}"
