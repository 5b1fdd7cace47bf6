"""Orders that are written to a PostgreSQL primary, and read from a replica that lags slightly."""

from typing import Final, Self

import psycopg
from psycopg.rows import TupleRow

from examples.read_your_writes.shop import Orders

REPLICA: Final = "r1"
BEHIND: Final = "50ms"
"""The delay with which the replica applies a commit, to imitate a busy one."""

Connection = psycopg.AsyncConnection[TupleRow]


class PostgresOrders(Orders):
    """Writes to one server and reads from the other."""

    def __init__(self, primary: Connection, replica: Connection) -> None:
        self._primary: Final = primary
        self._replica: Final = replica

    @classmethod
    async def connect(cls, primary: str, replica: str) -> Self:
        """Connect. Both arguments are connection strings for libpq."""
        return cls(
            await psycopg.AsyncConnection.connect(primary, autocommit=True),
            await psycopg.AsyncConnection.connect(replica, autocommit=True),
        )

    async def write(self, order_id: str) -> dict[str, int]:
        await self._primary.execute("INSERT INTO orders VALUES (%s)", (order_id,))
        found = await self._primary.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        row = await found.fetchone()
        assert row is not None, "a function has a value"
        return {f"pg/main/{REPLICA}": row[0]}

    async def read(self, order_id: str) -> bool:
        found = await self._replica.execute("SELECT 1 FROM orders WHERE id = %s", (order_id,))
        return await found.fetchone() is not None

    async def close(self) -> None:
        await self._primary.close()
        await self._replica.close()
