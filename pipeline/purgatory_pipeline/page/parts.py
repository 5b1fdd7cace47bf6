"""The parts of a page: sections of plots and tables. They are plain data; `document` turns them into HTML."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording

ROWS_MAX: Final = 12


@dataclass(frozen=True)
class PageColumn:
    """One column of a table: its `key` in the frame, its title, and its formatter (escaped unless Markup)."""

    key: str
    title: str
    shown: Callable[[object], str] = wording.text

    @property
    def is_figure(self) -> bool:
        """Whether the column contains numbers, which are right-aligned."""
        return self.shown in wording.FIGURES


def columns(shown: Callable[[object], str], *keys: str, **titles: str) -> tuple[PageColumn, ...]:
    """Columns with the same formatter: first those titled by their key, then those with a separate title."""
    plain = {key: key.replace("_", " ") for key in keys}
    return tuple(PageColumn(key, title, shown) for key, title in {**plain, **titles}.items())


TOPIC: Final = PageColumn("topic", "topic", wording.name)
KIND: Final = PageColumn("kind", "kind")
CLIENT: Final = PageColumn("principal", "client", lambda name: wording.name(name) if name else "(not authenticated)")


@dataclass(frozen=True)
class PageTable:
    """The first `rows_max` rows of a frame. `rest` tells where to find the others; rows with a true `marked` are
    highlighted.
    """

    caption: str
    frame: pd.DataFrame
    columns: tuple[PageColumn, ...]
    rest: str = ""
    rows_max: int = ROWS_MAX
    marked: str = ""

    def rows(self) -> Iterator[tuple[bool, list[tuple[PageColumn, str]]]]:
        """For each visible row: whether it is highlighted, and each column with its value as text."""
        first = self.frame.head(self.rows_max)
        marks = first[self.marked].tolist() if self.marked else [False] * len(first)
        values = [first[column.key].tolist() for column in self.columns]
        for mark, row in zip(marks, zip(*values, strict=True), strict=True):
            yield bool(mark), [(column, column.shown(value)) for column, value in zip(self.columns, row, strict=True)]


@dataclass(frozen=True)
class LegendEntry:
    """A legend entry: a colour of a plot (a CSS value) and its meaning, drawn as an `area`, a `line` or `dashes`."""

    label: str
    colour: str
    shape: Literal["area", "line", "dashes"] = "area"


@dataclass(frozen=True)
class Plot:
    """A Vega-Lite specification with its title. `description` describes the plot for screen readers."""

    title: str
    spec: dict[str, Any]
    description: str
    note: str = ""
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True)
class Grid:
    """Parts side by side if there is room, otherwise one below the other; `narrow` fits up to three in a row.

    `legend` is shared by all parts and shown above them.
    """

    parts: tuple[Plot | PageTable, ...]
    legend: tuple[LegendEntry, ...] = ()
    narrow: bool = False


@dataclass(frozen=True)
class Section:
    """A heading with sentences, plots and tables. `notices` must be read before the figures.

    A section without parts uses its sentences to explain why there is nothing to see.
    """

    anchor: str
    title: str
    lead: tuple[Markup | str, ...] = ()
    parts: tuple[Plot | PageTable | Grid, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Headline:
    """One figure at the top of a page, highlighted if `alarming`."""

    label: str
    value: str
    note: str = ""
    alarming: bool = False


@dataclass(frozen=True)
class Finding:
    """A sentence to read first, and the section with its details."""

    sentence: Markup
    anchor: str


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: Markup
    headlines: tuple[Headline, ...]
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """What to know before the figures."""

    def section_title(self, anchor: str) -> str:
        return next(section.title for section in self.sections if section.anchor == anchor)


def footer_lines(options: Mapping[str, str], versions: Mapping[str, str]) -> tuple[str, ...]:
    """The footer of a page: the options used to make it, and the versions of the software."""
    given = " ".join(f"{key}={value}" for key, value in options.items())
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    return tuple(line for line in (f"Options: {given}" if given else "", f"Made with {made}" if made else "") if line)
