"""Plots: throughput against the operations pending on each key, and the time that a timer takes against its size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import altair as alt

from bench.measure.result_rows import Row

__all__ = ["write_plot", "write_timer_plot"]

PREFIX: Final = "engine/register-complete/pending="
COLORS: Final = {"purgatory": "#1f5fb4", "kafka": "#c4473a", "asyncio": "#5b8c3e"}


def write_plot(rows: Sequence[Row], folder: Path) -> Path | None:
    """Write throughput.png; returns its path, or None if the rows it shows were not measured."""
    found = points(rows)
    if not found:
        return None
    shown = [name for name in COLORS if any(point["who"] == name for point in found)]
    chart = alt.Chart(alt.InlineData(values=found)).mark_line(point=True)
    path = folder / "throughput.png"
    chart.encode(
        x=alt.X("pending:Q", scale=alt.Scale(type="log"), title="operations pending on each key, logarithmic"),
        y=alt.Y("rate:Q", scale=alt.Scale(type="log"), title="ops/s, logarithmic"),
        color=alt.Color("who:N", title=None, scale=alt.Scale(domain=shown, range=[COLORS[name] for name in shown])),
    ).properties(width=460, height=280, title="Register and complete: cost follows completions, not watchers").save(
        path, ppi=110
    )
    return path


def points(rows: Sequence[Row]) -> list[dict[str, str | float]]:
    """One point per subject or peer and size. Our value is repeated in the row of each peer, but drawn once."""
    found: dict[tuple[str, float], float] = {}
    for row in rows:
        if row.name.startswith(PREFIX):
            pending = float(row.name.removeprefix(PREFIX))
            found["purgatory", pending] = row.value
            if row.peer in COLORS and row.peer_value is not None:
                found[row.peer, pending] = row.peer_value
    return [{"who": who, "pending": pending, "rate": rate} for (who, pending), rate in found.items()]


def write_timer_plot(points: list[dict[str, str | float]], path: Path) -> None:
    """Draw the median time of each operation (`median_ns`) of each `timer` over its `pending` timers."""
    chart = alt.Chart(alt.InlineData(values=points)).mark_line(point=True)
    chart.encode(
        x=alt.X("pending:Q", scale=alt.Scale(type="log"), title="timers pending"),
        y=alt.Y("median_ns:Q", scale=alt.Scale(type="log"), title="ns, median"),
        color=alt.Color("timer:N", title=None),
        column=alt.Column("operation:N", title=None, sort=["add", "cancel", "expire"]),
    ).properties(width=230, height=230).save(path, ppi=110)
