"""The clients in Go, Java and TypeScript at the real daemon: over connections that are cut, and over a restart that
forgets the session. Single cases are tested in tests/conformance.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from purgatory.v1 import event_pb2, purgatory_service_pb2_grpc
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.conftest import StartDaemon
from tests.daemon_process import DaemonProcess
from tests.service.serving import high_watermark
from tests.strangers.client_builds import BUILT, build_go, build_java, build_typescript
from tests.strangers.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.xdist_group("strangers")

BUILDS: dict[str, Callable[[], list[str]]] = {"go": build_go, "java": build_java, "typescript": build_typescript}
WAITS = 3_000
CUTS = 4
DEADLINE_S = 120.0


@pytest.fixture(scope="module", params=BUILDS)
def client(request: pytest.FixtureRequest) -> list[str]:
    """The command of one client: takes address, topic and count, and prints `id outcome offset` for each result."""
    BUILT.mkdir(parents=True, exist_ok=True)
    language: str = request.param
    return BUILDS[language]()


@contextmanager
def started(
    command: list[str], address: str, count: int, folder: Path, topic: str = "strangers"
) -> Iterator[Callable[[], list[list[str]]]]:
    """Runs a client; yields what waits for its end and returns the words of its lines."""
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


def advance(daemon: DaemonProcess, offset: int) -> None:
    rows = event_pb2.EventRows(events=[high_watermark("strangers", offset)])
    with grpc.insecure_channel(daemon.address) as channel:
        purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).Advance(wire.AdvanceRequest(rows=rows))


def operations_of_kind(daemon: DaemonProcess) -> Counter[str]:
    """How many operations the daemon has seen, by what became of them."""
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


def test_each_wait_ends_exactly_once_over_a_connection_that_is_cut_ten_times(
    client: list[str], start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """The daemon registers each operation once, and the client delivers each result once, whenever it is cut off."""
    daemon = start_daemon()
    proxy = CuttingProxy(daemon.address)
    with started(client, proxy.address, WAITS, tmp_path) as ended:
        for cut in range(CUTS):
            proxy.cut(after_bytes=500, timeout_s=DEADLINE_S)  # it has settings, `opened`, and a receipt or results
            advance(daemon, (cut + 1) * WAITS // (CUTS + 1))
        advance(daemon, WAITS)
        lines = ended()
    proxy.close()
    assert as_expected(lines) == expected_lines(WAITS)
    assert operations_of_kind(daemon) == Counter(registered=WAITS, satisfied=WAITS)


def test_a_daemon_that_has_forgotten_the_session_is_told_of_what_is_pending(
    client: list[str], start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Without a journal a restart begins a new session: what had no result is registered again, and ends once."""
    count = 2_000
    first = start_daemon()
    proxy = CuttingProxy(first.address)
    with started(client, proxy.address, count, tmp_path) as ended:
        advance(first, count // 2)
        proxy.cut(after_bytes=500, timeout_s=DEADLINE_S)
        first.kill()
        second = start_daemon()
        proxy.target = second.address
        advance(second, count)
        lines = ended()
    proxy.close()
    assert as_expected(lines) == expected_lines(count)


class Standby(grpc.GenericRpcHandler):
    """A daemon that stands by: its health is NOT_SERVING, and it refuses calls. Those are kept in `calls`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(8))
        checks = health.HealthServicer()
        checks.set("purgatory.v1.PurgatoryService", health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, self._server)
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.calls.append(handler_call_details.method.rpartition("/")[2])
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    @staticmethod
    def _refuse(_requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAVAILABLE, "stands by")

    def stop(self) -> None:
        self._server.stop(None).wait()


def test_of_several_daemons_the_one_that_serves_is_used(
    client: list[str], start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Given a daemon that stands by, an unknown name, and the daemon that serves, a client waits at the latter. In Go
    and Java health checks find it, without a call to the standby. In TypeScript the session tries one after the other.
    """
    daemon, standby = start_daemon(), Standby()
    try:
        addresses = f"localhost:{standby.port},gone.invalid:7440,{daemon.address}"
        with started(client, addresses, 10, tmp_path) as ended:
            advance(daemon, 10)
            assert as_expected(ended()) == expected_lines(10)
    finally:
        standby.stop()
    assert set(standby.calls) == ({"StreamResults"} if client[0] == "node" else set())
