"""The leader of a pair of daemons is killed or stopped, and its clients find the next one: those in Go, Java,
TypeScript and Python, and HTTP and gRPC through HAProxy with the configuration in docs/fleet.md.

The tests need PostgreSQL. Without HAProxy the balancer is left out; with PURGATORY_REQUIRE_HAPROXY=1 a test fails.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from purgatory_client import Client, errors

from examples.free_ports import free_port
from purgatory.replicated_log.leadership import EXIT_REPLACED
from tests.docs.pages import texts
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.fleet import Member
from tests.kit.programs import fleet_command, skip_unless_required
from tests.postgres.conftest import not_started
from tests.strangers.client_builds import tool_path
from tests.strangers.test_clients import BUILDS, as_expected, expected_lines, started

pytestmark = [pytest.mark.xdist_group("strangers"), pytest.mark.slow]

CLIENTS: Final = BUILDS | {"python": lambda: [sys.executable, str(Path(__file__).with_name("python_resume.py"))]}
SILENCE: Final = ("--fleet-silence-ms", "2000")
WAITS: Final = 500
REFUSED: Final = {502, 503, 504}
"""How the balancer answers while no daemon leads."""


class Pair:
    """Two daemons over one log. On a busy machine the standby may take over although the leader has not failed."""

    def __init__(self, members: tuple[Member, Member]) -> None:
        self.members: Final = members
        self.client: Final = Client(",".join(one.grpc_address for one in members))
        self._failed: Member | None = None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Daemons that end are started again, except for the one that failed."""

        def is_met() -> bool:
            for member in self.members:
                if member is not self._failed:
                    member.start_if_ended()
            try:
                return condition()
            except errors.Unavailable:
                return False

        wait_until(is_met, what)

    def until_ready(self) -> None:
        """Wait until one leads and the other has caught up. A daemon that was stopped must exit when it continues."""
        failed, self._failed = self._failed, None
        if failed is not None and failed.is_running:
            failed.process.send_signal(signal.SIGCONT)
            assert failed.process.wait(PATIENCE_S) == EXIT_REPLACED, failed.log
        self.until(lambda: all(one.answers("/readyz") for one in self.members), "both are ready")
        self.until(lambda: sum(one.answers("/leaderz") for one in self.members) == 1, "one of them leads")

    def fail(self, fault: signal.Signals) -> None:
        """Kill or stop the leader, and wait until the other daemon leads."""
        self._failed = next(one for one in self.members if one.answers("/leaderz"))
        [other] = {*self.members} - {self._failed}
        self._failed.process.send_signal(fault)
        self.until(lambda: other.answers("/leaderz"), "the other daemon leads")

    def advance(self, topic: str, offset: int) -> None:
        self.until(lambda: self.client.advance(f"{topic}-0", high_watermark=offset) is not None, "the mark is accepted")

    def pending(self) -> int:
        """The count of pending operations at the leader."""
        return sum(kind.pending for kind in self.client.status().kinds)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two daemons over a new log."""
    folder = tmp_path_factory.mktemp("pair")
    with not_started() as servers, ExitStack() as stack:
        url = f"postgresql://postgres@{servers.primary().address}/postgres"
        assert fleet_command(["init", url]) == 0
        members = Member("a", folder, url, SILENCE), Member("b", folder, url, SILENCE)
        for member in members:
            stack.callback(member.end)
        pair = Pair(members)
        stack.callback(pair.client.close)
        yield pair


@pytest.fixture
def pair(daemons: Pair) -> Pair:
    """A leader and its standby, which has caught up."""
    daemons.until_ready()
    return daemons


@contextmanager
def sessions(pair: Pair, topic: str, folder: Path) -> Iterator[None]:
    """Clients in four languages, given both addresses, get one result for each wait: half of them are due before the
    block, in which the leader fails, the others afterwards.
    """
    addresses = ",".join(one.grpc_address for one in pair.members)
    ended: dict[str, Callable[[], list[list[str]]]] = {}
    with ExitStack() as stack:
        for language, build in CLIENTS.items():
            (folder / language).mkdir()
            ended[language] = stack.enter_context(started(build(), addresses, WAITS, folder / language, topic))
        pair.until(lambda: pair.pending() >= len(CLIENTS) * WAITS, "all waits are registered")
        pair.advance(topic, WAITS // 2)
        yield
        pair.advance(topic, WAITS)
        for language, lines in ended.items():
            assert as_expected(lines()) == expected_lines(WAITS), language


@contextmanager
def haproxy(program: str, pair: Pair, folder: Path) -> Iterator[tuple[str, str]]:
    """HAProxy with the configuration on the page, in which addresses are replaced. Yields its HTTP and gRPC address."""
    [page] = texts("docs/fleet.md", "haproxy")
    http, grpc_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    replaced = {"bind :7441": f"bind {http}", "bind :7440": f"bind {grpc_address}"}
    for name, member in zip(("10.0.0.1", "10.0.0.2"), pair.members, strict=True):
        probed = member.http_address.rpartition(":")[2]
        replaced[f"{name}:7441"] = member.http_address
        replaced[f"{name}:7440 port 7441"] = f"{member.grpc_address} port {probed}"
    for found, put in replaced.items():
        assert found in page, found
        page = page.replace(found, put)
    configuration, log = folder / "haproxy.cfg", folder / "haproxy.log"
    configuration.write_text(page)
    with log.open("w") as written:
        process = subprocess.Popen([program, "-db", "-f", str(configuration)], stdout=written, stderr=written)
    try:
        # Until the first probe it takes both daemons for leaders. Each of them is probed for HTTP and for gRPC.
        wait_until(lambda: log.read_text().count("is DOWN") >= 2, "the balancer has found the standby")
        yield http, grpc_address
    except AssertionError as failed:
        failed.add_note(f"HAProxy wrote:\n{log.read_text()}")
        raise
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def call(address: str, method: str, request: object) -> tuple[int, Any]:
    """A call with JSON: status and answer."""
    url = f"http://{address}/purgatory.v1.PurgatoryService/{method}"
    body = json.dumps(request).encode()
    try:
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, error.read()


@contextmanager
def balanced_calls(program: str, pair: Pair, topic: str, folder: Path) -> Iterator[None]:
    """Calls through HAProxy are served by the leader, and after that has failed, in the block, by the next one, which
    has the wait of the session. A unary wait ends with an error when its leader fails.
    """
    session = f"session-{topic}"

    def produce(offset: int) -> dict[str, Any]:
        partitions = [{"topicPartition": {"topic": topic}, "requiredOffset": offset}]
        return {"timeoutMs": 600_000, "produce": {"partitions": partitions}}

    def is_served(method: str, request: object) -> bool:
        status, answer = call(http, method, request)
        assert status in {200, *REFUSED}, answer
        return status == 200

    def advance(offset: int) -> None:
        event = {"topicPartition": {"topic": topic}, "highWatermark": {"offset": offset}}
        pair.until(lambda: is_served("Advance", {"rows": {"events": [event]}}), "the mark is accepted")

    with haproxy(program, pair, folder) as (http, grpc_address), ThreadPoolExecutor() as threads:
        batch = {"rows": {"operations": [{"operationId": 1, **produce(2)}]}}
        pair.until(lambda: is_served("Register", {"sessionId": session, "batch": batch}), "a wait is registered")
        advance(1)
        pair.until(lambda: is_served("Wait", {"operation": produce(1)}), "the mark has been reached")
        unary = threads.submit(call, http, "Wait", {"operation": produce(2)})
        pair.until(lambda: unary.done() or pair.pending() == 2, "both waits are pending")
        yield
        assert unary.result()[0] in REFUSED
        advance(2)
        with urlopen(f"http://{http}/v1/results?session={session}", timeout=PATIENCE_S) as results:
            assert any(b"OUTCOME_SATISFIED" in line for line in results)
        with Client(grpc_address) as client:
            pair.until(lambda: client.partition(f"{topic}-0").high_watermark == 2, "gRPC finds the leader too")


@pytest.fixture(scope="module")
def balancer() -> str | None:
    """The program haproxy, if there is one."""
    return shutil.which("haproxy", path=f"{tool_path()}:/usr/sbin:/usr/local/sbin")


def test_the_balancer_is_there(balancer: str | None) -> None:
    """Without HAProxy, the next tests run without a balancer."""
    if balancer is None:
        skip_unless_required("HAPROXY", "haproxy is missing")


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["kill", "stop"])
def test_callers_continue_at_the_next_leader(
    pair: Pair, balancer: str | None, fault: signal.Signals, tmp_path: Path
) -> None:
    """Sessions get each result once, and the balancer finds the daemon that leads. A connection to a daemon that is
    stopped stays open: in Go and Java it takes 11 s to notice that, as gRPC sends no pings within 10 s there.
    """
    with ExitStack() as callers:
        if balancer is not None:
            callers.enter_context(balanced_calls(balancer, pair, f"balanced{fault}", tmp_path))
        callers.enter_context(sessions(pair, f"failover{fault}", tmp_path))
        pair.fail(fault)
    pair.until(lambda: pair.pending() == 0, "nothing is pending")
