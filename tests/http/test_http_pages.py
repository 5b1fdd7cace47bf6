"""The HTTP site alone: the response of each path."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any

import aiohttp
import pytest
import uvloop
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from purgatory.service.http import metrics_page
from purgatory.service.http.http_connection import HttpConnection
from purgatory.service.http.metrics_page import MetricsPage
from purgatory.service.http.probes import probe_routes
from purgatory.service.http.site import HttpSite


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


async def test_metrics_are_text_for_prometheus(session: aiohttp.ClientSession) -> None:
    """The classic text format with its content type, unless another one is requested."""
    async with session.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(await response.text()))
    assert [(family.name, family.samples[0].value) for family in families] == [("purgatory_answer", 42)]


@pytest.mark.parametrize(
    ("accept", "is_open_metrics"),
    [
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("text/plain;q=1, application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0", False),
        ("text/plain, application/openmetrics-text; q=0.9", False),
        ("text/plain;q=0.2, Application/OpenMetrics-Text; Q=0.3", True),
        ("application/openmetrics-text;q=much", False),
    ],
)
async def test_the_format_is_chosen_by_weight(
    session: aiohttp.ClientSession, accept: str, is_open_metrics: bool
) -> None:
    """OpenMetrics, if it is accepted with a weight above 0 and not below the weight of the text format."""
    async with session.get("/metrics", headers={"Accept": accept}) as response:
        kind = response.headers["Content-Type"].partition(";")[0]
    assert kind == ("application/openmetrics-text" if is_open_metrics else "text/plain")


@pytest.mark.parametrize(("interval_s", "answers"), [(0.0, [1, 2, 3]), (60.0, [1, 1, 1])])
async def test_metrics_are_computed_at_most_once_an_interval(
    interval_s: float, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often and in whichever format they are requested."""
    monkeypatch.setattr(metrics_page, "INTERVAL_S", interval_s)
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
