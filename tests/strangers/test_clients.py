"""The clients in Go, Java and TypeScript at the real daemon, over connections that are cut; TypeScript also in a real
browser, by Connect over the HTTP port. Single cases are tested in tests/conformance, a daemon that stands by in
test_failover.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from playwright.sync_api import Page
from purgatory_client.partition_names import WHOLE_PREFIXES

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.kit.daemon import DaemonProcess
from tests.kit.messages import advance_request, high_watermark
from tests.kit.proxy import proxy_thread
from tests.pipeline.page.browser import chromium_path, running_browser
from tests.strangers.client_builds import BUILT, CLIENTS, build_go, build_java, build_typescript, bundle_typescript

pytestmark = pytest.mark.xdist_group("strangers")

BUILDS: dict[str, Callable[[], list[str]]] = {"go": build_go, "java": build_java, "typescript": build_typescript}
WAITS = 2_500
CUTS = 4
DEADLINE_S = 120.0


@pytest.fixture(scope="module", params=BUILDS)
def client(request: pytest.FixtureRequest) -> list[str]:
    """The command of one client: takes address, topic and count, and prints `id outcome offset` for each result."""
    BUILT.mkdir(parents=True, exist_ok=True)
    language: str = request.param
    return BUILDS[language]()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name)


@contextmanager
def started(
    command: list[str], address: str, count: int, folder: Path, topic: str
) -> Iterator[Callable[[], list[list[str]]]]:
    """Runs a client; yields a function that waits for its end and returns the words of its lines."""
    out, err = folder / "out", folder / "err"
    with out.open("w") as out_file, err.open("w") as err_file:
        process = subprocess.Popen([*command, address, topic, str(count)], stdout=out_file, stderr=err_file)

    def ended() -> list[list[str]]:
        assert process.wait(DEADLINE_S) == 0, err.read_text()
        return [line.split() for line in out.read_text().splitlines()]

    try:
        yield ended
    except AssertionError as failed:
        failed.add_note(f"the client wrote {out.stat().st_size} bytes, and to stderr:\n{err.read_text()[-2_000:]}")
        raise
    finally:
        process.kill()
        process.wait()


def advance(daemon: DaemonProcess, topic: str, offset: int) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).Advance(advance_request(high_watermark(topic, offset)))


def advance_and_cut(cut: Callable[[int], None], daemon: DaemonProcess, topic: str) -> None:
    """Satisfy the waits bit by bit, and cut the connection whenever some results have passed, and at its beginning."""
    for number in range(1, CUTS + 1):
        advance(daemon, topic, number * WAITS // (CUTS + 1))
        cut(500)
    advance(daemon, topic, WAITS)


def operations_of(daemon: DaemonProcess) -> Counter[str]:
    """How many operations the daemon has registered and satisfied."""
    with grpc.insecure_channel(daemon.address) as channel:
        status = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest())
    counts: Counter[str] = Counter()
    for kind in status.kinds:
        counts.update(registered=kind.registered, satisfied=kind.satisfied)
    return counts


def expected_lines(count: int) -> list[tuple[int, bool, int]]:
    return [(number, True, number) for number in range(1, count + 1)]


def as_expected(lines: list[list[str]]) -> list[tuple[int, bool, int]]:
    """Each language has its own name for OUTCOME_SATISFIED."""
    return sorted((int(number), "SATISFIED" in outcome.upper(), int(offset)) for number, outcome, offset in lines)


def test_each_wait_ends_exactly_once_over_a_connection_that_is_cut(
    client: list[str], shared_daemon: DaemonProcess, topic: str, tmp_path: Path
) -> None:
    before = operations_of(shared_daemon)
    with (
        proxy_thread(shared_daemon.address) as (proxy, thread),
        started(client, proxy.address, WAITS, tmp_path, topic) as ended,
    ):
        advance_and_cut(lambda count: thread.run(proxy.drop_after(count)), shared_daemon, topic)
        lines = ended()
    assert as_expected(lines) == expected_lines(WAITS)
    assert operations_of(shared_daemon) - before == Counter(registered=WAITS, satisfied=WAITS)


@pytest.mark.parametrize(
    ("path", "separator"),
    [
        ("go/waits.go", '", "'),
        ("java/src/main/java/purgatory/client/Condition.java", "|"),
        ("typescript/src/waits.ts", "|"),
    ],
)
def test_client_has_the_same_names_without_partitions_as_that_in_python(path: str, separator: str) -> None:
    kinds = separator.join(prefix.rstrip("/") for prefix in WHOLE_PREFIXES)
    assert kinds in (CLIENTS / path).read_text("utf-8")


# TypeScript.


START = Path(__file__).with_name("waits_in_a_browser.js").read_text("utf-8")


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


PROGRAM = Path(__file__).with_name("count_listeners.mjs").read_text("utf-8")


def test_listeners_do_not_accumulate(shared_daemon: DaemonProcess) -> None:
    """A hundred waits share one listener, all are cancelled by it, and Node warns of nothing."""
    BUILT.mkdir(parents=True, exist_ok=True)
    build_typescript()
    command = ["node", "--input-type=module", "-e", PROGRAM, shared_daemon.address]
    ran = subprocess.run(command, cwd=CLIENTS / "typescript", capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.stderr) == ("0 true 1 enough \n", "")
