"""The middleware in a real WSGI server, with Flask and Django, against a real daemon."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment
from wsgiref.util import FileWrapper

import django
import flask
import pytest
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from purgatory_client import Client
from purgatory_client.middleware import exchange, wrote
from purgatory_client.middleware.wsgi import ReadYourWrites
from purgatory_client.sources.position_tokens import Positions

from tests.client.middleware.web_servers import wsgi_server
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import wait_until

HEADER = "Purgatory-Token"


def flask_app() -> WSGIApplication:
    app = flask.Flask("shop")

    @app.post("/write/<mark>/<int:offset>")
    def write(mark: str, offset: int) -> str:
        wrote({f"view/{mark}": offset})
        return "written"

    @app.get("/read")
    def read() -> str:
        return "read"

    return app


def django_write(_request: HttpRequest, mark: str, offset: int) -> HttpResponse:
    wrote({f"view/{mark}": offset})
    return HttpResponse("written")


def django_read(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("read")


def django_stream(_request: HttpRequest) -> StreamingHttpResponse:
    """Not an iterator itself: it computes its body when it is asked for one."""

    def parts() -> Iterator[str]:
        yield "str"
        wrote({"view/streamed-0": 2})  # too late for the token, and no error
        yield "eamed"

    wrote({"view/streamed-0": 1})
    return StreamingHttpResponse(parts())


urlpatterns = [
    path("write/<mark>/<int:offset>", django_write),
    path("read", django_read),
    path("stream", django_stream),
]


def django_app() -> WSGIApplication:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="test", MIDDLEWARE=[])
        django.setup()
    app: WSGIApplication = get_wsgi_application()
    return app


@pytest.fixture
def blocking(shared_daemon: DaemonProcess) -> Iterator[Client]:
    with Client(shared_daemon.address) as client:
        yield client


def visit(url: str, *, token: str = "", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, method=method, headers={HEADER: token} if token else {})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


@pytest.mark.parametrize("app", [flask_app, django_app])
def test_a_read_waits_for_the_write(app: Callable[[], WSGIApplication], blocking: Client) -> None:
    mark = f"{app.__name__}-0"
    middleware = ReadYourWrites(app(), blocking, timeout=60)
    with wsgi_server(middleware) as url, ThreadPoolExecutor(1) as threads:
        status, headers, body = visit(f"{url}/write/{mark}/42", method="POST")
        token = headers[HEADER]
        assert (status, body, Positions.of_token(token).offsets) == (200, b"written", {f"view/{mark}": 42})
        reading = threads.submit(visit, f"{url}/read", token=token)
        wait_until(lambda: blocking.pending == 1, "the read waits")
        blocking.advance(f"view/{mark}", high_watermark=42)
        status, headers, body = reading.result()
        assert (status, body, HEADER in headers) == (200, b"read", False)
        assert visit(f"{url}/read", token="nonsense")[0] == 400
        _, headers, _ = visit(f"{url}/write/{mark}/43", token=token, method="POST")
        token = headers[HEADER]
    with wsgi_server(ReadYourWrites(app(), blocking, timeout=0)) as url:
        status, headers, body = visit(f"{url}/read", token=token)
        assert (status, headers["Content-Type"]) == (504, "application/problem+json")
        assert [(one["required"], one["reached"]) for one in json.loads(body)["marks"]] == [(43, 42)]
        assert visit(f"{url}/read")[0] == 200


def test_an_unreachable_daemon_is_503() -> None:
    with Client("127.0.0.1:1", give_up_after=0.0) as nobody, wsgi_server(ReadYourWrites(flask_app(), nobody)) as url:
        assert visit(f"{url}/read", token=Positions({"view/a-0": 1}).token)[0] == 503
        assert Positions.of_token(visit(f"{url}/write/a-0/1", method="POST")[1][HEADER]) == Positions({"view/a-0": 1})


class AppClass:
    """The example of an application in PEP 3333 that is a class: the response begins while its instance is iterated."""

    def __init__(self, _environ: WSGIEnvironment, start: StartResponse) -> None:
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        wrote({"view/streamed-0": 1})
        self.start("200 OK", [])
        yield b"str"
        wrote({"view/streamed-0": 2})
        yield b"eamed"


@pytest.mark.parametrize(("app", "path"), [(django_app, "stream"), (lambda: AppClass, "")])
def test_body_that_is_only_iterable_may_write(app: Callable[[], WSGIApplication], path: str, blocking: Client) -> None:
    with wsgi_server(ReadYourWrites(app(), blocking)) as url:
        status, headers, body = visit(f"{url}/{path}")
    assert (status, body) == (200, b"streamed")
    assert Positions.of_token(headers[HEADER]).offsets == {"view/streamed-0": 1}


def test_file_and_list_are_passed_on(blocking: Client) -> None:
    """Servers send them in ways of their own, such as sendfile, if they are not wrapped."""
    for body in ([b"list"], FileWrapper(BytesIO(b"file"))):
        middleware = ReadYourWrites(lambda *_, body=body: body, blocking)
        assert middleware({"wsgi.file_wrapper": FileWrapper}, lambda *_: None) is body


def generator_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    """An application that is a generator: all of it runs while the server reads the body."""
    try:
        wrote({"view/streamed-0": 1})
        start_response("200 OK", [])
        yield b"written"
        wrote({"view/streamed-0": 2})  # too late for the token, and no error
        yield b", twice"
    finally:
        environ["closed"] = True


def test_generator_may_write_until_the_response_begins_and_is_closed(blocking: Client) -> None:
    with wsgi_server(ReadYourWrites(generator_app, blocking)) as url:
        status, headers, body = visit(url)
    assert (status, body) == (200, b"written, twice")
    assert Positions.of_token(headers[HEADER]).offsets == {"view/streamed-0": 1}
    closed: list[str] = []
    body_of = iter(ReadYourWrites(lambda *_: Closing(closed), blocking)({}, lambda *_: None))
    body_of.close()  # type: ignore[attr-defined]
    assert closed == ["closed"]


class Closing:
    """A body that a server closes before it has read any of it, as for HEAD."""

    def __init__(self, closed: list[str]) -> None:
        self.closed = closed

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        raise StopIteration

    def close(self) -> None:
        self.closed.append("closed")


def test_a_daemon_that_does_not_answer_holds_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the daemon is stopped, a read is answered with 503 soon after its timeout, although the client would go on
    for ever, and a write is answered without epochs.
    """
    monkeypatch.setattr(exchange, "LATE_S_MAX", 0.1)
    monkeypatch.setattr(exchange, "EPOCHS_S_MAX", 0.1)
    daemon = DaemonProcess(tmp_path)
    with Client(daemon.address, give_up_after=None) as client:
        client.status()
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            with wsgi_server(ReadYourWrites(flask_app(), client, timeout=0.1)) as url:
                assert visit(f"{url}/read", token=Positions({"view/a-0": 1}).token)[0] == 503
                _, headers, _ = visit(f"{url}/write/a-0/1", method="POST")
                assert Positions.of_token(headers[HEADER]) == Positions({"view/a-0": 1})
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            daemon.kill()
