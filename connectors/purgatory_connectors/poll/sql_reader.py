"""Reads a query of any database for which SQLAlchemy has an asynchronous driver."""

from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import URL, text
from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.polled_source import Unreadable
from purgatory_connectors.uri import SourceUri

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
