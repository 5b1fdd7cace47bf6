"""What a page is made of: sections of plots and tables. Plain data; `document` turns it into HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pandas as pd
from markupsafe import Markup

from purgatory_pipeline.page import wording

ROWS_MAX: Final = 12
"""Rows that a table shows unless it says otherwise."""


@dataclass(frozen=True)
class PageColumn:
    """One column of a table: its `key` in the frame, its title, and how a value is written (escaped unless Markup)."""

    key: str
    title: str
    shown: Callable[[object], str] = wording.text

    @property
    def is_figure(self) -> bool:
        """Figures stand on the right, text on the left."""
        return self.shown in wording.FIGURES


@dataclass(frozen=True)
class PageTable:
    """The first rows of a frame, in its order. `rest` says where the others are; rows with `marked` true stand out."""

    caption: str
    frame: pd.DataFrame
    columns: tuple[PageColumn, ...]
    rest: str = ""
    rows_max: int = ROWS_MAX
    marked: str = ""


@dataclass(frozen=True)
class LegendEntry:
    """A colour of a plot (a CSS value) and what it stands for, drawn as an `area`, a `line` or `dashes`."""

    label: str
    colour: str
    shape: Literal["area", "line", "dashes"] = "area"


@dataclass(frozen=True)
class Plot:
    """One plot: a Vega-Lite specification, a title, and in words what it shows for those who can't see it."""

    title: str
    spec: dict[str, Any]
    description: str
    note: str = ""
    legend: tuple[LegendEntry, ...] = ()


@dataclass(frozen=True)
class Grid:
    """Parts side by side where there is room, below each other where there is not; `narrow` ones up to three in a row.

    A legend that all of them share stands above.
    """

    parts: tuple[Plot | PageTable, ...]
    legend: tuple[LegendEntry, ...] = ()
    narrow: bool = False


@dataclass(frozen=True)
class Section:
    """One heading with its sentences, plots and tables. `notices` are what a reader must know before the figures.

    Without parts, the sentences say why there is nothing to see.
    """

    anchor: str
    title: str
    lead: tuple[Markup | str, ...] = ()
    parts: tuple[Plot | PageTable | Grid, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Headline:
    """One headline figure: what it is, its value, and a word on it. `alarming` ones stand out."""

    label: str
    value: str
    note: str = ""
    alarming: bool = False


@dataclass(frozen=True)
class Finding:
    """One sentence worth reading first, and the section that shows it."""

    sentence: Markup
    anchor: str
    alarming: bool = False


@dataclass(frozen=True)
class Page:
    """A whole page, top to bottom."""

    title: str
    subtitle: Markup
    facts: tuple[Headline, ...]
    account: Section
    findings: tuple[Finding, ...]
    sections: tuple[Section, ...]
    footer: Markup = field(default_factory=Markup)
