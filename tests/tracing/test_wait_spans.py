"""Spans of waits, sent to a receiver that implements OpenTelemetry's protocol."""

import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc
import httpcore
import pytest

from purgatory.extension import StartupError
from purgatory.extensions import tracing
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.daemon import DaemonThread, ServeDaemon, StartDaemon
from tests.kit.eventually import wait_until
from tests.kit.messages import advance_request, high_watermark, produce, register_request
from tests.kit.post_server import PostServer, reply

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


WAIT_S = 30
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
RECORDED = ("traceparent", f"00-{TRACE}-{PARENT}-01")
NOT_RECORDED = ("traceparent", f"00-{TRACE}-{PARENT}-00")


def environment(port: int) -> dict[str, str]:
    """Environment variables for a daemon that sends spans to a port."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    return {"PURGATORY_TRACING_ENABLED": "true", "OTEL_BSP_SCHEDULE_DELAY": "50", **endpoint}


class Receiver(PostServer):
    """Accepts spans."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self.spans: list[Any] = []

    def _take(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        assert request.headers.get("content-encoding") is None, "it was not asked for"
        sent = collector.ExportTraceServiceRequest.FromString(body)
        scopes = [scope for resource in sent.resource_spans for scope in resource.scope_spans]
        self.spans += [span for scope in scopes for span in scope.spans]
        reply(request, 200)

    def wait(self, count: int) -> list[Any]:
        """Wait for `count` spans and return them."""
        wait_until(lambda: len(self.spans) >= count, lambda: f"{len(self.spans)} of {count} spans are there")
        return self.spans


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Receiver, DaemonThread]]:
    """A daemon that sends its spans to a receiver."""
    with Receiver() as receiver:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment(receiver.port).items():
                patch.setenv(name, value)
            daemon = DaemonThread()
        yield receiver, daemon
        daemon.stop()


@pytest.fixture
def receiver(traced: tuple[Receiver, DaemonThread]) -> Receiver:
    """The receiver, without the spans of earlier tests."""
    traced[0].spans.clear()
    return traced[0]


@pytest.fixture
def stub(traced: tuple[Receiver, DaemonThread]) -> Iterator[PurgatoryServiceStub]:
    with grpc.insecure_channel(traced[1].address) as channel:
        yield PurgatoryServiceStub(channel)


def attributes(span: Any) -> dict[str, Any]:  # noqa: ANN401 - of generated code without types
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_a_wait_is_a_span_below_its_callers(stub: PurgatoryServiceStub, receiver: Receiver) -> None:
    """A caller that records no trace gets no span."""
    for metadata in ([], [NOT_RECORDED], [("traceparent", "nonsense")], [RECORDED]):
        stub.Wait(wire.WaitRequest(operation=produce(1, "orders", 5, 20)), timeout=WAIT_S, metadata=metadata)
    (span,) = receiver.wait(1)
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.name) == (TRACE, PARENT, "wait produce")
    found = attributes(span)
    assert (found["purgatory.outcome"], found["purgatory.first"]) == ("expired", "orders-0")
    assert span.end_time_unix_nano - span.start_time_unix_nano == found["purgatory.waited_ms"] * 1_000_000


def test_the_waits_of_a_batch_have_a_span_each(stub: PurgatoryServiceStub, receiver: Receiver) -> None:
    """Sending the batch again creates no second spans."""
    request = register_request("s", *[produce(number, "orders", number, 10_000) for number in range(1, 6)])
    for _ in range(2):
        stub.Register(request, timeout=WAIT_S, metadata=[RECORDED])
    stub.Advance(advance_request(high_watermark("orders", 3)), timeout=WAIT_S)
    found = [attributes(span) for span in receiver.wait(3)]
    assert sorted(one["purgatory.operation_id"] for one in found) == [1, 2, 3]
    assert {(one["purgatory.session"], one["purgatory.outcome"]) for one in found} == {("s", "satisfied")}
    stub.Advance(advance_request(high_watermark("orders", 5)), timeout=WAIT_S)
    assert len(receiver.wait(5)) == 5


def test_a_call_by_http_is_traced_too(receiver: Receiver, traced: tuple[Receiver, DaemonThread]) -> None:
    httpcore.request(
        "POST",
        f"http://{traced[1].http_address}/purgatory.v1.PurgatoryService/Wait",
        headers={"content-type": "application/json", RECORDED[0]: RECORDED[1]},
        content=b'{"operation": {"timeoutMs": 10, "signal": {"keys": [{"key": "k"}]}}}',
    )
    (span,) = receiver.wait(1)
    assert (span.trace_id.hex(), attributes(span)["purgatory.first"]) == (TRACE, "k")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where the system accepts connections and nothing is read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.slow  # the last spans have two seconds
def test_a_receiver_that_does_not_answer_does_not_keep_the_daemon(start_daemon: StartDaemon, silent_port: int) -> None:
    """OpenTelemetry alone would wait for a minute."""
    daemon = start_daemon(environment=environment(silent_port) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"})
    with grpc.insecure_channel(daemon.address) as channel:
        request = wire.WaitRequest(operation=produce(1, "orders", 5, 0))
        stub = PurgatoryServiceStub(channel)
        answers = [stub.Wait.future(request, timeout=WAIT_S, metadata=[RECORDED]) for _ in range(50)]
        assert all(answer.result().HasField("result") for answer in answers)
    assert daemon.stop() == 0
    assert "the last spans were not delivered" in daemon.log


def test_an_answer_without_end_is_not_read(serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    written, ended = [0], threading.Event()

    def answer_without_end(request: BaseHTTPRequestHandler, _body: bytes) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            for _ in range(256):  # megabytes
                request.wfile.write(b"x" * 1024 * 1024)
                written[0] += 1
        except OSError:
            ended.set()

    with PostServer(answer_without_end) as server:
        for name, value in environment(server.port).items():
            monkeypatch.setenv(name, value)
        daemon = serve_daemon()
        with grpc.insecure_channel(daemon.address) as channel:
            request = wire.WaitRequest(operation=produce(1, "orders", 5, 0))
            PurgatoryServiceStub(channel).Wait(request, timeout=WAIT_S, metadata=[RECORDED])
        assert ended.wait(WAIT_S)
    assert written[0] < 64


def test_without_opentelemetry_the_daemon_says_what_to_install(
    serve_daemon: ServeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "purgatory.extensions.tracing.wait_spans", raising=False)
    monkeypatch.delattr(tracing, "wait_spans", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StartupError, match=r"purgatory-waits\[otel\]"):
        serve_daemon("--tracing-enabled")
