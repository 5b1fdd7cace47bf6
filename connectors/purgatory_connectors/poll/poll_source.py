"""The poll source: a number that only rises, or several by name, under "poll/NAME/".

    poll+http://app:8080/status?pointer=/position
    poll+sql://db:5432/shop?query=SELECT max(id) FROM events&user=reader

A single number is the mark "position". Options that are not the source's own belong to the system: the query of the
HTTP request, the options of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from purgatory_client.sources.source_names import escaped_group

from purgatory_connectors.errors import SourceStale, SourceUriInvalid
from purgatory_connectors.poll.http_reader import HttpReader
from purgatory_connectors.poll.sql_reader import SqlReader
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import POLL_OPTIONS, POSITION_MAX, PolledSource, Unreadable
from purgatory_connectors.publisher.rising_marks import RisingMarks
from purgatory_connectors.uri import SourceUri

POSITION: Final = "position"
MARKS_MAX: Final = 1_000
_NAME_LENGTH_MAX: Final = 140
_FLOAT_MAX: Final = 2**53 - 1
"""Above, a float may be a rounded number, so higher than the truth."""

Positions = Mapping[str, int]
"""Position by mark, without the prefix. A mark that has no position yet is left out."""


class PollSource(PolledSource[Positions]):
    """Reads the positions of one system. Its only target is ""."""

    def __init__(self, uri: SourceUri) -> None:
        uri = uri.merged("PURGATORY_POLL_")
        super().__init__("poll", uri, ("",), poll_ms=100)
        if len(uri.hosts) > 1:
            raise SourceUriInvalid(f"source {uri.text!r}: one host, because several may have different positions")
        others = {option: value for option, value in uri.options.items() if option not in POLL_OPTIONS}
        self._end: Final = others.pop("end", None)
        is_sql = uri.scheme == "poll+sql"
        self._what: Final = others.pop("query" if is_sql else "pointer", "")
        if is_sql and not self._what:
            raise SourceUriInvalid(f"source {uri.text!r}: add query=SELECT ..., which returns the position")
        self._reader: Final = SqlReader(uri, others) if is_sql else HttpReader(uri, others, self._what, self._end or "")
        self._marks = RisingMarks[str]({})
        self._seen_at = 0.0
        self._stale = "it has not been read yet"

    async def read(self, target: str) -> Positions:
        return positions_of(await self._reader.read(target or self._what))

    async def close(self) -> None:
        await self._reader.close()

    def begin(self, told: Mapping[str, int]) -> None:
        self._marks = RisingMarks(told)

    def take(self, target: str, reading: Positions | Unreadable, now: float) -> list[Observation]:  # noqa: ARG002 - there is one target
        self._seen_at = self._seen_at or now
        if isinstance(reading, Unreadable):
            self._stale = str(reading)
            return []
        self._seen_at, self._stale = now, ""
        moves = self._marks.take(reading)
        return [Observation(self.prefix + mark, 0, position, "", is_back) for mark, position, is_back in moves]

    def stale(self) -> Mapping[str, tuple[float, str]]:
        return {"": (self._seen_at, self._stale)} if self._stale else {}

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The end that the option `end` returns, for all marks or by name. Raises SourceStale."""
        if self._end is None:
            raise SourceStale(
                f"{self.prefix}: no end is configured; add the option end= to its address (docs/sources.md)"
            )
        found = await self.asked(self._end)
        ends = {name: found.get(name.removeprefix(self.prefix), found.get(POSITION)) for name in names}
        # An empty log has no end. Read only then: the positions, to tell it from a name that is mistyped.
        without = [name for name, end in ends.items() if end is None and name != self.prefix + POSITION]
        known = await self.asked("") if without else {}
        for name in without:
            if name.removeprefix(self.prefix) not in known:
                raise SourceStale(f"{name} has neither a position nor an end")
        return [End(name, 0, end) for name, end in ends.items() if end is not None]


def positions_of(value: object) -> dict[str, int]:
    """The positions in what a system answered. Raises Unreadable."""
    if not isinstance(value, Mapping):
        value = {POSITION: value}
    if len(value) > MARKS_MAX:
        raise Unreadable(f"it answers {len(value):,} names; at most {MARKS_MAX:,} are allowed")
    found = {}
    for name, one in value.items():
        mark = escaped_group(str(name)) if name else ""
        if not 0 < len(mark) <= _NAME_LENGTH_MAX:
            raise Unreadable(f"{str(name)[:50]!r} cannot be a name: 1 to {_NAME_LENGTH_MAX} characters")
        if one is not None:
            found[mark] = _position(one)
    return found


def _position(value: object) -> int:
    # Numbers above 2^53 are often written as texts in JSON; sums and maxima are decimals in SQL.
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = Decimal(value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        number, most = Decimal(value), _FLOAT_MAX if isinstance(value, float) else POSITION_MAX
        if number.is_finite() and 0 <= number <= most and number == int(number):
            return int(number)
    raise Unreadable(f"it answers {str(value)[:50]!r}, which is not a whole number from 0 to 2^61 (a float: to 2^53)")
