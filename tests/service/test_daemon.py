"""The real daemon as a process: start, probes, reflection, metrics, shutdown, and failures."""

import asyncio
import gc
import json
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

import purgatory
from purgatory.daemon import Daemon
from purgatory.engine import COMPILED
from purgatory.extensions.archive.archive_listener import ArchiveListener
from purgatory.extensions.archive.extension import ArchiveExtension
from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.journal.crash_points import CrashPoints
from purgatory.journal.directory import Directory
from purgatory.journal.store import Store
from purgatory.service.setting_sources import load_settings
from purgatory.v1 import event_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.conftest import StartDaemon
from tests.daemon_process import DEADLINE_S, DaemonProcess, run_to_end
from tests.service.serving import high_watermark, produce, produce_columns

SERVICE = "purgatory.v1.PurgatoryService"


@pytest.fixture
def channel(daemon: DaemonProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(daemon.address) as opened:
        yield opened


def wait_request(topic: str, required_offset: int, timeout_ms: int = 60_000) -> wire.WaitRequest:
    return wire.WaitRequest(operation=produce(0, topic, required_offset, timeout_ms))


def advance_rows(topic: str, offset: int) -> event_pb2.EventRows:
    return event_pb2.EventRows(events=[high_watermark(topic, offset)])


def fetch_page(daemon: DaemonProcess, path: str) -> tuple[int, str]:
    """Return status and text of a page of the HTTP site."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http_address}{path}", timeout=DEADLINE_S) as response:
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


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail if it does not hold in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.01)


def pending(daemon: DaemonProcess) -> float:
    return sum(sums_by_kind(fetch_page(daemon, "/metrics")[1], "purgatory_pending_operations").values())


def test_start_says_version_engine_and_addresses(daemon: DaemonProcess) -> None:
    """One line on stderr contains the information that an operator needs first."""
    lines = daemon.log.splitlines()
    assert len(lines) == 1, daemon.log
    engine = "compiled engine" if COMPILED else "UNCOMPILED engine"
    for fragment in (purgatory.__version__, f", {engine}", daemon.address, daemon.http_address):
        assert fragment in lines[0]


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_through_the_standard_service(channel: grpc.Channel, service: str) -> None:
    """A standard probe gets SERVING, for the whole server and for the service by name."""
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_and_describes_the_service(channel: grpc.Channel) -> None:
    """A generic client finds the service and the file that defines it, without our stubs."""
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    listed, described = stub.ServerReflectionInfo(iter(requests), timeout=DEADLINE_S)
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


def test_reflection_can_be_switched_off(start_daemon: StartDaemon) -> None:
    """--no-grpc-reflection leaves only the services themselves."""
    daemon = start_daemon("--no-grpc-reflection")
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(daemon.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request])))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_probes_answer(daemon: DaemonProcess) -> None:
    """The daemon is alive and ready once the ready file exists."""
    assert fetch_page(daemon, "/healthz") == (200, "ok\n")
    assert fetch_page(daemon, "/readyz") == (200, "ready\n")
    assert fetch_page(daemon, "/")[0] == 200


def work_of_every_outcome(daemon: DaemonProcess, channel: grpc.Channel) -> object:
    """Two operations satisfied, one expired, one cancelled, one refused; one is pending as long as the returned object
    is kept.
    """
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    stub.Advance(wire.AdvanceRequest(rows=advance_rows("done", 10)), timeout=DEADLINE_S)
    for _ in range(2):
        assert stub.Wait(wait_request("done", 10), timeout=DEADLINE_S).result.outcome == result_pb2.OUTCOME_SATISFIED
    expired = stub.Wait(wait_request("late", 10, timeout_ms=1), timeout=DEADLINE_S).result
    assert expired.outcome == result_pb2.OUTCOME_EXPIRED
    with pytest.raises(grpc.RpcError):
        stub.Wait(wait_request("bad", -5), timeout=DEADLINE_S)
    cancelled = stub.Wait.future(wait_request("given-up", 10))
    until(lambda: pending(daemon) == 1)
    cancelled.cancel()
    until(lambda: pending(daemon) == 0)
    waiting: object = stub.Wait.future(wait_request("open", 10))
    until(lambda: pending(daemon) == 1)
    return waiting


def test_metrics_add_up(daemon: DaemonProcess, channel: grpc.Channel) -> None:
    """Operations registered = satisfied + failed + expired + cancelled + shutting_down + pending, for each kind."""
    held = work_of_every_outcome(daemon, channel)
    text = fetch_page(daemon, "/metrics")[1]
    del held
    registered = sums_by_kind(text, "purgatory_registered_total")
    outcomes = sums_by_kind(text, "purgatory_outcomes_total")
    waiting = sums_by_kind(text, "purgatory_pending_operations")
    assert registered["produce"] == 5
    assert waiting["produce"] == 1
    assert {kind: outcomes[kind] + waiting[kind] for kind in outcomes} == registered
    assert sums_by_kind(text, "purgatory_expired_partitions_total")["produce"] == 1
    assert sums_by_kind(text, "purgatory_expiry_lateness_seconds_count")["produce"] == 1
    assert sums_by_kind(text, "purgatory_watched_entries")["produce"] == 1
    assert sums_by_kind(text, "purgatory_wait_seconds_count")["produce"] == 4
    assert sums_by_kind(text, "purgatory_rejected_total")[""] == 1
    assert sums_by_kind(text, "purgatory_events_total") == {"": 1}


def test_metrics_pass_the_linter(daemon: DaemonProcess, channel: grpc.Channel) -> None:
    """Promtool reports nothing; if it is not installed, each family has a help text, a type and a unique name."""
    held = work_of_every_outcome(daemon, channel)
    text = fetch_page(daemon, "/metrics")[1]
    del held
    promtool = shutil.which("promtool")
    if promtool is not None:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    families = list(text_string_to_metric_families(text))
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert len({family.name for family in families}) == len(families)


def test_sigterm_answers_pending_waits_and_exits_0(daemon: DaemonProcess, channel: grpc.Channel) -> None:
    """Each pending wait ends with the outcome of a shutdown; no client gets a broken connection."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    answers = [stub.Wait.future(wait_request("orders", 42)) for _ in range(20)]
    until(lambda: pending(daemon) == 20)
    assert daemon.stop() == 0
    outcomes = [answer.result(timeout=DEADLINE_S).result.outcome for answer in answers]
    assert outcomes == [result_pb2.OUTCOME_SHUTTING_DOWN] * 20
    assert "SIGTERM: shutting down, 20 operations pending" in daemon.log
    assert daemon.log.rstrip().endswith("stopped")
    assert "Traceback" not in daemon.log


@pytest.mark.slow
async def test_burst_of_unary_waits_loses_none(start_daemon: StartDaemon) -> None:
    """Of 4,000 calls at once, each is registered, and each is answered when the daemon shuts down."""
    daemon = start_daemon()
    request = wait_request("orders", 42, timeout_ms=600_000)
    async with AsyncExitStack() as opened:
        calls = []
        for _ in range(5):
            own = ("grpc.use_local_subchannel_pool", 1)
            channel = await opened.enter_async_context(grpc.aio.insecure_channel(daemon.address, options=[own]))
            stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
            calls += [asyncio.ensure_future(stub.Wait(request)) for _ in range(800)]
        await asyncio.to_thread(until, lambda: pending(daemon) == 4_000)
        assert await asyncio.to_thread(daemon.stop) == 0
        outcomes = {answer.result.outcome for answer in await asyncio.gather(*calls)}
    assert outcomes == {result_pb2.OUTCOME_SHUTTING_DOWN}


def test_sigint_ends_an_idle_daemon_at_once(start_daemon: StartDaemon) -> None:
    """Ctrl-C without pending operations does not use up the grace period, which is far longer than the test waits."""
    assert start_daemon("--shutdown-grace-ms", "600000").stop(signal.SIGINT) == 0


def test_health_watchers_see_the_shutdown_first(daemon: DaemonProcess, channel: grpc.Channel) -> None:
    """A load balancer that watches gets NOT_SERVING before the connection closes."""
    seen: list[int] = []

    def watch() -> None:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        try:
            seen.extend(answer.status for answer in health_pb2_grpc.HealthStub(channel).Watch(request))
        except grpc.RpcError:
            seen.append(-1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    until(lambda: len(seen) == 1 or not watcher.is_alive())
    assert daemon.stop() == 0
    watcher.join(DEADLINE_S)
    assert seen[:2] == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


@contextmanager
def session_that_never_reads(daemon: DaemonProcess) -> Iterator[None]:
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
    """A client that does not read delays the first shutdown: the daemon is alive, not ready. The second signal does not
    wait.
    """
    daemon = start_daemon("--shutdown-grace-ms", "600000")
    with session_that_never_reads(daemon):
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: "50000 pending operations ended" in daemon.log)
        assert fetch_page(daemon, "/readyz")[0] == 503
        assert fetch_page(daemon, "/healthz")[0] == 200
        assert daemon.stop() == 128 + signal.SIGTERM
    assert "second signal (SIGTERM)" in daemon.log


@pytest.mark.slow  # enough to keep the disk busy for a moment
def test_a_second_signal_loses_nothing_that_was_receipted(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """An async journal answers before data is on disk; two signals in the same instant still lose nothing."""
    folder = ("--data-dir", str(tmp_path / "journal"), "--journal-mode", "async")
    daemon = start_daemon(*folder)
    with grpc.insecure_channel(daemon.address) as channel:
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        for first in range(1, 300_001, 100_000):
            batch = produce_columns(range(first, first + 100_000))
            receipt = stub.Register(wire.RegisterRequest(session_id="s", batch=batch)).receipt
            assert (receipt.accepted, receipt.durability) == (100_000, wire.DURABILITY_ASYNC)
        for number in (signal.SIGTERM, signal.SIGINT):  # two of a kind could be merged into one
            daemon.process.send_signal(number)
        assert daemon.process.wait(30) in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert "exiting at once" in daemon.log
    with grpc.insecure_channel(start_daemon(*folder).address) as channel:
        status = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).GetStatus(wire.GetStatusRequest())
    assert sum(kind.pending for kind in status.kinds) == 300_000


def test_grace_period_bounds_the_shutdown(start_daemon: StartDaemon) -> None:
    """Results that a client does not read are dropped after the grace period; the log has their number."""
    daemon = start_daemon("--shutdown-grace-ms", "300")
    with session_that_never_reads(daemon):
        assert daemon.stop() == 0
    assert "50000 results were still unacknowledged at shutdown" in daemon.log


def test_streams_without_end_do_not_use_up_the_grace_period(start_daemon: StartDaemon) -> None:
    """A health watch and an idle stream of events are closed soon, and the daemon still exits with 0."""
    daemon = start_daemon("--shutdown-grace-ms", "600000")
    with grpc.insecure_channel(daemon.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        requests: queue.SimpleQueue[wire.AdvanceStreamRequest] = queue.SimpleQueue()
        requests.put(wire.AdvanceStreamRequest(rows=advance_rows("orders", 1)))
        advances = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).AdvanceStream(iter(requests.get, None))
        assert next(advances).HasField("receipt")
        assert daemon.stop() == 0


def test_log_as_json(start_daemon: StartDaemon) -> None:
    """Each line is one object with time, level, logger and message."""
    daemon = start_daemon("--log-format", "json")
    assert daemon.stop() == 0
    entries = [json.loads(line) for line in daemon.log.splitlines()]
    assert all(sorted(entry) == ["level", "logger", "message", "time"] for entry in entries)
    assert entries[-1]["message"] == "stopped"
    assert entries[0]["message"].startswith(f"purgatory {purgatory.__version__}")


def test_environment_sets_the_daemon(start_daemon: StartDaemon) -> None:
    """A variable is used, and the log names one that is misspelt."""
    environment = {"PURGATORY_LIMITS_TIMEOUT_MS_MAX": "40000", "PURGATORY_LIMITS_TIMEOUT_MAX_MS": "1"}
    daemon = start_daemon(environment=environment)
    with grpc.insecure_channel(daemon.address) as channel, pytest.raises(grpc.RpcError) as caught:
        purgatory_service_pb2_grpc.PurgatoryServiceStub(channel).Wait(wait_request("orders", 1, 40_001))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "PURGATORY_LIMITS_TIMEOUT_MAX_MS is set, but there is no such setting" in daemon.log


def test_help_and_version(tmp_path: Path) -> None:
    """Both are printed on stdout, and the exit code is 0."""
    helped = run_to_end(tmp_path, ["--help"])
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "127.0.0.1:7440" in helped.stdout
    assert "PURGATORY_ENGINE_TICK_MS" in helped.stdout
    assert run_to_end(tmp_path, ["--version"]).stdout == f"purgatory {purgatory.__version__}\n"


def test_print_config_goes_to_stdout(tmp_path: Path) -> None:
    """Every setting is printed with its source, and nothing is served."""
    printed = run_to_end(tmp_path, ["--print-config"], {"PURGATORY_ENGINE_TICK_MS": "3"})
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "tick_ms = 3  # environment PURGATORY_ENGINE_TICK_MS\n" in printed.stdout


@pytest.mark.parametrize(
    "arguments", [["--engine-tick-ms", "0"], ["--http-address", "nowhere"], ["--config", "missing.toml"]]
)
def test_bad_setting_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str]) -> None:
    """The line names the setting, and no traceback is printed."""
    ended = run_to_end(tmp_path, arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    setting = arguments[0].removeprefix("--").replace("-", "[._]")
    assert re.fullmatch(rf"[^\n]*{setting}: [^\n]+\n", ended.stderr), ended.stderr


@pytest.mark.parametrize("setting", ["grpc.address", "http.address"])
def test_port_in_use_is_one_line_and_exit_1(daemon: DaemonProcess, tmp_path: Path, setting: str) -> None:
    """The line has the address, the setting and the reason: a second daemon never shares the first one's port."""
    taken = {"grpc.address": daemon.address, "http.address": daemon.http_address}[setting]
    addresses = {"grpc.address": "127.0.0.1:0", "http.address": "127.0.0.1:0", setting: taken}
    flags = ["--grpc-address", addresses["grpc.address"], "--http-address", addresses["http.address"]]
    ended = run_to_end(tmp_path, flags)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    for fragment in (taken, setting, "in use"):
        assert fragment in ended.stderr


async def test_the_journal_is_closed_where_the_archive_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, but only after the journal has written its last group and released its folder."""
    close = ArchiveListener.close

    async def close_and_fail(archive: ArchiveListener, now_ms: int, timeout_s: float) -> None:
        await close(archive, now_ms, timeout_s)
        raise OSError("the archive's disk is gone")

    monkeypatch.setattr(ArchiveListener, "close", close_and_fail)
    names = ("threshold_0", "threshold_1", "threshold_2")
    flags = {
        "grpc": {"address": "127.0.0.1:0"},
        "http": {"address": "127.0.0.1:0"},
        "archive": {"uri": str(tmp_path / "archive")},
        "journal": {"dir": tmp_path / "data"},
        "gc": {**dict(zip(names, gc.get_threshold(), strict=True)), "freeze": False},
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
