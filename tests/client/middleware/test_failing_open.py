"""Requests of the middleware while the daemon is killed, paused, full and back: answers, and how long they wait."""

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Client
from purgatory_client.blocking import shared_loop
from purgatory_client.middleware import breaker, exchange, wsgi
from purgatory_client.sources.position_tokens import Positions
from werkzeug.test import Client as Browser

from tests.client.middleware.test_middleware import HEADER, MARK, Answer, App, Visit, both, flask_app, visiting
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually, until_pending
from tests.kit.proxy import NOBODY

STALE = "Purgatory-Stale"
TOKEN = Positions({"pg/main/r1": 10}).token
modes = pytest.mark.parametrize("mode", ["refuse", "serve", "primary"])


def as_told(answer: Answer, mode: str, reason: str) -> bool:
    """Whether the answer to a request whose wait has failed is that of its mode."""
    seen = (answer.status, answer.body.startswith(b"read"), answer.headers.get(STALE))
    if mode == "refuse":
        may_retry = answer.headers.get("Retry-After") == ("1" if reason == "unavailable" else None)
        return seen == ({"not-reached": 504, "unavailable": 503}[reason], False, None) and may_retry
    return seen == (200, True, reason if mode == "serve" else None) and (b"primary" in answer.body) == (
        mode == "primary"
    )


@both
@modes
async def test_wait_that_expires_ends_as_its_mode_says(app: App, mode: str, client: AsyncClient) -> None:
    async with visiting(app, client.address, timeout=0, on_timeout=mode) as visit:
        assert as_told(await visit("GET", "/read", TOKEN), mode, "not-reached")
        await client.advance("pg/main/r1", high_watermark=10)
        reached = await visit("GET", "/read", TOKEN)
        assert (reached.body, reached.headers.get(STALE)) == (b"read from r1", None)
        assert (await visit("GET", "/read", "nonsense")).status == 400


@both
@modes
async def test_no_request_waits_beyond_its_limit_while_the_daemon_is_paused_or_killed(
    app: App, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that had begun to wait wait at all. When the daemon is back, requests wait for it again."""
    monkeypatch.setattr(exchange, "LATE_S_MAX", 0.3)
    monkeypatch.setattr(breaker, "PAUSE_S", 0.05)
    async with AsyncExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess(tmp_path / "1"))
        serving = visiting(app, daemon.address, give_up_after=None, timeout=0.2, on_timeout=mode)
        visit = await stack.enter_async_context(serving)

        async def serves_again(address: str) -> None:
            async with AsyncClient(address) as client:
                await client.advance("pg/main/r1", high_watermark=10)
            await eventually(lambda: is_reached(visit), "requests wait for the daemon again")

        await serves_again(daemon.address)
        for fault in (signal.SIGSTOP, signal.SIGKILL):
            began_s = time.monotonic()
            daemon.process.send_signal(fault)
            first = await asyncio.gather(*(visit("GET", "/read", TOKEN) for _ in range(4)))
            first_s = time.monotonic() - began_s
            later = [await visit("GET", "/read", TOKEN) for _ in range(40)]
            assert all(as_told(one, mode, "unavailable") for one in [*first, *later])
            # Each of them would have waited for as long as the first ones did, which is at least its own timeout.
            assert time.monotonic() - began_s - first_s < first_s * 20
            written = await visit("POST", "/write?offset=7")
            assert (written.status, written.written) == (200, Positions({MARK: 7}))
            if fault is signal.SIGSTOP:
                daemon.process.send_signal(signal.SIGCONT)
                await eventually(lambda: is_reached(visit), "requests wait for the daemon again")
        daemon.kill()
        again = stack.enter_context(DaemonProcess(tmp_path / "2", ["--grpc-address", daemon.address]))
        await serves_again(again.address)


@modes
def test_open_breaker_answers_threads_without_the_event_loop(mode: exchange.OnTimeout) -> None:
    began, may_end = threading.Event(), threading.Event()

    async def blocking() -> None:
        began.set()
        may_end.wait()

    with ThreadPoolExecutor(2) as threads, Client(NOBODY, give_up_after=None) as client:
        app = wsgi.ReadYourWrites(flask_app(), client, timeout=0, on_timeout=mode)

        def visit() -> bool:
            written = Browser(app).post("/write?offset=7")
            answer = Browser(app).get("/read", headers={HEADER: TOKEN})
            assert Positions.of_token(written.headers[HEADER]) == Positions({MARK: 7})
            return as_told(Answer(answer.status_code, dict(answer.headers), answer.data), mode, "unavailable")

        assert visit()
        threads.submit(shared_loop().run, blocking())
        began.wait()
        try:
            assert threads.submit(visit).result(timeout=30)
        finally:
            may_end.set()
    assert app.counts == {"unavailable": 2}


async def is_reached(visit: Visit) -> bool:
    answer = await visit("GET", "/read", TOKEN)
    return answer.body == b"read from r1" and STALE not in answer.headers


@both
@modes
async def test_full_daemon_is_not_waited_for(app: App, mode: str, tmp_path: Path) -> None:
    """It answers, so the breaker stays closed, and the first request after that waits again."""
    with DaemonProcess(tmp_path, ["--limits-pending-operations-max", "1"]) as daemon:
        async with (
            AsyncClient(daemon.address) as client,
            visiting(app, daemon.address, timeout=60, on_timeout=mode) as visit,
        ):
            filling = asyncio.create_task(client.signal(["never"], timeout=60))
            await until_pending(client, 1)
            assert as_told(await visit("GET", "/read", TOKEN), mode, "unavailable")
            filling.cancel()
            await until_pending(client, 0)
            reading = asyncio.create_task(visit("GET", "/read", TOKEN))
            await until_pending(client, 1)
            await client.advance("pg/main/r1", high_watermark=10)
            assert (await reading).body == b"read from r1"
