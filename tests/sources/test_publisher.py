"""A source that publishes to real daemons: values and breaks arrive over restarts, with the state that it stores.

The program `purgatory-source`, and the daemon that supervises its sources: it restarts them, ends them with itself,
and survives their failures.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from purgatory_client import AsyncClient, Outcome
from purgatory_client.errors import NotFound
from purgatory_connectors.cli import NoRepetitions, app
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.mark_lineage import FILE_NAME, LineageStore, MarkLineage
from purgatory_connectors.publisher.observation import Observation, SeenReplicas

from examples.free_ports import free_port
from purgatory.extensions.connectors.extension import SupervisedSource
from tests.kit.daemon import DaemonProcess, StartDaemon, children_of, is_running
from tests.kit.eventually import eventually, until_pending
from tests.kit.recorded import assert_recorded, cases_of
from tests.service.test_daemon import fetch_page
from tests.sources.publishing import DictSource, running, until_mark

NAME = ("t/orders", 0)


async def until_at(client: AsyncClient, topic: str, epoch: int, offset: int) -> None:
    await until_mark(client, topic, lambda mark: (mark.leader_epoch, mark.high_watermark) == (epoch, offset))


async def test_marks_and_breaks_reach_daemons_over_restarts(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Two daemons receive everything. A change of identity ends waits that name the old epoch (74); other waits
    continue in the new lineage. A daemon that has lost its marks gets them again, in the same epoch; a source that is
    started again finds the break that it has missed, and marks that are gone.
    """
    address, source = f"127.0.0.1:{free_port()}", DictSource({"t/orders": (10, "a")})
    daemons = [start_daemon(), start_daemon("--grpc-address", address)]
    addresses = [daemon.address for daemon in daemons]
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(AsyncClient(one)) for one in addresses]
        async with running(source, addresses, tmp_path):
            await until_at(first, "t/orders", 0, 10)
            await until_at(second, "t/orders", 0, 10)
            assert (await first.produce({NAME: 10}, timeout=10)).satisfied
            bound = asyncio.create_task(first.produce({NAME: 30}, leader_epochs=0, timeout=60))
            loose = asyncio.create_task(first.produce({NAME: 20}, timeout=60))
            await until_pending(first, 2)
            source.positions = {"t/orders": (15, "b")}
            assert [one.error_code for one in (await bound).partitions.values()] == [74]
            source.positions = {"t/orders": (20, "b")}
            assert (await loose).satisfied
            await until_at(second, "t/orders", 1, 20)
            daemons[1].kill()
            start_daemon("--grpc-address", address)
            await until_at(second, "t/orders", 1, 20)
        async with running(DictSource({"t/orders": (25, "c"), "t/other": (1, "")}), addresses, tmp_path):
            for client in (first, second):
                await until_at(client, "t/orders", 2, 25)
                await until_at(client, "t/other", 0, 1)
        async with running(DictSource({"t/orders": (25, "c")}), addresses, tmp_path):

            async def is_gone() -> bool:
                return [one.topic async for one in second.partitions()] == ["t/orders"]

            await eventually(is_gone, "the other mark is gone")


async def test_replicas_reach_the_daemon_and_move_no_mark(shared_daemon: DaemonProcess) -> None:
    """They end no wait, not even one that names the epoch, and are not published for a mark that was never observed."""
    source = DictSource({"t/orders": (10, "")})

    async with running(source, [shared_daemon.address]) as publisher, AsyncClient(shared_daemon.address) as client:

        async def until_kept(in_sync: list[int], others: dict[int, bool]) -> None:
            await until_mark(
                client,
                "t/orders",
                lambda mark: (
                    (mark.in_sync_replica_ids, {each.replica_id: each.in_sync for each in mark.replicas})
                    == (in_sync, others)
                ),
            )
            await until_at(client, "t/orders", 0, 10)

        publisher.observe_replicas({NAME: SeenReplicas(1, (1, 2, 3), (1, 2, 3))})
        publisher.observe_replicas({("t/unseen", 0): SeenReplicas(1, (1,), (1,))})
        await until_kept([1, 2, 3], {2: True, 3: True})
        pending = asyncio.create_task(client.produce({NAME: 12}, leader_epochs=0, timeout=30))
        publisher.observe_replicas({NAME: SeenReplicas(1, (1, 2, 3), (1,))})
        await until_kept([1], {2: False, 3: False})
        publisher.observe_replicas({NAME: SeenReplicas(2, (2, 3, 4), (2, 4))})
        await until_kept([2, 4], {3: False, 4: True})
        with pytest.raises(NotFound):
            await client.partition(("t/unseen", 0))
        source.positions = {"t/orders": (12, "")}
        assert (await pending).outcome is Outcome.SATISFIED


def test_a_kept_lineage_is_the_floor_of_the_next_run(tmp_path: Path) -> None:
    lineage = MarkLineage(2, "a")
    lineage.apply(Observation("t/x", 1, 50, "a"))
    lineage.apply(Observation("t/x", 1, 40, "b"))
    gone = MarkLineage(0)
    gone.apply(Observation("t/y", 0, None))
    store = LineageStore(tmp_path)
    store.keep([(("t/x", 1), lineage), (("t/y", 0), gone)])
    store.close()
    kept = LineageStore(tmp_path).load()
    assert set(kept) == {("t/x", 1), ("t/y", 0)}
    found = kept["t/x", 1]
    assert (found.epoch, found.identity, found.retired) == (3, "b", ("a",))
    assert (found.floor, found.offset, found.is_seen, found.is_gone) == (40, -1, False, False)
    assert kept["t/y", 0].is_gone


def test_second_source_in_a_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    with pytest.raises(SourceRefused, match="give each a folder of its own"):
        LineageStore(tmp_path)
    store.close()
    LineageStore(tmp_path).close()


def test_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but long enough to look like none" * 100)
    with pytest.raises(SourceRefused, match=FILE_NAME):
        LineageStore(tmp_path)
    assert path.read_bytes().startswith(b"not a database")


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


@pytest.mark.parametrize("given", ["kafka://me:hunter2@b", "oracle://b"])
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


USAGE = Path(__file__).with_name("usage.txt")


def test_error_of_the_program_is_one_line_without_secrets() -> None:
    """As in usage.txt."""

    def said(arguments: str) -> str:
        ended = CliRunner().invoke(app, arguments.split())
        assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
        return ended.stderr.rstrip("\n")

    assert_recorded(USAGE, map(said, cases_of(USAGE)))


def test_program_without_a_daemon_retries_until_sigterm(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    command = [sys.executable, "-m", "purgatory_connectors", "kafka", "127.0.0.1:9", "--to", "127.0.0.1:1"]
    with subprocess.Popen([*command, "--state-dir", str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "not connected to the daemon at 127.0.0.1:1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read().endswith("stopped\n")
