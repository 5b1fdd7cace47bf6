"""The appearance of plots: a shared Vega-Lite configuration, colours, axes, and the data of a plot.

Colours are CSS variables (page.css) that Vega's SVG renderer passes through, so a plot follows light, dark and print
styles without being redrawn. Legends are part of the page, not of the drawing, so that they can wrap and be read by
screen readers.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any, Final, Literal, TypeVar

import altair as alt
import pandas as pd

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import LegendEntry, Plot

Channel = TypeVar("Channel", alt.X, alt.Y)
Values = list[dict[str, Any]]
Span = tuple[datetime, datetime]
"""The time range of plots: the same for all plots of a page, so that they can be compared."""

OUTCOME_COLOURS: Final = {
    "satisfied": "var(--satisfied)",
    "expired": "var(--expired)",
    "failed": "var(--failed)",
    "cancelled": "var(--cancelled)",
    "shutting_down": "var(--shutting-down)",
    "refused": "var(--refused)",
    "open": "var(--quiet)",
}
CONFIG: Final[dict[str, Any]] = json.loads(files(__package__).joinpath("vega_config.json").read_text("utf-8"))

SHORTEST_MS: Final = 1.0
"""Logarithmic scales begin here, since the daemon counts in milliseconds; a wait of 0 ms is drawn at 1 ms."""

TIME_TICKS_MAX: Final = 9
_TIME_STEPS_MS: Final = (
    *(seconds * 1_000 for seconds in (1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200)),
    *(days * 86_400_000 for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_TIME_LABEL: Final = (
    "utcFormat(datum.value, utcseconds(datum.value) ? '%H:%M:%S' : "
    "utchours(datum.value) + utcminutes(datum.value) ? '%H:%M' : '%-d %b')"
)
SHARE_LABEL: Final = "format(datum.value * 100, '.6~r') + '\u00a0%'"
_MS_LABEL: Final = (
    "datum.value >= 3600000 ? datum.value / 3600000 + ' h' : datum.value >= 60000 ? datum.value / 60000 + ' min' : "
    "datum.value >= 1000 ? datum.value / 1000 + ' s' : datum.value + ' ms'"
)
_STEPS_MS: Final = (
    *(factor * 10**power for power in range(4) for factor in (1, 2, 5)),
    *(10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 36_000_000),
    *(86_400_000, 864_000_000),
)
_BIG_STEPS_MS: Final = {1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 864_000_000}


def plot(
    chart: alt.Chart | alt.LayerChart,
    *,
    title: str,
    description: str,
    height: int,
    note: str = "",
    legend: Sequence[LegendEntry] = (),
) -> Plot:
    """A chart with the width of its container and the shared configuration."""
    spec = chart.properties(
        width="container", height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding")
    )
    whole = {**spec.to_dict(validate=False), "config": CONFIG, "description": description}
    return Plot(title, whole, description, note, tuple(legend))


def over_time(
    values: Iterable[Mapping[Any, object]], span: Span, height: alt.Y, colours: Mapping[str, str]
) -> alt.Chart:
    """A chart of rows along the archive's time axis, coloured by their `word`; tooltips may show `when`."""
    when = "utcFormat(datum.at, '%-d %b %H:%M')"
    base: alt.Chart = alt.Chart(data(values)).transform_calculate(when=when)
    return base.encode(x=time_axis(span), y=height, color=by_word(colours))


def layered(*charts: alt.Chart) -> alt.LayerChart:
    return alt.LayerChart(layer=list(charts))


def data(values: Iterable[Mapping[Any, object]]) -> alt.InlineData:
    """Rows for a chart as plain JSON: texts made safe to show, instants in milliseconds, missing values as null."""
    return alt.InlineData(values=[{str(key): _plain(value) for key, value in row.items()} for row in values])


def time_axis(span: Span) -> alt.X:
    """The time axis for `at`, in UTC for every reader; midnight is labelled with the date.

    Instants are plain numbers, because Vega-Lite's own time scales do not accept the same domain in several layers.
    """
    start, end = (_instant_ms(one) for one in span)
    end = max(end, start + 1_000)
    step = next((step for step in _TIME_STEPS_MS if (end - start) / step <= TIME_TICKS_MAX), _TIME_STEPS_MS[-1])
    return alt.X(
        "at:Q",
        title="time (UTC)",
        scale=alt.Scale(domain=[start, end], nice=False),
        axis=alt.Axis(values=list(range(-(-start // step) * step, end + 1, step)), labelExpr=_TIME_LABEL),
    )


def milliseconds_axis(channel: type[Channel], key: str, title: str, low: float, high: float) -> Channel:
    """Durations on a logarithmic scale, with labels such as 20 ms and 5 s."""
    low, high = max(low, SHORTEST_MS), max(high, low * 2, SHORTEST_MS * 10)
    bottom = max((step for step in _STEPS_MS if step <= low), default=low)
    top = min((step for step in _STEPS_MS if step >= high), default=high)
    steps = [step for step in _STEPS_MS if bottom <= step <= top]
    if len(steps) > 8:
        steps = [step for step in steps if step in _BIG_STEPS_MS] or steps
    return channel(
        f"{key}:Q",
        title=title,
        scale=alt.Scale(type="log", domain=[bottom, top], nice=False),
        axis=alt.Axis(values=steps, labelExpr=_MS_LABEL, grid=True),
    )


def drawn_ms(value: object) -> float | None:
    """A duration for a logarithmic scale, at least SHORTEST_MS; None if missing."""
    number = wording.number_of(value)
    return None if math.isnan(number) else max(number, SHORTEST_MS)


def unique_labels(labels: Iterable[str], length_max: int = 60) -> list[str]:
    """Makes labels safe to show and numbers the labels that would become equal."""
    seen: dict[str, int] = {}
    unique = []
    for label in labels:
        shown = wording.text(label, length_max)
        seen[shown] = seen.get(shown, 0) + 1
        unique.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return unique


def swatches(
    colours: Mapping[str, str], shown: Iterable[str], shape: Literal["area", "line", "dashes"] = "area"
) -> tuple[LegendEntry, ...]:
    """A legend for those of `colours` that are `shown`, in the order of `colours`."""
    wanted = set(shown)
    return tuple(
        LegendEntry(word.replace("_", " "), colour, shape) for word, colour in colours.items() if word in wanted
    )


def by_word(colours: Mapping[str, str]) -> alt.Color:
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("word:N", scale=scale, legend=None)


def tooltips(*entries: tuple[str, str] | tuple[str, str, str]) -> list[alt.Tooltip]:
    """Tooltips from (field, title), with an optional number format."""
    return [
        alt.Tooltip(field, title=title, format=rest[0] if rest else alt.Undefined) for field, title, *rest in entries
    ]


def share_axis(channel: type[Channel], key: str, title: str) -> Channel:
    """An axis of shares from 0, formatted as everywhere on the page: 2 %."""
    axis = alt.Axis(tickCount=4, grid=True, labelExpr=SHARE_LABEL)
    return channel(f"{key}:Q", title=title, scale=alt.Scale(zero=True), axis=axis)


def _instant_ms(value: object) -> int:
    return round(wording.to_utc(value).timestamp() * 1_000)


def _plain(value: object) -> object:
    if wording.is_missing(value):
        return None
    if isinstance(value, bool | str):
        return wording.text(value) if isinstance(value, str) else value
    if isinstance(value, pd.Timestamp):
        return _instant_ms(value)
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) else float(f"{number:.6g}")
