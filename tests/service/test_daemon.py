"""The real daemon as a process: start, extensions, probes, metrics, shutdown, and failures."""

import asyncio
import json
import queue
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

import purgatory
from purgatory.daemon import Daemon
from purgatory.engine import COMPILED
from purgatory.extension import StartupError, chosen
from purgatory.extensions.archive.archive_listener import ArchiveListener
from purgatory.extensions.archive.extension import ArchiveExtension
from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.store import Store
from purgatory.run_daemon import Stopping
from purgatory.service.setting_sources import load_settings
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc, result_pb2
from tests.kit.daemon import (
    DaemonProcess,
    DaemonThread,
    InProcessDaemon,
    RunDaemon,
    ServeDaemon,
    StartDaemon,
    run_to_end,
)
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.messages import advance_request, high_watermark, produce, produce_columns

SERVICE = "purgatory.v1.PurgatoryService"


def wait_request(topic: str, required_offset: int, timeout_ms: int = 60_000) -> wire.WaitRequest:
    return wire.WaitRequest(operation=produce(0, topic, required_offset, timeout_ms))


def fetch_page(daemon: DaemonProcess | DaemonThread | InProcessDaemon, path: str) -> tuple[int, str]:
    """Return status and text of a page of the HTTP site."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http_address}{path}", timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def sums_by_kind(text: str, sample_name: str) -> dict[str, float]:
    """Values of a metric, summed over all labels but `kind`."""
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == sample_name:
                sums[sample.labels.get("kind", "")] += sample.value
    return dict(sums)


def pending(daemon: DaemonProcess | DaemonThread) -> float:
    return sum(sums_by_kind(fetch_page(daemon, "/metrics")[1], "purgatory_pending_operations").values())


def test_start_line_and_probes(shared_daemon: DaemonProcess) -> None:
    """The first line on stderr has what an operator needs; the daemon is alive and ready once the ready file exists."""
    line = shared_daemon.log.splitlines()[0]
    engine = "compiled engine" if COMPILED else "UNCOMPILED engine"
    for fragment in (purgatory.__version__, f", {engine}", shared_daemon.address, shared_daemon.http_address):
        assert fragment in line
    assert fetch_page(shared_daemon, "/healthz") == (200, "ok\n")
    assert fetch_page(shared_daemon, "/readyz") == (200, "ready\n")
    assert fetch_page(shared_daemon, "/")[0] == 200


def work_of_every_outcome(daemon: DaemonThread, channel: grpc.Channel) -> object:
    """Two operations satisfied, one expired, one cancelled, one refused; one is pending as long as the returned object
    is kept.
    """
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    stub.Advance(advance_request(high_watermark("done", 10)), timeout=PATIENCE_S)
    for _ in range(2):
        assert stub.Wait(wait_request("done", 10), timeout=PATIENCE_S).result.outcome == result_pb2.OUTCOME_SATISFIED
    expired = stub.Wait(wait_request("late", 10, timeout_ms=1), timeout=PATIENCE_S).result
    assert expired.outcome == result_pb2.OUTCOME_EXPIRED
    with pytest.raises(grpc.RpcError):
        stub.Wait(wait_request("bad", -5), timeout=PATIENCE_S)
    cancelled = stub.Wait.future(wait_request("given-up", 10))
    wait_until(lambda: pending(daemon) == 1, "the call waits")
    cancelled.cancel()
    wait_until(lambda: pending(daemon) == 0, "the call is cancelled")
    waiting: object = stub.Wait.future(wait_request("open", 10))
    wait_until(lambda: pending(daemon) == 1, "the call waits")
    return waiting


def test_metrics_add_up_and_pass_the_linter(serve_daemon: ServeDaemon) -> None:
    """If promtool is not installed, each family has a help text, a type and a unique name."""
    daemon = serve_daemon()
    with grpc.insecure_channel(daemon.address) as channel:
        held = work_of_every_outcome(daemon, channel)
        text = fetch_page(daemon, "/metrics")[1]
        del held
    registered = sums_by_kind(text, "purgatory_registered_total")
    outcomes = sums_by_kind(text, "purgatory_outcomes_total")
    waiting = sums_by_kind(text, "purgatory_pending_operations")
    assert {kind: outcomes[kind] + waiting[kind] for kind in outcomes} == registered
    expected = {
        "registered_total": 5, "pending_operations": 1, "expired_partitions_total": 1, "watched_entries": 1,
        "expiry_lateness_seconds_count": 1, "wait_seconds_count": 4,
    }  # fmt: skip
    assert {name: sums_by_kind(text, f"purgatory_{name}")["produce"] for name in expected} == expected
    assert sums_by_kind(text, "purgatory_rejected_total")[""] == 1
    assert sums_by_kind(text, "purgatory_events_total") == {"": 1}
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert len({family.name for family in families}) == len(families)


def test_sigterm_answers_everything_and_exits_0(start_daemon: StartDaemon) -> None:
    """A health watch and an idle stream of events are closed at once, and not at the end of the grace period."""
    daemon = start_daemon("--shutdown-grace-ms", "600000")
    with grpc.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        answers = [stub.Wait.future(wait_request("orders", 42)) for _ in range(20)]
        wait_until(lambda: pending(daemon) == 20, "all wait")
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        requests: queue.SimpleQueue[wire.AdvanceStreamRequest] = queue.SimpleQueue()
        requests.put(wire.AdvanceStreamRequest(rows=advance_request(high_watermark("other", 1)).rows))
        advances = stub.AdvanceStream(iter(requests.get, None))
        assert next(advances).HasField("receipt")
        assert daemon.stop() == 0
        outcomes = [answer.result(timeout=PATIENCE_S).result.outcome for answer in answers]
        assert outcomes == [result_pb2.OUTCOME_SHUTTING_DOWN] * 20
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert "SIGTERM: shutting down, 20 operations pending" in daemon.log
    assert daemon.log.rstrip().endswith("stopped")
    assert "Traceback" not in daemon.log


@contextmanager
def session_that_never_reads(daemon: DaemonProcess | DaemonThread) -> Iterator[None]:
    """A client with more results than the buffers of a connection that is not read can hold."""
    requests: queue.SimpleQueue[wire.SessionRequest | None] = queue.SimpleQueue()
    requests.put(wire.SessionRequest(open=wire.OpenSession(session_id="deaf", columns=True)))
    requests.put(wire.SessionRequest(register=produce_columns(range(1, 50_001))))
    with grpc.insecure_channel(daemon.address) as channel:
        call = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).Session(iter(requests.get, None))
        assert next(call).HasField("opened")
        assert next(call).receipt.accepted == 50_000
        yield
        requests.put(None)


def test_second_signal_ends_at_once(start_daemon: StartDaemon) -> None:
    """A client that does not read delays the first shutdown: the daemon is alive, not ready."""
    daemon = start_daemon("--shutdown-grace-ms", "600000")
    with session_that_never_reads(daemon):
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "50000 pending operations ended" in daemon.log, "all have ended")
        assert fetch_page(daemon, "/readyz")[0] == 503
        assert fetch_page(daemon, "/healthz")[0] == 200

        def signalled_again() -> bool:
            daemon.process.send_signal(signal.SIGTERM)  # until a second has passed, this counts as the first one
            return daemon.process.poll() is not None

        wait_until(signalled_again, "it has ended")
        assert daemon.process.poll() == 128 + signal.SIGTERM
    assert "second signal (SIGTERM)" in daemon.log


async def test_signals_within_a_second_count_as_one() -> None:
    """A second one later requests the exit that keeps all receipted work; a third one, later still, would not wait."""
    now_s, exits = 100.0, []
    stopping = Stopping(lambda: now_s)

    class Exiting:
        async def exit_at_once(self, code: int) -> None:
            exits.append(code)

    stopping.daemon = Exiting()  # type: ignore[assignment]
    for after_s in (0.0, 0.05, 0.94):
        now_s += after_s
        stopping.on_signal(signal.SIGINT)
        await asyncio.sleep(0)
        assert (stopping.asked.result(), exits) == ("SIGINT", [])
    for after_s in (0.01, 0.5):
        now_s += after_s
        stopping.on_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert exits == [128 + signal.SIGTERM]


def test_grace_period_bounds_the_shutdown(serve_daemon: ServeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon = serve_daemon("--shutdown-grace-ms", "300")
    with session_that_never_reads(daemon):
        daemon.stop()
    assert "50000 results were still unacknowledged at shutdown" in caplog.text


def test_settings_of_a_daemon(start_daemon: StartDaemon) -> None:
    """Variables and flags are used: a limit, no reflection, and a log whose lines are objects. The log names a misspelt
    variable. SIGHUP has no effect here, and Ctrl-C ends a daemon without pending operations at once.
    """
    environment = {"PURGATORY_LIMITS_TIMEOUT_MS_MAX": "40000", "PURGATORY_LIMITS_TIMEOUT_MAX_MS": "1"}
    flags = "--log-format", "json", "--no-grpc-reflection", "--shutdown-grace-ms", "600000"
    daemon = start_daemon(*flags, environment=environment)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(daemon.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).Wait(wait_request("orders", 1, 40_001))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request])))
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "SIGHUP" in daemon.log, "the daemon logs the signal")
    assert daemon.stop(signal.SIGINT) == 0
    entries = [json.loads(line) for line in daemon.log.splitlines()]
    assert all(sorted(entry) == ["level", "logger", "message", "time"] for entry in entries)
    messages = [entry["message"] for entry in entries]
    assert any(message.startswith(f"purgatory {purgatory.__version__}") for message in messages)
    misspelt = "PURGATORY_LIMITS_TIMEOUT_MAX_MS: there is no such setting; did you mean"
    assert any(misspelt in one for one in messages)
    assert messages[-1] == "stopped"


def test_port_in_use_is_one_line_and_exit_1(shared_daemon: DaemonProcess, tmp_path: Path) -> None:
    flags = ["--grpc-address", shared_daemon.address, "--http-address", "127.0.0.1:0"]
    ended = run_to_end(tmp_path, flags)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    for fragment in (shared_daemon.address, "grpc.address", "in use"):
        assert fragment in ended.stderr


async def test_http_port_in_use(shared_daemon: DaemonProcess, run_daemon: RunDaemon) -> None:
    with pytest.raises(StartupError, match=rf"{shared_daemon.http_address} \(http\.address\): .* in use"):
        await run_daemon("--http-address", shared_daemon.http_address)


async def test_the_journal_is_closed_where_the_archive_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = ArchiveListener.close

    async def close_and_fail(archive: ArchiveListener, now_ms: int, timeout_s: float) -> None:
        await close(archive, now_ms, timeout_s)
        raise OSError("the archive's disk is gone")

    monkeypatch.setattr(ArchiveListener, "close", close_and_fail)
    flags = {
        "grpc": {"address": "127.0.0.1:0"},
        "http": {"address": "127.0.0.1:0"},
        "archive": {"uri": str(tmp_path / "archive")},
        "journal": {"dir": tmp_path / "data"},
    }
    daemon = Daemon(load_settings(flags, ALL_SETTINGS), [ArchiveExtension])
    await daemon.start()
    with pytest.raises(OSError, match="the archive's disk is gone"):
        await daemon.stop()
    directory = Directory(tmp_path / "data")
    store = Store(directory, CrashPoints())
    last = store.moment()
    store.close()
    directory.release()
    assert last is not None
    assert last[2], "the journal does not say that its daemon ended cleanly"


NAMES = [extension.name for extension in ALL]


@pytest.mark.parametrize("loaded", ["none", *NAMES])
async def test_daemon_with_these_extensions(run_daemon: RunDaemon, loaded: str) -> None:
    """The page, and the calls and counts of webhooks, exist only with their extension."""
    daemon = await run_daemon("--extensions", loaded)
    service = "/purgatory.v1.PurgatoryService"
    wait = {"operation": {"timeoutMs": 0, "signal": {"keys": [{"key": "jobs/7"}]}}}
    register = {"sessionId": "s1", "batch": {"rows": {}}, "callbackUrl": "https://example.com/"}
    async with aiohttp.ClientSession(f"http://{daemon.http_address}") as http:

        async def page(path: str) -> tuple[int, str]:
            async with http.get(path) as answer:
                return answer.status, await answer.text()

        async def call(method: str, body: object) -> tuple[int, Any]:
            async with http.post(f"{service}/{method}", json=body) as answer:
                return answer.status, await answer.json()

        status, answer = await call("Wait", wait)
        assert (status, answer["result"]["outcome"]) == (200, "OUTCOME_EXPIRED")
        assert await page("/readyz") == (200, "ready\n")
        assert "purgatory_pending_operations" in (await page("/metrics"))[1]
        assert (await page("/"))[0] == (200 if loaded == "page" else 404)
        assert (await call("ListDeadLetters", {}))[0] == (200 if loaded == "webhooks" else 501)
        assert ("webhooks" in (await call("GetStatus", {}))[1]) == (loaded == "webhooks")
        status, answer = await call("Register", register)
        assert (status, "callback_url" in answer["message"]) == (400, True), answer


def test_unknown_extension_is_refused_with_the_known_names() -> None:
    with pytest.raises(StartupError, match="unknown extension 'webhook'; known: all, none, fleet, tracing, archive"):
        chosen(ALL, ALL_SETTINGS(extensions="page webhook"))


def test_setting_of_an_extension_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    settings = load_settings({"extensions": "page", "archive": {"uri": str(tmp_path)}}, ALL_SETTINGS)
    with pytest.raises(StartupError, match=r"archive.uri is set, but the extension archive is not loaded"):
        chosen(ALL, settings)
    assert [extension.name for extension in chosen(ALL, ALL_SETTINGS(extensions="page"))] == ["page"]
