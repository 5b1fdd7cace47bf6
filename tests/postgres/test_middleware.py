"""The middleware in a real ASGI server whose handlers write to a primary and read from a replica that lags."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import psycopg
from fastapi import FastAPI, Response
from purgatory_client import AsyncClient
from purgatory_client.middleware import wrote
from purgatory_client.middleware.asgi import ReadYourWrites

from tests.client.middleware.web_servers import asgi_server
from tests.postgres.watched_servers import WatchedServers

TOKEN = "Purgatory-Token"
Connection = psycopg.AsyncConnection[tuple[Any, ...]]


def shop(primary: Connection, replica: Connection) -> FastAPI:
    app = FastAPI()

    @app.post("/rows/{row}")
    async def write(row: int) -> None:
        await primary.execute("INSERT INTO written VALUES (%s)", (row,))
        found = await primary.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
        [(lsn,)] = await found.fetchall()
        wrote({"pg/main/r1": lsn})

    @app.get("/rows/{row}")
    async def read(row: int) -> Response:
        found = await replica.execute("SELECT 1 FROM written WHERE at = %s", (row,))
        return Response(status_code=200 if await found.fetchall() else 404)

    return app


@asynccontextmanager
async def visiting(watched: WatchedServers, *, timeout: float) -> AsyncIterator[aiohttp.ClientSession]:  # noqa: ASYNC109
    """Serve the shop with the middleware; yields a session that visits it."""
    async with (
        await psycopg.AsyncConnection.connect(watched.p.conninfo("postgres"), autocommit=True) as primary,
        await psycopg.AsyncConnection.connect(watched.r1.conninfo("postgres"), autocommit=True) as replica,
        AsyncClient(watched.daemon.address) as client,
    ):
        app = ReadYourWrites(shop(primary, replica), client, timeout=timeout)
        async with asgi_server(app) as url, aiohttp.ClientSession(url) as session:
            yield session


async def read_after_write(session: aiohttp.ClientSession, row: int, *, with_token: bool) -> tuple[int, bytes]:
    """The status and body of a read of a row that was just written."""
    async with session.post(f"/rows/{row}") as written:
        headers = {TOKEN: written.headers[TOKEN]} if with_token else {}
    async with session.get(f"/rows/{row}", headers=headers) as answer:
        return answer.status, await answer.read()


async def test_a_paused_replica(watched: WatchedServers) -> None:
    """While the replica is paused, a read with the token is answered with 504, and one without does not find the row.
    After it resumes, the read waits and finds the row.
    """
    watched.r1.query("SELECT pg_wal_replay_pause()")
    try:
        async with visiting(watched, timeout=0.3) as session:
            assert (await read_after_write(session, 880_001, with_token=False))[0] == 404
            status, body = await read_after_write(session, 880_002, with_token=True)
        [mark] = json.loads(body)["marks"]
        assert (status, mark["name"]) == (504, "pg/main/r1")
        assert mark["reached"] < mark["required"]
    finally:
        watched.r1.query("SELECT pg_wal_replay_resume()")
    async with visiting(watched, timeout=60) as session:
        assert (await read_after_write(session, 880_003, with_token=True))[0] == 200
