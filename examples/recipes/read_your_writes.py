"""A FastAPI shop whose callers see their own writes, although reads come from a replica that lags.

The middleware adds a token of what a handler `wrote` to the response, and waits when a request has a token.

Prints:
    without the token: some of 100 reads were stale
    with the token: none of 100 reads were stale
"""

import asyncio
import os
import socket

import aiohttp
import uvicorn
from fastapi import FastAPI
from purgatory_client import AsyncClient
from purgatory_client.middleware import wrote
from purgatory_client.middleware.asgi import ReadYourWrites
from purgatory_client.prefix import Prefix

client = AsyncClient(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"))
app, log, replica = FastAPI(), list[int](), Prefix("shop/replica")


@app.post("/orders/{order}")
async def place(order: int) -> None:
    log.append(order)
    wrote({replica.name: len(log)})
    asyncio.get_running_loop().call_later(0.5, replica.done, len(log) - 1)  # the replica lags


@app.get("/orders/{order}")
async def show(order: int) -> bool:
    return order in log[: replica.mark]


async def reads_own_write(session: aiohttp.ClientSession, order: int, *, with_token: bool) -> bool:
    async with session.post(f"/orders/{order}") as placed:
        headers = {"Purgatory-Token": placed.headers["Purgatory-Token"]} if with_token else {}
    async with session.get(f"/orders/{order}", headers=headers) as shown:
        return await shown.json() is True


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(ReadYourWrites(app, client, timeout=30), log_level="error"))
    serving = asyncio.create_task(server.serve([listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with client, replica.publishing(client), aiohttp.ClientSession(url) as session:
        for name, orders in (("without", range(100)), ("with", range(100, 200))):
            seen = await asyncio.gather(*(reads_own_write(session, one, with_token=name == "with") for one in orders))
            print(f"{name} the token: {'none' if all(seen) else 'some'} of 100 reads were stale")
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
