"""client/typescript: in a real browser by Connect over the HTTP port, and signals that cancel waits in Node."""

import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.kit.daemon import DaemonProcess
from tests.kit.proxy import proxy_thread
from tests.pipeline.page.browser import chromium_path, running_browser
from tests.strangers.client_builds import BUILT, CLIENTS, build_typescript, bundle_typescript
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


PROGRAM = """
import { getEventListeners } from "node:events";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Session } from "./dist/session.js";

const warnings = [];
process.on("warning", ({ name }) => warnings.push(name));
const session = new Session(createGrpcTransport({ baseUrl: `http://${process.argv[1]}` }), crypto.randomUUID());
const user = new AbortController();
const wait = (timeoutMs) =>
  session.wait({ timeoutMs, condition: { case: "signal", value: { keys: [{ key: "never" }] } } }, user.signal);
for (let round = 0; round < 20; round++) await wait(1n);
const listeners = () => [user.signal, session.connection.signal].map((one) => getEventListeners(one, "abort").length);
const [ofUser, ofConnection] = listeners();
const waits = Array.from({ length: 100 }, () => wait(600_000n).catch((reason) => reason));
const [shared] = listeners();
user.abort("enough");
const reasons = new Set(await Promise.all(waits));
await session.close();
await new Promise((resolve) => setImmediate(resolve)); // warnings are emitted in the next tick
console.log(ofUser, ofConnection < 5, shared, [...reasons].join(), warnings.join());
process.exit(0);
"""


@pytest.mark.xdist_group("strangers")
def test_listeners_do_not_accumulate(shared_daemon: DaemonProcess) -> None:
    """A hundred waits share one listener, all are cancelled by it, and Node warns of nothing."""
    BUILT.mkdir(parents=True, exist_ok=True)
    build_typescript()
    command = ["node", "--input-type=module", "-e", PROGRAM, shared_daemon.address]
    ran = subprocess.run(command, cwd=CLIENTS / "typescript", capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.stderr) == ("0 true 1 enough \n", "")
