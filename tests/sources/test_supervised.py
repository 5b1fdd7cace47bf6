"""The program `purgatory-source`, and the daemon that supervises its sources: it restarts them, ends them with itself,
and survives their failures.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from purgatory_client import AsyncClient
from purgatory_connectors.cli import NoRepetitions, app

from purgatory.extensions.connectors.supervised_sources import SupervisedSource
from tests.kit.daemon import DaemonProcess, StartDaemon, children_of, is_running
from tests.kit.eventually import eventually
from tests.service.test_daemon import fetch_page

NOWHERE = "poll+http://127.0.0.1:9"
"""An address without a server: the source is stale at once and keeps retrying."""


async def child_of(daemon: DaemonProcess, *, other_than: int = 0) -> int:
    """The process of the daemon's source."""
    found = await eventually(
        lambda: [one for one in children_of(daemon.process.pid) if one != other_than and is_running(one)]
    )
    return found[0]


async def test_a_child_is_started_again_and_ends_with_the_daemon(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A killed source is restarted, and status and /readyz show it. A stale source does not make the daemon unready.
    The source ends with the daemon, even if the daemon is killed.
    """
    daemon = start_daemon("--source", NOWHERE, "--data-dir", str(tmp_path / "data"))
    first = await child_of(daemon)
    await eventually(lambda: fetch_page(daemon, "/readyz") == (200, "ready\nsource 1: stale\n"))
    os.kill(first, signal.SIGKILL)
    second = await child_of(daemon, other_than=first)
    await eventually(lambda: fetch_page(daemon, "/readyz") == (200, "ready\nsource 1: stale\n"))
    async with AsyncClient(daemon.address) as client:
        (source,) = (await client.status()).sources
        assert (source.name, source.restarts) == (NOWHERE, 1)
    assert (tmp_path / "data" / "sources" / "poll" / "lineages.sqlite").exists()
    daemon.kill()
    await eventually(lambda: not is_running(second))


async def test_the_daemons_own_source_outlives_the_age_of_connections(start_daemon: StartDaemon) -> None:
    """Its stream stays open while other connections are closed."""
    age = ("--grpc-connection-age-max-ms", "200", "--shutdown-grace-ms", "100")
    daemon = start_daemon("--source", NOWHERE, *age)
    await eventually(lambda: fetch_page(daemon, "/readyz") == (200, "ready\nsource 1: stale\n"))
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        for _ in range(3):
            watch = HealthStub(channel).Watch(HealthCheckRequest(), wait_for_ready=True)
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                async for _ in watch:
                    pass
    _, page = fetch_page(daemon, "/metrics")
    ended = [line for line in page.splitlines() if line.startswith("purgatory_calls_ended_total{code")]
    of_source = [line for line in ended if 'method="AttachSource"' in line]
    assert of_source
    assert all(line.endswith(" 0.0") for line in of_source), of_source


async def test_a_source_reaches_a_daemon_that_has_a_policy(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """With a policy, the principal purgatory-source needs its roles; without them the log names the missing one.
    SIGTERM ends the daemon and its source in time, with exit code 0.
    """
    policy = tmp_path / "policy.toml"
    grant = '[[grant]]\nto = ["{}"]\nroles = ["advance", "observe"]\ntopics = ["poll/*"]\n'
    policy.write_text(grant.format("purgatory-source"))
    daemon = start_daemon("--source", NOWHERE, "--access-policy-file", str(policy))
    await eventually(lambda: fetch_page(daemon, "/readyz")[1] == "ready\nsource 1: stale\n")
    child = await child_of(daemon)
    assert daemon.stop() == 0
    assert not is_running(child)
    policy.write_text(grant.format("other"))
    daemon = start_daemon("--source", NOWHERE, "--access-policy-file", str(policy))
    await eventually(lambda: "needs the role advance" in daemon.log)


@pytest.mark.parametrize("given", ["kafka://me:hunter2@b", "mysql://b"])
def test_daemon_refuses_an_address_that_cannot_be_used(start_daemon: StartDaemon, given: str) -> None:
    pattern = r"source: number 1: .*(no user or password|must begin with kafka://)"
    with pytest.raises(AssertionError, match=pattern) as caught:
        start_daemon("--source", given)
    assert "hunter2" not in str(caught.value)


async def test_the_end_of_a_child_is_told_and_its_log_passed_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The source's log lines keep their level in the daemon's log, next to other output; restarts are counted."""
    caplog.set_level("INFO")
    program = (
        "import sys, json; said = json.loads(sys.stdin.readline()); print(json.dumps({'source': 'x://y'}), flush=True);"
        "print(json.dumps({'level': 'error', 'message': 'it hurts'}), file=sys.stderr);"
        "print('Traceback', said['token'] == 'secret', file=sys.stderr); sys.exit(3)"
    )
    restarted: list[str] = []
    source = SupervisedSource("kafka://b?x=y", [sys.executable, "-c", program], "secret", restarted.append)
    running = asyncio.create_task(source.run())
    await eventually(lambda: len(restarted) >= 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert restarted[0] == "x://y"
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("ERROR", "source x://y: it hurts") in told
    assert ("WARNING", "source x://y: Traceback True") in told
    assert any("source x://y ended (exit code 3); restarting it in 0." in text for _, text in told)
    assert not source.is_running


def test_lines_that_differ_in_numbers_only_pass_once() -> None:
    lines = NoRepetitions()
    records = [logging.makeLogRecord({"msg": f"attempt {n} at 127.0.0.1:9", "name": "rdkafka"}) for n in range(300)]
    records.append(logging.makeLogRecord({"msg": "something else", "name": "rdkafka"}))
    assert [record.getMessage() for record in records if lines.filter(record)] == [
        "attempt 0 at 127.0.0.1:9",
        "something else",
    ]


async def test_source_that_exits_at_once_is_in_status_with_the_reason(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--source", "kafka://127.0.0.1:9?no-such-option=1")
    async with AsyncClient(daemon.address) as client, asyncio.timeout(60):
        while not (found := (await client.status()).sources) or "exit code 2" not in found[0].reason:
            assert [one.state for one in found] in ([], ["loading"], ["detached"])
            await asyncio.sleep(0.02)
    assert (found[0].name, found[0].state) == ("kafka://127.0.0.1:9", "detached")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kafka", "postgres://h"), "use the command postgres"),
        (("kafka", "me:hunter2@h:9092"), "an address must have no user or password"),
        (("kafka", "h:9092", "-o", "label"), "write it as NAME=VALUE"),
        (("kafka", "h:9092", "--log-format", "xml"), "--log-format xml: must be text or json"),
        (("kafka", "h:9092", "--supervised"), "--supervised is for `purgatory serve --source`"),
    ],
)
def test_error_of_the_program_is_one_line_without_secrets(arguments: tuple[str, ...], said: str) -> None:
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "hunter2" not in ended.stderr


def test_program_without_a_daemon_retries_until_sigterm(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    command = [sys.executable, "-m", "purgatory_connectors", "kafka", "127.0.0.1:9", "--to", "127.0.0.1:1"]
    with subprocess.Popen([*command, "--state-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "not connected to the daemon at 127.0.0.1:1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read().endswith("stopped\n")
