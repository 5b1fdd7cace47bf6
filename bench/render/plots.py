"""The plots of a run: one PNG each, and all on one page that opens without a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import altair as alt

from bench.measure.result_rows import Row

__all__ = ["write_plots"]

OURS: Final = "purgatory"
WIDTH: Final = 460
BAR_HEIGHT: Final = 26
COLORS: Final = {
    OURS: "#1f5fb4",
    "kafka": "#c4473a",
    "netty": "#d98b2b",
    "asyncio": "#5b8c3e",
    "heapq": "#8a6bb0",
    "redis": "#b0417a",
    "echo": "#7a7a7a",
    "self": "#9fb8d8",
}
Point = dict[str, str | float]


def write_plots(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes the plots that these rows allow; returns their paths."""
    charts = {folder / f"{name}.png": chart for name, chart in all_charts(rows).items() if chart is not None}
    for path, chart in charts.items():
        chart.save(path, ppi=110)
    written = list(charts)
    if charts:
        page = folder / "latest.html"
        alt.vconcat(*charts.values()).resolve_scale(color="independent").save(page, inline=True)
        written.append(page)
    return written


@dataclass(frozen=True)
class Bars:
    """A chart of rows by name: what each is called in it. Rates and times are drawn on a logarithmic scale."""

    title: str
    axis: str
    names: dict[str, str]
    logarithmic: bool = True


LOADS: Final = {"service/event-to-result": "idle", "service/event-to-result-half-load": "half load, 1 M pending"}
BARS: Final = {
    "timers": Bars(
        "Timers: operations a second",
        "ops/s, logarithmic",
        {"timer/add-cancel": "add and cancel", "timer/add-expire": "add and expire"},
    ),
    "whole-path": Bars(
        "Whole path: operations registered and completed a second",
        "ops/s, logarithmic",
        {
            "service/columns/batch=500": "columns, batches of 500",
            "service/individual/in-flight=10000": "awaited one by one",
        },
    ),
    "latency": Bars(
        "From an event to its result at the caller",
        "µs, logarithmic",
        {f"{name}/{part}": f"{load}, {part}" for name, load in LOADS.items() for part in ("p50", "p99")},
    ),
    "memory": Bars(
        "Memory of a pending operation",
        "bytes",
        {"memory/engine": "engine", "memory/daemon": "whole daemon"},
        logarithmic=False,
    ),
    "lateness": Bars(
        "Expiry lateness, with a million pending",
        "ms",
        {f"service/expiry-lateness/{part}": part for part in ("p50", "p99")},
        logarithmic=False,
    ),
}


def all_charts(rows: Sequence[Row]) -> dict[str, Any]:
    """The charts by the name of their file; None where there are no rows for one."""
    return {"throughput": curve(rows), **{name: bars(points(rows, chart.names), chart) for name, chart in BARS.items()}}


def curve(rows: Sequence[Row]) -> Any:  # noqa: ANN401 - altair's charts have many types
    prefix = "engine/register-complete/pending="
    found: list[Point] = []
    for row in rows:
        if row.name.startswith(prefix):
            pending = float(row.name.removeprefix(prefix))
            found.append({"who": OURS, "pending": pending, "rate": row.value})
            if row.peer is not None and row.peer_value is not None:
                found.append({"who": row.peer, "pending": pending, "rate": row.peer_value})
    if not found:
        return None
    chart = alt.Chart(alt.InlineData(values=unique(found))).mark_line(point=True)
    return chart.encode(
        x=alt.X("pending:Q", scale=alt.Scale(type="log"), title="operations pending on each key, logarithmic"),
        y=alt.Y("rate:Q", scale=alt.Scale(type="log"), title="ops/s, logarithmic"),
        color=color(found),
    ).properties(width=WIDTH, height=280, title="Register and complete: cost follows completions, not watchers")


def bars(found: Sequence[Point], chart: Bars) -> Any:  # noqa: ANN401 - as `curve`
    """One bar, or point, for each who and what."""
    if not found:
        return None
    kept = unique(found)
    whats = list(dict.fromkeys(str(point["what"]) for point in kept))
    alone = len(whats) == len(kept)
    scale = alt.Scale(type="log") if chart.logarithmic else alt.Scale(zero=True)
    base = alt.Chart(alt.InlineData(values=kept)).encode(
        y=alt.Y("what:N" if alone else "who:N", title=None, sort=whats if alone else list(COLORS)),
        x=alt.X("value:Q", scale=scale, title=chart.axis, axis=alt.Axis(tickCount=6)),
        color=color(found),
    )
    mark = base.mark_point(filled=True, size=140) if chart.logarithmic else base.mark_bar()
    label = base.mark_text(align="left", dx=10).encode(
        text=alt.Text("value:Q", format=".3s" if chart.logarithmic else ".3~g")
    )
    layered = alt.layer(mark, label).properties(width=WIDTH, height=alt.Step(BAR_HEIGHT))
    if alone:
        return layered.properties(title=chart.title)
    header = alt.Header(labelAngle=0, labelAlign="left")
    return (
        layered.facet(row=alt.Row("what:N", title=None, header=header, sort=whats))
        .properties(title=chart.title)
        .resolve_scale(y="independent")
    )


def color(found: Sequence[Point]) -> alt.Color:
    """The same colour for each peer in every plot."""
    there = [name for name in COLORS if any(point["who"] == name for point in found)]
    return alt.Color("who:N", title=None, scale=alt.Scale(domain=there, range=[COLORS[name] for name in there]))


def points(rows: Sequence[Row], names: dict[str, str]) -> list[Point]:
    found: list[Point] = []
    for row in rows:
        if row.name in names:
            found.append({"who": OURS, "what": names[row.name], "value": row.value})
            if row.peer is not None and row.peer_value is not None:
                # The daemon's percentiles are compared with one median of the echo server.
                what = "two-way ping, p50" if row.name.startswith(tuple(LOADS)) else names[row.name]
                found.append({"who": row.peer, "what": what, "value": row.peer_value})
    return found


def unique(found: Sequence[Point]) -> list[Point]:
    """Without what several rows say: ours stands in the row of each peer."""
    kept: dict[tuple[object, ...], Point] = {}
    for point in found:
        kept.setdefault((point["who"], point.get("what"), point.get("pending")), point)
    return list(kept.values())
