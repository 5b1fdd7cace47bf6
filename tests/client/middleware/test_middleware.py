"""The middleware in real web servers, with Starlette, FastAPI, Flask and Django, against a real daemon."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from io import BytesIO
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from wsgiref.util import FileWrapper

import aiohttp
import django
import flask
import pytest
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from fastapi import FastAPI
from purgatory_client import AsyncClient, Client
from purgatory_client.errors import InvalidRequest
from purgatory_client.middleware import asgi, readable_replicas, wrote, wsgi
from purgatory_client.middleware.exchange import Exchange
from purgatory_client.sources.position_tokens import Positions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from werkzeug.test import Client as Browser

from tests.client.middleware.web_servers import asgi_server, wsgi_server
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending
from tests.kit.proxy import NOBODY

MARK = "view/orders-0"
BROKEN = 1_000_000
"""The handler fails after it has written this offset."""
HEADER = "Purgatory-Token"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def written(self) -> Positions:
        """The positions in its token."""
        return Positions.of_token(self.headers[HEADER])


Visit = Callable[..., Coroutine[Any, Any, Answer]]
App = Callable[[], Any]


def write(offset: int) -> str:
    """The handler of all applications. FastAPI and the WSGI servers call it in a thread."""
    wrote({MARK: offset})
    if offset == BROKEN:
        raise InvalidRequest("mine", "wrong")
    return "written"


def read() -> str:
    return f"read from {' '.join(readable_replicas('pg/main', ['r1', 'r2'])) or 'primary'}"


def starlette_app() -> Starlette:
    async def answer_write(request: Request) -> PlainTextResponse:
        return PlainTextResponse(write(int(request.query_params["offset"])))

    routes = [Route("/write", answer_write, methods=["POST"]), Route("/read", lambda _: PlainTextResponse(read()))]
    return Starlette(routes=routes)


def fastapi_app() -> Starlette:
    app = FastAPI()
    app.post("/write")(write)
    app.get("/read")(read)
    return app


def flask_app() -> WSGIApplication:
    app = flask.Flask("shop")
    app.add_url_rule("/write", "write", lambda: write(int(flask.request.args["offset"])), methods=["POST"])
    app.add_url_rule("/read", "read", read)
    return app


def django_stream(_request: HttpRequest) -> StreamingHttpResponse:
    """Not an iterator itself: it computes its body when it is asked for one."""

    def parts() -> Iterator[str]:
        yield "str"
        wrote({MARK: 2})  # too late for the token, and no error
        yield "eamed"

    wrote({MARK: 1})
    return StreamingHttpResponse(parts())


urlpatterns = [
    path("write", lambda request: HttpResponse(write(int(request.GET["offset"])))),
    path("read", lambda _: HttpResponse(read())),
    path("stream", django_stream),
]


def django_app() -> WSGIApplication:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="test", MIDDLEWARE=[])
        django.setup()
    app: WSGIApplication = get_wsgi_application()
    return app


@asynccontextmanager
async def visiting(
    app: App,
    address: str,
    *,
    give_up_after: float | None = 30.0,
    token: str | None = None,
    is_wsgi: bool = False,
    **options: Any,  # noqa: ANN401
) -> AsyncIterator[Visit]:
    """Serve an app with the middleware and a client of its own; yields a function that makes requests."""
    async with AsyncExitStack() as stack:
        if is_wsgi or app in (flask_app, django_app):
            blocking = stack.enter_context(Client(address, give_up_after=give_up_after, token=token))
            url = stack.enter_context(wsgi_server(wsgi.ReadYourWrites(app(), blocking, **options)))
        else:
            client = await stack.enter_async_context(AsyncClient(address, give_up_after=give_up_after, token=token))
            url = await stack.enter_async_context(asgi_server(asgi.ReadYourWrites(app(), client, **options)))
        session = await stack.enter_async_context(aiohttp.ClientSession(url))

        async def visit(method: str, path: str, *tokens: str) -> Answer:
            async with session.request(method, path, headers=[(HEADER, one) for one in tokens]) as answer:
                return Answer(answer.status, answer.headers, await answer.read())

        yield visit


both = pytest.mark.parametrize("app", [starlette_app, flask_app])


@pytest.mark.parametrize("app", [starlette_app, fastapi_app, flask_app, django_app])
async def test_a_read_waits_for_the_write(app: App, client: AsyncClient) -> None:
    async with visiting(app, client.address) as visit:
        written = await visit("POST", "/write?offset=42")
        assert written.status == 200
        assert written.written.offsets == {MARK: 42}
        reading = asyncio.create_task(visit("GET", "/read", written.headers[HEADER]))
        await until_pending(client, 1)
        await client.advance(MARK, high_watermark=42)
        answer = await reading
    assert (answer.status, b"read" in answer.body, HEADER in answer.headers) == (200, True, False)


@both
async def test_a_request_without_a_token_does_not_wait(app: App) -> None:
    async with visiting(app, NOBODY) as visit:
        answer = await visit("GET", "/read")
    assert (answer.status, answer.body, HEADER in answer.headers) == (200, b"read from r1 r2", False)


@both
async def test_too_late_is_504_with_the_estimate(app: App, client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=10)
    async with visiting(app, client.address, timeout=0.5) as visit:
        token = Positions({MARK: 1_000, "view/done-0": 0}).token
        reading = asyncio.create_task(visit("GET", "/read", token))
        await until_pending(client, 1)
        await client.advance(MARK, high_watermark=20)
        await client.advance("view/done-0", high_watermark=0)
        status, headers, body = await reading
    problem = json.loads(body)
    assert (status, headers["Content-Type"], problem["status"]) == (504, "application/problem+json", 504)
    [mark] = problem["marks"]
    assert (mark["name"], mark["required"], mark["reached"], mark["stale_reason"]) == (MARK, 1_000, 20, None)
    assert mark["eta_ms"] > 1_000
    assert mark["eta_ms"] / 1_000 <= int(headers["Retry-After"]) < mark["eta_ms"] / 1_000 + 1


@both
async def test_a_mark_that_does_not_move_has_no_estimate(app: App, client: AsyncClient) -> None:
    async with visiting(app, client.address, timeout=0) as visit:
        answer = await visit("GET", "/read", Positions({MARK: 1}).token)
    assert (answer.status, "Retry-After" in answer.headers) == (504, False)
    assert json.loads(answer.body)["marks"][0]["eta_ms"] is None


@both
async def test_tokens_of_a_request_are_merged_with_what_it_wrote(app: App, client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=50, leader_epoch=3)
    await client.advance("view/a-0", high_watermark=50)
    one, two, three = (Positions({name: 5}).token for name in ("view/a-0", "east/b-0", "east/c-0"))
    async with visiting(app, client.address, prefixes=["view/"]) as visit:
        after = (await visit("POST", "/write?offset=42", one, f"{two}, {three}")).written
    assert after == Positions({"view/a-0": 5, "east/b-0": 5, "east/c-0": 5, MARK: 42}, {MARK: 3})


@both
async def test_request_does_not_wait_for_what_it_writes(app: App, client: AsyncClient) -> None:
    async with visiting(app, client.address) as visit:
        assert (await visit("POST", "/write?offset=42")).status == 200
        assert (await visit("POST", "/write?offset=7")).written.offsets == {MARK: 7}


@both
async def test_a_history_that_has_ended_is_not_waited_for(app: App, client: AsyncClient) -> None:
    await client.advance(MARK, high_watermark=50, leader_epoch=4)
    await client.advance("view/a-0", high_watermark=50, leader_epoch=4)
    await client.advance("view/b-0", high_watermark=50)
    ended = Positions({MARK: 99, "view/a-0": 99, "view/b-0": 50}, {MARK: 3, "view/a-0": 3}).token
    async with visiting(app, client.address) as visit:
        answer = await visit("POST", "/write?offset=42", ended)
    assert (answer.status, answer.written) == (200, Positions({"view/b-0": 50, MARK: 42}, {MARK: 4}))


@both
async def test_an_unknown_epoch_is_not_replaced_by_an_older_one(app: App, client: AsyncClient) -> None:
    """If the daemon does not know the epoch of a write, the next request waits for the write itself. With the epoch of
    the caller's token, its wait would end with that history, and the caller would not find what it wrote.
    """
    before = Positions({MARK: 50, "view/a-0": 5}, {MARK: 3, "view/a-0": 3})
    async with visiting(app, client.address, prefixes=["none/"]) as visit:
        after = (await visit("POST", "/write?offset=60", before.token)).written
    assert after == Positions({MARK: 60, "view/a-0": 5}, {"view/a-0": 3})


def token_of_many(count: int) -> str:
    return Positions({f"{MARK}{i}": 0 for i in range(count)}).token


NO_TOKENS = [
    "nonsense", "at1.!!", Positions({MARK: -2}).token, "at1.," * 20, token_of_many(2_001),
    f"{token_of_many(1_001)},{token_of_many(1_001)}",
]  # fmt: skip


@both
@pytest.mark.parametrize("token", NO_TOKENS)
async def test_an_invalid_token_is_400(app: App, client: AsyncClient, token: str) -> None:
    async with visiting(app, client.address) as visit:
        answer = await visit("GET", "/read", token)
    assert answer.status == 400
    assert "invalid token" in json.loads(answer.body)["detail"]


@both
async def test_errors_of_the_application_are_its_own(app: App, client: AsyncClient) -> None:
    async with visiting(app, client.address) as visit:
        answer = await visit("POST", f"/write?offset={BROKEN}")
    # The handler's write may be committed despite the error.
    assert (answer.status, answer.written.offsets) == (500, {MARK: BROKEN})


def test_wrong_settings_are_refused(client: AsyncClient) -> None:
    wrong: list[dict[str, Any]] = [{"prefixes": "pg/"}, {"prefixes": []}, {"timeout": -1}, {"fail_when_stale": -1}]
    wrong += [{"on_timeout": "fail"}, {"keys": ["a" * 15]}, {"keys": "a" * 16}]
    for options in wrong:
        with pytest.raises(InvalidRequest):
            asgi.ReadYourWrites(starlette_app(), client, **options)
    with pytest.raises(InvalidRequest, match="ReadYourWrites"):
        wrote({MARK: 1})


def test_threads_of_a_handler_write_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = Positions.merge

    def slow_merge(one: Positions, other: Positions) -> Positions:
        merged = merge(one, other)
        time.sleep(0.01)  # lets the other threads run
        return merged

    monkeypatch.setattr(Positions, "merge", slow_merge)
    served = Exchange([], ("",))
    with ThreadPoolExecutor(4) as threads, served.active():
        for i in range(4):
            threads.submit(copy_context().run, wrote, {f"view/a-{i}": 1})
    assert len(served.written.offsets) == 4


# ASGI alone.


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_connections_are_passed_on_unchanged(client: AsyncClient, kind: str) -> None:
    seen: list[object] = []

    async def app(*connection: object) -> None:
        seen.extend(connection)

    connection: list[Any] = [{"type": kind, "headers": [(HEADER.lower().encode(), b"nonsense")]}, object(), object()]
    await asgi.ReadYourWrites(app, client)(*connection)
    assert seen == connection


def test_one_client_serves_in_one_event_loop_after_another(shared_daemon: DaemonProcess) -> None:
    """Starlette's TestClient, outside of `with`, runs each request in an event loop of its own."""
    client = AsyncClient(shared_daemon.address)  # as when a module is imported: no event loop runs
    browser = TestClient(asgi.ReadYourWrites(starlette_app(), client, timeout=0))
    for offset in (1, 2):
        token = browser.post(f"/write?offset={offset}").headers[HEADER]
        assert browser.get("/read", headers={HEADER: token}).status_code == 504
    asyncio.run(client.close())


# WSGI alone: bodies that are computed while they are sent.


class AppClass:
    """The example of an application in PEP 3333 that is a class: the response begins while its instance is iterated."""

    def __init__(self, _environ: WSGIEnvironment, start: StartResponse) -> None:
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        wrote({MARK: 1})
        self.start("200 OK", [])
        yield b"str"
        wrote({MARK: 2})
        yield b"eamed"


def generator_app(environ: WSGIEnvironment, start: StartResponse) -> Iterator[bytes]:
    """An application that is a generator: all of it runs while the server reads the body."""
    yield from AppClass(environ, start)


@pytest.mark.parametrize(
    "app", [django_app, lambda: AppClass, lambda: generator_app], ids=["iterable", "class", "generator"]
)
async def test_application_may_write_until_its_response_begins(app: App, client: AsyncClient) -> None:
    async with visiting(app, client.address, is_wsgi=True) as visit:
        answer = await visit("GET", "/stream")
    assert (answer.status, answer.body, answer.written.offsets) == (200, b"streamed", {MARK: 1})


def test_file_and_list_are_passed_on(looking: Client) -> None:
    """Servers send them in ways of their own, such as sendfile, if they are not wrapped."""
    for body in ([b"list"], FileWrapper(BytesIO(b"file"))):
        middleware = wsgi.ReadYourWrites(lambda *_, body=body: body, looking)
        assert middleware({"wsgi.file_wrapper": FileWrapper}, lambda *_: None) is body


def test_body_that_is_asked_twice_for_its_iterator_is_sent_once(looking: Client) -> None:
    """Werkzeug's test client does this. The body of a Django response starts over each time."""
    browser = Browser(wsgi.ReadYourWrites(django_app(), looking))
    assert browser.get("/read").text == "read from r1 r2"


def test_a_body_that_is_closed_unread_is_closed(looking: Client) -> None:
    """As a server does for HEAD."""
    body = BytesIO(b"never")
    passed_on = wsgi.ReadYourWrites(lambda *_: body, looking)({}, lambda *_: None)
    iter(passed_on).close()  # type: ignore[attr-defined]
    assert body.closed
