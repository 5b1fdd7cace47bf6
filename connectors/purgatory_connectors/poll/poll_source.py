"""The poll source: a number that only rises, or several by name, under "poll/NAME/".

    poll+http://app:8080/status?pointer=/position
    poll+sql://db:5432/shop?query=SELECT max(id) FROM events&user=reader

A single number is the mark "position". It is read from a JSON document over HTTP, or by a query of any database for
which SQLAlchemy has an asynchronous driver. Options that are not the source's own belong to the system: the query of
the HTTP request, the options of the driver.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import httpcore
from jsonpointer import JsonPointer, JsonPointerException
from purgatory_client.sources.source_names import escaped_group
from sqlalchemy import URL, text
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.publisher.mark_rules import RisingMarks, StaleMark
from purgatory_connectors.publisher.observation import End, Observation
from purgatory_connectors.publisher.polled_source import POLL_OPTIONS, POSITION_MAX, PolledSource, Unreadable

BYTES_MAX: Final = 1 << 20
_HEADER: Final = "header."


class HttpReader:
    """Keeps one connection. Redirects are not followed: they would hide which server answers.

    Args:
        uri: The address.
        others: Headers ("header.NAME"), and the query of the request.
        pointers: The JSON pointers that will be read.

    Raises:
        SourceUriInvalid: One of them cannot be used. Values of headers are secrets and are not shown.
    """

    def __init__(self, uri: SourceUri, others: Mapping[str, str], *pointers: str) -> None:
        for pointer in pointers:
            try:
                JsonPointer(pointer)
            except JsonPointerException as error:
                raise SourceUriInvalid(
                    f"source {uri.text!r}: {pointer!r} is not a JSON pointer; expected a form like /status/position"
                ) from error
        named = [option for option in others if option.startswith(_HEADER)]
        # Secrets in files often end with a line break.
        headers = [(option.removeprefix(_HEADER).replace(".", "-"), others[option].strip()) for option in named]
        for name, value in headers:
            if not (name.isascii() and value.isascii() and value.isprintable()):
                raise SourceUriInvalid(f"source {uri.text!r}: the header {name!r} must be one line of printable ASCII")
        query = urlencode({option: value for option, value in others.items() if option not in named})
        path = quote(urlsplit(uri.text).path, safe="/%:@!$&'()*+,;=~")  # as given: `uri.path` has no slash at its end
        self._url: Final = urlunsplit((uri.scheme.removeprefix("poll+"), uri.hosts[0], path, query, ""))
        self._headers: Final = [("accept", "application/json"), *headers]
        self._pool = httpcore.AsyncConnectionPool(max_connections=1)
        self._turn: Final = asyncio.Lock()
        """One request at a time: one that begins while a cancelled one still ends would use the pool that is closed."""

    async def read(self, what: str) -> object:
        """The value at this JSON pointer. Raises Unreadable."""
        async with self._turn:
            status, body = await self._get()
        if status != 200:
            raise Unreadable(f"it answers with status {status} instead of 200", is_refused=status in {401, 403})
        try:
            return JsonPointer(what).resolve(json.loads(body))
        except JsonPointerException:
            raise Unreadable(f"its answer has nothing at the pointer {what!r}") from None
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"its answer is not JSON: {error}") from error

    async def close(self) -> None:
        await self._pool.aclose()

    async def _get(self) -> tuple[int, bytes]:
        body = bytearray()
        try:
            async with self._pool.stream("GET", self._url, headers=self._headers) as response:
                async for part in response.aiter_stream():
                    body += part
                    if len(body) > BYTES_MAX:
                        raise Unreadable(f"its answer is longer than {BYTES_MAX:,} bytes")
                return response.status, bytes(body)
        except asyncio.CancelledError:
            # The pool may count the cancelled request, or its connection, as active for ever.
            pool, self._pool = self._pool, httpcore.AsyncConnectionPool(max_connections=1)
            await pool.aclose()
            raise
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise Unreadable(str(error) or type(error).__name__) from error


ROWS_MAX: Final = 1_001
"""One more than may be marks."""


class SqlReader:
    """Keeps one connection, which commits each query by itself. Raises SourceRefused if the driver cannot be used."""

    def __init__(self, uri: SourceUri, others: dict[str, str]) -> None:
        server = urlsplit("//" + "".join(uri.hosts))
        driver = others.pop("driver", "postgresql+psycopg").replace(" ", "+")  # "+" in an address is a space
        login = others.pop("user", None), others.pop("password", None)
        # A database without a server is a file, and its path is absolute.
        database = uri.path if uri.hosts else f"/{uri.path}"
        try:
            url = URL.create(driver, *login, server.hostname, server.port, database, others)
            self._engine: Final = create_async_engine(url, pool_size=1, max_overflow=0, isolation_level="AUTOCOMMIT")
        except ModuleNotFoundError as error:
            raise SourceRefused(f"driver={driver} needs the package {error.name}; install it") from error
        except (NoSuchModuleError, ArgumentError, InvalidRequestError, ValueError, TypeError) as error:
            raise SourceRefused(f"source {uri.text!r}: driver={driver} cannot be used: {error}") from error

    async def read(self, what: str) -> object:
        """The value of a query with one column, or a mapping for one with two: names and values. Raises Unreadable."""
        try:
            async with self._engine.connect() as connection:
                found = await connection.execute(text(what.replace(":", "\\:")))
                rows = found.fetchmany(ROWS_MAX) if found.returns_rows else []
        except (SQLAlchemyError, OSError) as error:
            raise Unreadable(str(getattr(error, "orig", None) or error).strip().split("\n")[0]) from error
        if len(rows) == 1 and len(rows[0]) == 1:
            return rows[0][0]
        if len({row[0] for row in rows}) == len(rows) and all(len(row) == 2 for row in rows):
            return {str(row[0]): row[1] for row in rows}
        raise Unreadable("the query must return one value, or different names with their values", is_refused=True)

    async def close(self) -> None:
        await self._engine.dispose()


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

    def begin(self, published: Mapping[str, int]) -> None:
        self._marks = RisingMarks(published)

    def apply(self, target: str, reading: Positions | Unreadable, now: float) -> list[Observation]:  # noqa: ARG002 - there is one target
        self._seen_at = self._seen_at or now
        if isinstance(reading, Unreadable):
            self._stale = str(reading)
            return []
        self._seen_at, self._stale = now, ""
        moves = self._marks.apply(reading)
        return [Observation(self.prefix + mark, 0, position, "", is_back) for mark, position, is_back in moves]

    def stale(self) -> list[StaleMark]:
        return [StaleMark("", self._seen_at, self._stale, is_prefix=True)] if self._stale else []

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
    """The positions in a system's answer. Raises Unreadable."""
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
