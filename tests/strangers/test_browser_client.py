"""client/typescript in a real browser, by Connect over the HTTP port: the same session as in Node."""

from collections import Counter
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.kit.daemon import DaemonProcess
from tests.kit.proxy import proxy_thread
from tests.pipeline.page.browser import chromium_path, running_browser
from tests.strangers.client_builds import bundle_typescript
from tests.strangers.test_clients import (
    WAITS,
    advance_and_cut,
    as_expected,
    expected_lines,
    operations_of,
)

pytestmark = pytest.mark.xdist_group("strangers")

START = """([url, count, topic]) => {
  const session = purgatory.openSession(url);
  const wait = async (offset) => {
    const partitions = [{ topicPartition: { topic }, requiredOffset: BigInt(offset) }];
    const result = await session.wait({ timeoutMs: 600_000n, condition: { case: "produce", value: { partitions } } });
    const outcome = result.outcome === 1 ? "SATISFIED" : `outcome ${result.outcome}`;
    return [`${result.operationId}`, outcome, `${result.partitions[0].requiredOffset}`];
  };
  const waits = Array.from({ length: count }, (_, index) => wait(index + 1));
  window.ended = Promise.all(waits).then(async (lines) => { await session.close(); return lines; });
}"""


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page."""
    with running_browser(chromium_path()) as browser:
        yield browser.new_page()


def test_a_browser_resumes_a_session_over_a_connection_that_is_cut(page: Page, shared_daemon: DaemonProcess) -> None:
    bundle = bundle_typescript()
    before = operations_of(shared_daemon)
    with proxy_thread(shared_daemon.http_address) as (proxy, thread):
        url = f"http://{proxy.address}"
        page.route(f"{url}/waits.html", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
        page.goto(f"{url}/waits.html")
        page.add_script_tag(content=bundle.read_text("utf-8"))
        page.evaluate(START, [url, WAITS, "browser"])
        advance_and_cut(lambda count: thread.run(proxy.drop_after(count)), shared_daemon, "browser")
        lines: list[list[str]] = page.evaluate("() => window.ended")
    assert as_expected(lines) == expected_lines(WAITS)
    assert operations_of(shared_daemon) - before == Counter(registered=WAITS, satisfied=WAITS)
