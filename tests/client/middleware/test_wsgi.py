"""The middleware in a real WSGI server, with Flask and Django, against a real daemon."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from wsgiref.types import WSGIApplication

import django
import flask
import pytest
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from purgatory_client import Client
from purgatory_client.middleware import wrote
from purgatory_client.middleware.wsgi import ReadYourWrites
from purgatory_client.sources.position_tokens import Positions

from tests.client.middleware.web_servers import wsgi_server
from tests.daemon_process import DaemonProcess, wait_until

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


urlpatterns = [path("write/<mark>/<int:offset>", django_write), path("read", django_read)]


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
    """A write returns a token; a read with it waits, and is answered with 504 if that takes too long."""
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
    """A request with a token is told to try again; a write has a token without epochs."""
    with Client("127.0.0.1:1", give_up_after=0.0) as nobody, wsgi_server(ReadYourWrites(flask_app(), nobody)) as url:
        assert visit(f"{url}/read", token=Positions({"view/a-0": 1}).token)[0] == 503
        assert Positions.of_token(visit(f"{url}/write/a-0/1", method="POST")[1][HEADER]) == Positions({"view/a-0": 1})
