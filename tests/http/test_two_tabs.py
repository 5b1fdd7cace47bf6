"""Two pages of a real browser that read the results of one session with EventSource."""

import grpc
import pytest

from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.daemon import DaemonThread, ServeDaemon
from tests.kit.messages import register_request, signal
from tests.pipeline.page.browser import chromium_path, running_browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

DEADLINE_MS = 60_000
READ = """() => {
  window.heard = [];
  const source = window.source = new EventSource("/v1/results?session=s");
  for (const name of ["opened", "message", "going_away"]) source.addEventListener(name, () => window.heard.push(name));
}"""
STOPPED = "() => window.source.readyState === EventSource.CLOSED"
"""Unlike a lost connection, after which the browser reconnects by itself."""


def test_the_newer_tab_keeps_the_session(serve_daemon: ServeDaemon) -> None:
    """The older tab reconnects once by itself, gets status 204 and stops. The newer tab is not interrupted."""
    daemon = serve_daemon()
    with running_browser(chromium_path()) as browser:
        older, newer = browser.new_page(), browser.new_page()
        for page in (older, newer):
            page.goto(f"http://{daemon.http_address}/healthz")
            page.evaluate(READ)
            page.wait_for_function("() => window.heard.length === 1", timeout=DEADLINE_MS)
        older.wait_for_function(STOPPED, timeout=DEADLINE_MS)
        register_ended(daemon)
        newer.wait_for_function("() => window.heard.length === 2", timeout=DEADLINE_MS)
        assert older.evaluate("() => window.heard") == ["opened", "going_away"]
        assert newer.evaluate("() => window.heard") == ["opened", "message"]


def register_ended(daemon: DaemonThread) -> None:
    """Register an operation of the session that ends at once."""
    with grpc.insecure_channel(daemon.address) as channel:
        request = register_request("s", signal(1, "k", timeout_ms=0))
        PurgatoryServiceStub(channel).Register(request)
