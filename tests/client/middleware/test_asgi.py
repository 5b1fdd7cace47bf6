"""The middleware in a real ASGI server, with Starlette and FastAPI, against a real daemon."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI
from purgatory_client import AsyncClient
from purgatory_client.errors import InvalidRequest
from purgatory_client.middleware import wrote
from purgatory_client.middleware.asgi import ReadYourWrites
from purgatory_client.middleware.exchange import Exchange
from purgatory_client.sources.position_tokens import Positions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.client.middleware.web_servers import asgi_server
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending

MARK = "view/orders-0"
HEADER = "Purgatory-Token"
Visit = Callable[..., AbstractAsyncContextManager[aiohttp.ClientResponse]]


async def starlette_write(request: Request) -> PlainTextResponse:
    wrote({MARK: int(request.query_params["offset"])})
    return PlainTextResponse("written")


async def starlette_read(_request: Request) -> PlainTextResponse:
    return PlainTextResponse("read")


def starlette_app() -> Starlette:
    return Starlette(
        routes=[Route("/write", starlette_write, methods=["POST"]), Route("/read", starlette_read, methods=["GET"])]
    )


def fastapi_app() -> Starlette:
    app = FastAPI()

    @app.post("/write")
    def write(offset: int) -> str:  # not async: FastAPI calls it in a thread
        wrote({MARK: offset})
        return "written"

    @app.get("/read")
    async def read() -> str:
        return "read"

    return app


@asynccontextmanager
async def visiting(
    app: Starlette,
    client: AsyncClient,
    *,
    timeout: float = 60.0,  # noqa: ASYNC109 - that of the middleware
    prefixes: Collection[str] = ("",),
) -> AsyncIterator[Visit]:
    """Serve an app with the middleware; yields a function that makes requests."""
    wrapped = ReadYourWrites(app, client, timeout=timeout, prefixes=prefixes)
    async with asgi_server(wrapped) as url, aiohttp.ClientSession(url) as session:
        yield lambda method, path, *tokens: session.request(method, path, headers=[(HEADER, one) for one in tokens])


@pytest.mark.parametrize("app", [starlette_app, fastapi_app])
async def test_a_read_waits_for_the_write(app: Callable[[], Starlette], client: AsyncClient) -> None:
    async with visiting(app(), client) as visit:
        async with visit("POST", "/write?offset=42") as answer:
            token = answer.headers[HEADER]
        assert Positions.of_token(token).offsets == {MARK: 42}

        async def read() -> tuple[int, bool]:
            async with visit("GET", "/read", token) as answer:
                return answer.status, HEADER in answer.headers

        reading = asyncio.create_task(read())
        await until_pending(client, 1)
        await client.advance(MARK, high_watermark=42)
        assert await reading == (200, False)


async def test_a_request_without_a_token_does_not_wait() -> None:
    async with (
        AsyncClient("127.0.0.1:1") as nobody,
        visiting(starlette_app(), nobody) as visit,
        visit("GET", "/read") as answer,
    ):
        assert (answer.status, await answer.text(), HEADER in answer.headers) == (200, "read", False)


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_connections_are_passed_on_unchanged(client: AsyncClient, kind: str) -> None:
    seen: list[object] = []

    async def app(*connection: object) -> None:
        seen.extend(connection)

    async def unused(*_: object) -> Any:  # noqa: ANN401 - for both directions
        raise AssertionError("the middleware does not speak")

    scope: dict[str, Any] = {"type": kind, "headers": [(HEADER.lower().encode(), b"nonsense")]}
    await ReadYourWrites(app, client)(scope, unused, unused)
    assert seen == [scope, unused, unused]


async def test_too_late_is_504_with_the_estimate(client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=10)
    async with visiting(starlette_app(), client, timeout=0.5) as visit:

        async def read() -> tuple[int, Mapping[str, str], dict[str, Any]]:
            async with visit("GET", "/read", Positions({MARK: 1_000, "view/done-0": 0}).token) as answer:
                return answer.status, answer.headers, json.loads(await answer.read())

        reading = asyncio.create_task(read())
        await until_pending(client, 1)
        await client.advance(MARK, high_watermark=20)
        await client.advance("view/done-0", high_watermark=0)
        status, headers, problem = await reading
    assert (status, headers["Content-Type"], problem["status"]) == (504, "application/problem+json", 504)
    [mark] = problem["marks"]
    assert (mark["name"], mark["required"], mark["reached"], mark["stale_reason"]) == (MARK, 1_000, 20, None)
    assert mark["eta_ms"] > 1_000
    assert mark["eta_ms"] / 1_000 <= int(headers["Retry-After"]) < mark["eta_ms"] / 1_000 + 1


async def test_a_mark_that_does_not_move_has_no_estimate(client: AsyncClient) -> None:
    token = Positions({MARK: 1}).token
    async with visiting(starlette_app(), client, timeout=0) as visit, visit("GET", "/read", token) as answer:
        assert (answer.status, "Retry-After" in answer.headers) == (504, False)
        assert json.loads(await answer.read())["marks"][0]["eta_ms"] is None


async def test_tokens_of_a_request_are_merged_with_what_it_wrote(client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=50, leader_epoch=3)
    await client.advance("view/a-0", high_watermark=50)
    one, two, three = (Positions({name: 5}).token for name in ("view/a-0", "east/b-0", "east/c-0"))
    async with (
        visiting(starlette_app(), client, prefixes=["view/"]) as visit,
        visit("POST", "/write?offset=42", one, f"{two}, {three}") as answer,
    ):
        after = Positions.of_token(answer.headers[HEADER])
    assert after == Positions({"view/a-0": 5, "east/b-0": 5, "east/c-0": 5, MARK: 42}, {MARK: 3})


async def test_request_does_not_wait_for_what_it_writes(client: AsyncClient) -> None:
    async with visiting(starlette_app(), client) as visit:
        async with visit("POST", "/write?offset=42") as answer:
            assert answer.status == 200
        async with visit("POST", "/write?offset=7") as answer:
            assert Positions.of_token(answer.headers[HEADER]).offsets == {MARK: 7}


async def test_a_history_that_has_ended_is_not_waited_for(client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=50, leader_epoch=4)
    await client.advance("view/a-0", high_watermark=50, leader_epoch=4)
    await client.advance("view/b-0", high_watermark=50)
    ended = Positions({MARK: 99, "view/a-0": 99, "view/b-0": 50}, {MARK: 3, "view/a-0": 3}).token
    async with visiting(starlette_app(), client) as visit, visit("POST", "/write?offset=42", ended) as answer:
        after = Positions.of_token(answer.headers[HEADER])
    assert (answer.status, after) == (200, Positions({"view/b-0": 50, MARK: 42}, {MARK: 4}))


TOO_MANY = Positions({f"{MARK}{i}": 0 for i in range(2_001)}).token


HALF = Positions({f"{MARK}{i}": 0 for i in range(1_001)}).token


@pytest.mark.parametrize(
    "token", ["nonsense", "at1.!!", Positions({MARK: -2}).token, "at1.," * 20, TOO_MANY, f"{HALF},{HALF}"]
)
async def test_an_invalid_token_is_400(client: AsyncClient, token: str) -> None:
    async with visiting(starlette_app(), client) as visit, visit("GET", "/read", token) as answer:
        assert answer.status == 400
        assert "invalid token" in json.loads(await answer.read())["detail"]


async def test_an_unreachable_daemon_is_503() -> None:
    async with AsyncClient("127.0.0.1:1", give_up_after=0.0) as nobody, visiting(starlette_app(), nobody) as visit:
        async with visit("GET", "/read", Positions({MARK: 1}).token) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        async with visit("POST", "/write?offset=42") as answer:  # the write has succeeded all the same
            assert Positions.of_token(answer.headers[HEADER]) == Positions({MARK: 42})


async def test_errors_of_the_application_are_its_own(client: AsyncClient) -> None:
    async def broken(_request: Request) -> PlainTextResponse:
        wrote({MARK: 1})
        raise InvalidRequest("mine", "wrong")

    async with visiting(Starlette(routes=[Route("/", broken)]), client) as visit, visit("GET", "/") as answer:
        assert answer.status == 500
        # What the handler wrote may be committed all the same.
        assert Positions.of_token(answer.headers[HEADER]).offsets == {MARK: 1}


def test_one_client_serves_in_one_event_loop_after_another(shared_daemon: DaemonProcess) -> None:
    """Starlette's TestClient, outside of `with`, runs each request in an event loop of its own."""
    client = AsyncClient(shared_daemon.address)  # as when a module is imported: no event loop runs
    browser = TestClient(ReadYourWrites(starlette_app(), client, timeout=0))
    for offset in (1, 2):
        token = browser.post(f"/write?offset={offset}").headers[HEADER]
        assert browser.get("/read", headers={HEADER: token}).status_code == 504
    asyncio.run(client.close())


def test_wrong_settings_are_refused(client: AsyncClient) -> None:
    wrong: list[dict[str, Any]] = [{"prefixes": "pg/"}, {"prefixes": []}, {"timeout": -1}, {"fail_when_stale": -1}]
    for options in wrong:
        with pytest.raises(InvalidRequest):
            ReadYourWrites(starlette_app(), client, **options)
    with pytest.raises(InvalidRequest, match="ReadYourWrites"):
        wrote({MARK: 1})


async def test_an_unknown_epoch_is_not_replaced_by_an_older_one(client: AsyncClient) -> None:
    """If the daemon does not know the epoch of a write, the next request waits for the write itself. With the epoch of
    the caller's token, its wait would end with that history, and the caller would not find what it wrote.
    """
    before = Positions({MARK: 50, "view/a-0": 5}, {MARK: 3, "view/a-0": 3})
    async with (
        visiting(starlette_app(), client, prefixes=["none/"]) as visit,
        visit("POST", "/write?offset=60", before.token) as answer,
    ):
        assert Positions.of_token(answer.headers[HEADER]) == Positions({MARK: 60, "view/a-0": 5}, {"view/a-0": 3})


def test_threads_of_a_handler_write_at_the_same_time(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    merge = Positions.merge

    def slow_merge(one: Positions, other: Positions) -> Positions:
        merged = merge(one, other)
        time.sleep(0.01)  # lets the other threads run
        return merged

    monkeypatch.setattr(Positions, "merge", slow_merge)
    exchange = Exchange([], ("",))
    with ThreadPoolExecutor(4) as threads, exchange.active():
        for i in range(4):
            threads.submit(copy_context().run, wrote, {f"view/a-{i}": 1})
    assert len(exchange.written.offsets) == 4
