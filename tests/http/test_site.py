"""The HTTP site: the response of each path, metrics, and its end. On loopback, pages of other sites are refused,
whichever way they send requests.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from purgatory.service.access.tokens import add_token
from purgatory.service.http import monitoring
from purgatory.service.http.http_connection import HttpConnection
from purgatory.service.http.monitoring import MetricsPage, probe_routes
from purgatory.service.http.site import HttpSite, is_own_host
from tests.http.http_serving import SERVICE, RawConnection, request, serving_http
from tests.kit.daemon import DaemonProcess, ServeDaemon, access_flags
from tests.kit.recorded import assert_recorded, cases_of

ACCEPTED, CALLERS, HOSTS = (Path(__file__).with_name(f"{name}.txt") for name in ("accepted", "callers", "hosts"))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    registry = CollectorRegistry()
    Gauge("purgatory_answer", "For the test.", registry=registry).set(42)
    routes = [*probe_routes(lambda: True), *MetricsPage(registry).routes()]
    site = HttpSite(routes)
    port = await site.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        yield client
    await site.stop()


async def test_site_that_is_stopped_at_once_no_longer_listens() -> None:
    """Its accepting task is cancelled before its first step, so the site itself closes the sockets."""
    site = HttpSite([])
    port = await site.start("127.0.0.1", 0)
    await site.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_the_format_of_metrics_is_chosen_by_weight(session: aiohttp.ClientSession) -> None:
    """As in accepted.txt: OpenMetrics, if it is accepted with a weight above 0 and not below that of the classic text
    format.
    """

    async def kind_of(accept: str) -> str:
        async with session.get("/metrics", headers={"Accept": json.loads(accept)}) as response:
            families = list(text_string_to_metric_families(await response.text()))
            assert [(family.name, family.samples[0].value) for family in families] == [("purgatory_answer", 42)]
            return response.headers["Content-Type"].partition(";")[0]

    assert_recorded(ACCEPTED, [await kind_of(case) for case in cases_of(ACCEPTED)])


@pytest.mark.parametrize(("interval_s", "answers"), [(0.0, [1, 2, 3]), (60.0, [1, 1, 1])])
async def test_metrics_are_computed_at_most_once_an_interval(
    interval_s: float, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often and in whichever format they are requested."""
    monkeypatch.setattr(monitoring, "INTERVAL_S", interval_s)
    computed = count(1)
    registry = CollectorRegistry()
    Gauge("purgatory_computed", "For the test.", registry=registry).set_function(lambda: next(computed))
    site = HttpSite(MetricsPage(registry).routes())
    port = await site.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        pages = [
            await (await client.get("/metrics", headers={"Accept": f"text/plain; version=1.0.{place}"})).text()
            for place, _ in enumerate(answers)
        ]
    await site.stop()
    assert [next(iter(text_string_to_metric_families(page))).samples[0].value for page in pages] == answers


async def test_other_paths_and_methods_are_refused(session: aiohttp.ClientSession) -> None:
    async with session.get("/nothing") as response:
        assert (response.status, (await response.json())["code"]) == (404, "unimplemented")
    async with session.post("/metrics") as response:
        assert response.status == 405
        assert "POST is not served at /metrics; send" in (await response.json())["message"]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_site_that_stops_while_a_connection_is_made(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that has arrived already is answered or given up, without an error."""
    stopping: list[asyncio.Task[None]] = []
    arrived = asyncio.Event()
    receive = HttpConnection.data_received

    async def check() -> None:
        site = HttpSite(probe_routes(lambda: True))

        def receive_and_stop(connection: HttpConnection, data: bytes) -> None:
            receive(connection, data)
            stopping.append(asyncio.create_task(site.stop()))
            arrived.set()

        monkeypatch.setattr(HttpConnection, "data_received", receive_and_stop)
        port = await site.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await arrived.wait()
            await asyncio.gather(*stopping)

    run(check())
    assert not caplog.records


async def test_who_may_ask() -> None:
    """As in callers.txt. Programs, pages of the daemon itself and typed addresses are served. Pages of other sites are
    refused, and so are other host names, which an attacker may have pointed to this machine. A token that is not
    verified makes no difference.
    """
    async with serving_http() as caller:

        async def statuses(case: str) -> str:
            headers = json.loads(case)
            sent = {"content-type": "application/json", **headers}
            async with (
                caller.client.post(f"{SERVICE}/GetStatus", data=b"{}", headers=sent) as call,
                caller.client.get("/v1/watch", headers=headers) as stream,
            ):
                return f"{call.status} {stream.status}"

        assert_recorded(CALLERS, [await statuses(case) for case in cases_of(CALLERS)])


def test_own_hosts_are_those_of_the_settings_and_of_no_name_server() -> None:
    """As in hosts.txt."""
    own = ["purgatory.example.org", "*.example.net"]
    assert_recorded(HOSTS, (f"{is_own_host(json.loads(case), own)}" for case in cases_of(HOSTS)))


POLICY = '[[grant]]\nto = ["caller"]\nroles = ["observe", "wait"]\ntopics = ["*"]\n'


@pytest.mark.parametrize("is_insecure", [False, True])
def test_a_token_counts_where_a_policy_verifies_it(
    serve_daemon: ServeDaemon, tmp_path: Path, is_insecure: bool
) -> None:
    """With a wrong Host header, a call with a valid token is served. A page is served with a token only if pages
    require tokens, which they do not on loopback. A wrong token is refused.
    """
    flags = access_flags(tmp_path, POLICY)
    token = add_token(tmp_path / "tokens", "caller")
    public = ("--http-address", "127.1:0", "--insecure") if is_insecure else ()
    daemon = serve_daemon(*flags, *public)
    call, headers = f"{SERVICE}/GetStatus", {"content-type": "application/json"}
    for host, authorization, path, status in [
        ("localhost", f"Bearer {token}", call, 200),
        ("evil.example", f"Bearer {token}", call, 200),
        ("evil.example", "Bearer wrong", call, 401),
        ("evil.example", None, call, 421),
        ("evil.example", f"Bearer {token}", "/metrics", 200 if is_insecure else 421),
        ("evil.example", "", "/metrics", 401 if is_insecure else 421),
        ("evil.example", None, "/healthz", 200),
    ]:
        given = headers | {"host": host} | ({} if authorization is None else {"authorization": authorization})
        is_call = path == call
        with RawConnection(daemon.http_address.replace("127.1:", "127.0.0.1:")) as connection:
            connection.send(request("POST" if is_call else "GET", path, given, b"{}" if is_call else None))
            assert connection.answer().status == status, (host, authorization, path)


def test_names_of_the_daemon_behind_a_proxy(serve_daemon: ServeDaemon) -> None:
    """Without TLS the guard also applies to a public address. `http.allowed_hosts` allows names in the Host header and
    in the Origin header of a page.
    """
    daemon = serve_daemon(
        "--http-address", "127.1:0", "--insecure", "--http-allowed-hosts", "purgatory.example.org *.internal"
    )
    for headers, status in [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example", "authorization": "Bearer x"}, 421),
        ({"host": "purgatory.example.org"}, 200),
        ({"host": "a.internal:80"}, 200),
        ({"host": "127.0.0.1:7441", "origin": "https://purgatory.example.org"}, 200),
        ({"host": "127.0.0.1:7441", "origin": "https://evil.example"}, 403),
        ({"host": "a.internal", "origin": "http://localhost"}, 403),
    ]:
        with RawConnection(daemon.http_address.replace("127.1:", "127.0.0.1:")) as connection:
            connection.send(request("GET", "/", headers))
            assert connection.answer().status == status, headers


@pytest.mark.parametrize(
    "headers",
    [b"Sec-Fetch-Site: Cross-Site", b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: same-site",
     b"Origin: http://localhost\r\nOrigin: http://evil.example"],
)  # fmt: skip
def test_foreign_page_is_refused_by_any_of_its_headers(shared_daemon: DaemonProcess, headers: bytes) -> None:
    """However the browser spells it, and also if the first header of that name is harmless."""
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n")
        assert connection.answer().status == 403
