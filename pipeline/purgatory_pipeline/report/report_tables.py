"""The report's tables: their names, columns, units and meanings, from `tables.toml`, which describes them."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

_ARROW: Final = {
    "text": pa.string(),
    "instant (UTC)": pa.timestamp("us", tz="UTC"),
    "count": pa.int64(),
    "ms": pa.int64(),
    "0 to 1": pa.float64(),
    "whole number": pa.int32(),
    "as measured": pa.float64(),
    "true or false": pa.bool_(),
}
"""The type of each unit."""


@dataclass(frozen=True)
class ResultColumn:
    """`unit` is one of the words above."""

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class ResultTable:
    """`key`: the columns that identify a row; `order`: how rows are sorted ("-": descending)."""

    name: str
    meaning: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    columns: tuple[ResultColumn, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, _ARROW[column.unit]) for column in self.columns])


@dataclass(frozen=True)
class ReportInfo:
    """The context of the tables. `rows`: the number of rows of each table; frames contain the first ones only."""

    archive: str
    first_at: datetime | None
    last_at: datetime | None
    window_ms: int
    slow_over_ms: int | None
    """Produces that waited longer were examined one by one; None if there were none."""
    slow_share: float
    """The share of produces that `slow_over_ms` was chosen for, such as 0.01."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counts of operations: registered, refused, carried_in, ended, satisfied, failed, expired, cancelled,
    shutting_down, unfinished. registered - refused + carried_in = ended + unfinished.
    """
    rows: Mapping[str, int] = field(default_factory=dict)
    objective: float | None = None
    """The share that may not expire, if one was given."""
    notes: tuple[str, ...] = ()
    """Caveats about figures, such as crashed runs or dropped rows; as sentences."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """purgatory, schema, spark."""


def _tables() -> Iterator[ResultTable]:
    found = tomllib.loads(files(__package__).joinpath("tables.toml").read_text("utf-8"))

    def columns(given: list[Any]) -> Iterator[ResultColumn]:
        for one in given:
            if isinstance(one, str):
                yield from columns(found["shared"][one])
            else:
                yield ResultColumn(*one)

    for table in found["table"]:
        lists = tuple(table["key"]), tuple(table["order"]), tuple(columns(table["columns"]))
        yield ResultTable(table["name"], table["meaning"], *lists)


TABLES: Final[Mapping[str, ResultTable]] = MappingProxyType({table.name: table for table in _tables()})
"""In reading order. The page gets a pandas frame for each, with these columns."""

PAGE_ROWS_MAX: Final = 10_000
"""A frame for the page, and a CSV file, holds at most this many rows of its table, the first in its order."""
