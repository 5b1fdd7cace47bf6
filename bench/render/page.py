"""Writes the table of a run into docs/performance.md, between two markers; the rest of the page is not changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.measure.result_rows import Row, read_rows, table

__all__ = ["BEGIN", "END", "with_table", "write_table"]

BEGIN: Final = "<!-- the table of bench/results/latest.json, written by make bench -->"
END: Final = "<!-- end of the table -->"


def write_table(page: Path, results: Path, begins: str = BEGIN) -> None:
    """Replace the page's table by that of a file of results. Raises ValueError if the page has no markers.

    The rows are read back from the file because writing rounds them: page and file must agree.
    """
    page.write_text(with_table(page.read_text("utf-8"), read_rows(results), begins), "utf-8")


def with_table(text: str, rows: Sequence[Row], begins: str = BEGIN) -> str:
    """The page's text with the table of these rows. Raises ValueError if the text has no markers."""
    before, begin, rest = text.partition(begins)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {begins!r} and {END!r}")
    parts = ["Not measured yet."]
    if rows:
        parts = [f"Measured on: {'; '.join(sorted({row.machine for row in rows}))}.", table(rows)]
    shown = "\n\n".join(parts)
    return f"{before}{begins}\n\n{shown}\n\n{END}{after}"
