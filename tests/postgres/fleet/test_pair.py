"""Daemons over one log in a real PostgreSQL: a leader and its standby, whose disks fail, and shards on two hosts."""

import asyncio
import contextlib
import json
import re
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence, Set
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from purgatory_client import AsyncClient, errors
from purgatory_client.unary import shards_of

from examples.free_ports import free_ports
from examples.local_postgres import LocalPostgres
from examples.secure_demo.authority import Authority
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.client.cli.test_commands import purgatory
from tests.deploy.test_monitoring import FLEET, answer_of, prometheus, queries, until_firing
from tests.fleet.audit import check_files
from tests.fleet.filling import CALM, SNAPSHOTS
from tests.fleet.shard_daemons import client_of
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.faults import Power
from tests.kit.fleet import Fleet, Member
from tests.kit.programs import fleet_command
from tests.postgres.conftest import new_log

__all__ = ["prometheus"]  # a fixture

pytestmark = pytest.mark.slow


@pytest.fixture(params=[CALM])
def pair(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    """A leader and its standby, which has caught up."""
    with Fleet(tmp_path, url, *request.param) as fleet:
        yield fleet.start_pair()


def both(pair: tuple[Member, Member]) -> str:
    """The address of a client that knows both."""
    return ",".join(member.grpc_address for member in pair)


async def advance_patiently(client: AsyncClient, high_watermark: int) -> None:
    """Report a mark, again for as long as no daemon leads."""
    await eventually(lambda: client.advance("orders-0", high_watermark=high_watermark), but=errors.Unavailable)


def test_standby_refuses_with_the_leaders_address(
    pair: tuple[Member, Member], capfd: pytest.CaptureFixture[str]
) -> None:
    """A standby is ready, but does not lead: health is NOT_SERVING, calls over gRPC and HTTP name the leader, and
    `purgatory status` and `purgatory fleet status` show who leads.
    """
    leader, standby = pair
    with grpc.insecure_channel(standby.grpc_address) as channel:
        request = health_pb2.HealthCheckRequest(service="purgatory.v1.PurgatoryService")
        health = health_pb2_grpc.HealthStub(channel).Check(request)
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
        with pytest.raises(grpc.RpcError, match=leader.grpc_address) as refused:
            stub.Advance(wire.AdvanceRequest(), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (leader.answers("/leaderz"), standby.answers("/leaderz")) == (True, False)
    shown = purgatory("status", address=leader.grpc_address).stdout
    assert re.search(
        r"^fleet: leading, epoch 1, position \d+, append \d+\.\d ms, no snapshot yet$", shown, re.MULTILINE
    )
    with urlopen(f"http://{leader.http_address}/page/live/now", timeout=PATIENCE_S) as stream:
        pictures = (json.loads(line.removeprefix(b"data:")) for line in stream if line.startswith(b"data:"))
        assert next(one for one in pictures if "fleet" in one)["fleet"].startswith("leading, epoch 1, ")
    with pytest.raises(HTTPError) as error:
        urlopen(f"http://{standby.http_address}/purgatory.v1.PurgatoryService/HandOver", b"{}", timeout=PATIENCE_S)
    assert json.load(error.value)["code"] == "failed_precondition"
    with pytest.raises(HTTPError) as error:
        urlopen(f"http://{standby.http_address}/purgatory.v1.PurgatoryService/Advance", b"{}", timeout=PATIENCE_S)
    assert error.value.code == 503
    assert leader.grpc_address in json.load(error.value)["message"]
    for path, body in (("GetTopology", b"{}"), ("GetTopology?encoding=json&message=%7B%7D", None)):
        address = f"http://{standby.http_address}/purgatory.v1.PurgatoryService/{path}"
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(address, body, headers), timeout=PATIENCE_S) as answer:
            assert json.load(answer) == {"shards": 1}
    assert fleet_command(["status", leader.http_address, standby.http_address]) == 0
    states = [line.split(": ")[1].split(", ")[0] for line in capfd.readouterr().out.splitlines()]
    assert states == ["leading", "standing by"]
    assert fleet_command(["status", leader.http_address, "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1: does not answer" in capfd.readouterr().out
    assert fleet_command(["handover", "--address", standby.grpc_address]) == 2
    assert f"standby; {leader.grpc_address}" in capfd.readouterr().err


async def test_pair_over_tls(url: str, tmp_path: Path) -> None:
    """With TLS a standby listens with the daemon's certificate, and a client that trusts it follows the leader. So do
    the commands.
    """
    authority = Authority("The pair's authority")
    certificate, key = authority.issue("purgatory", hosts=["127.0.0.1"]).write(tmp_path, "server")
    flags = ("--tls-certificate-file", str(certificate), "--tls-key-file", str(key), *CALM)
    with Fleet(tmp_path, url, *flags) as fleet:
        members = fleet.members
        fleet.start("a")
        await asyncio.to_thread(wait_until, lambda: "HTTP on" in members[0].log, "the first daemon serves")
        fleet.start("b")
        await asyncio.to_thread(wait_until, lambda: "standing by" in members[1].log, "the second daemon stands by")
        addresses = fleet.address
        async with AsyncClient(addresses, tls_ca=authority.certificate_pem) as client:
            waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
            await until_pending(client, 1)
            (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
            trusting = ["--tls-ca", str(tmp_path / "ca.pem")]
            sites = [f"https://{member.http_address}" for member in members]
            assert await asyncio.to_thread(fleet_command, ["status", *sites, *trusting]) == 0
            assert await asyncio.to_thread(fleet_command, ["status", *sites]) == 1, "an unknown authority"
            assert await asyncio.to_thread(fleet_command, ["handover", "--address", addresses, *trusting]) == 0
            assert await asyncio.to_thread(members[0].process.wait, PATIENCE_S) == EXIT_REPLACED
            assert "HandOver: shutting down" in members[0].log
            await advance_patiently(client, 7)
            assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied


async def test_journal_becomes_a_fleet_and_a_fleet_a_journal(log_servers: LocalPostgres, tmp_path: Path) -> None:
    """`init --from` makes a journal the beginning of a log, which a daemon with an empty folder has; `leave` makes a
    copy a journal, which a daemon without a log serves.
    """
    plain = tmp_path / "plain"
    first = DaemonProcess(tmp_path / "first", ["--data-dir", str(plain)])
    async with AsyncClient(first.address) as client:
        await client.advance("orders-0", high_watermark=7)
    await asyncio.to_thread(first.stop)
    url = new_log(log_servers)
    assert fleet_command(["init", url, "--from", str(plain)]) == 0
    assert fleet_command(["init", url, "--from", str(plain)]) == 2, "a log has one beginning"
    member = Member("a", tmp_path, url)
    try:
        await asyncio.to_thread(member.until, "/leaderz")
        async with AsyncClient(member.grpc_address) as client:
            assert (await client.partition("orders-0")).high_watermark == 7
            await client.advance("orders-0", high_watermark=8)
    finally:
        member.end()
    assert fleet_command(["leave", str(member.data)]) == 0
    last = DaemonProcess(tmp_path / "last", ["--data-dir", str(member.data)])
    try:
        async with AsyncClient(last.address) as client:
            assert (await client.partition("orders-0")).high_watermark == 8
    finally:
        await asyncio.to_thread(last.stop)


# Shards on two hosts.


async def leader_of(members: Sequence[Member], *others: Member) -> Member:
    """The daemon that leads a shard, once there is one that is not among the others."""

    async def leads() -> list[Member]:
        return [one for one in members if one not in others and await asyncio.to_thread(one.answers, "/leaderz")]

    return (await eventually(leads, "a daemon leads the shard"))[0]


async def supervise(members: Sequence[Member], down: Set[Member]) -> None:
    while True:
        for member in set(members) - down:
            member.start_if_ended()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pending_at(clients: Sequence[AsyncClient], offset: int) -> AsyncIterator[None]:
    """In the block each shard has a wait, and none of them ends. After it, a mark ends them all."""
    waiting = [asyncio.create_task(client.produce({"orders-0": offset}, timeout=600)) for client in clients]
    for shard in await eventually(lambda: shards_of(clients[0]), but=errors.Unavailable):
        await until_pending(shard, 1, but=errors.Unavailable)
    yield
    assert not any(one.done() for one in waiting)
    await advance_patiently(clients[offset % 2], offset)
    assert all(one.satisfied for one in await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S))


async def test_shards_survive_the_loss_of_either_host(log_servers: LocalPostgres, tmp_path: Path) -> None:
    """Each of two shards is a pair of daemons, one on each host, and all of them write to one log. With all daemons of
    a host killed, each shard continues on the other. A shard is handed over by itself; with `--balance`, the first
    daemon of each shard leads again.
    """
    url, ports = new_log(log_servers), free_ports(4)
    assert fleet_command(["init", url, "--shards", "2"]) == 0
    targets = [f"127.0.0.1:{first},127.0.0.1:{second}" for first, second in (ports[:2], ports[2:])]
    shards, down = (list[Member](), list[Member]()), set[Member]()
    async with contextlib.AsyncExitStack() as stack:
        for host in range(2):
            for number, members in enumerate(shards):
                flags = (
                    "--fleet-silence-ms",
                    "3000",
                    "--fleet-targets",
                    " ".join(targets),
                    "--fleet-shard",
                    f"{number}",
                )
                address = targets[number].split(",")[host]
                members.append(Member(f"{number}{host}", tmp_path, url, flags, grpc_address=address))
                stack.callback(members[-1].end)
                await asyncio.to_thread(members[-1].until, "/readyz" if host else "/leaderz")
        both_shards = [*shards[0], *shards[1]]
        supervisor = asyncio.create_task(supervise(both_shards, down))
        stack.callback(supervisor.cancel)
        # All of them know shard 0 only, before they ask.
        found = [await client_of(number, 2, targets[0], give_up_after=None) for number in range(2)]
        clients = [await stack.enter_async_context(client) for client in found]
        async with pending_at(clients, 1):
            for lost in zip(*shards, strict=True):
                down.update(lost)
                for member in lost:
                    await asyncio.to_thread(member.end)
                for members in shards:
                    await leader_of(members)
                down.clear()
                for member in lost:
                    await asyncio.to_thread(member.until, "/readyz")
        async with pending_at(clients, 2):
            for target, members in zip(targets, shards, strict=True):
                leader = await leader_of(members)
                while await asyncio.to_thread(fleet_command, ["handover", "--address", target]) != 0:
                    leader = await leader_of(members)  # on a busy machine, the standby may just have taken over
                await leader_of(members, leader)
            for member in both_shards:
                await asyncio.to_thread(member.until, "/readyz")
            await asyncio.to_thread(fleet_command, ["handover", "--balance", "--address", targets[0]])
            for first, _ in shards:
                await asyncio.to_thread(first.until, "/leaderz")
    for number, members in enumerate(shards):
        with contextlib.closing(open_log(url, number)) as log:
            assert check_files(log, [member.data for member in members]) > 0


# Disks that fill up, damage a file, or lose unsynced data.

FULL_BYTES = 16_384
"""No file may grow beyond. Enough for the daemon's log, and for one small group in the write-ahead log."""

POWER_FAILURES = 2


def fill(member: Member) -> None:
    """Make the disk of a daemon full, until it ends."""
    _, most = resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, most))


def is_refused_while_full(member: Member) -> None:
    """Start a daemon that has ended, on a full disk: it ends, and says why."""
    member.start_if_ended()
    fill(member)
    assert member.process.wait(PATIENCE_S) in {1, EXIT_REPLACED}
    assert "cannot open" in member.log.splitlines()[-1] or "cannot write" in member.log.splitlines()[-1]


async def restart(member: Member) -> None:
    """Start a daemon that has ended, and wait until it stands by."""
    member.start_if_ended()
    await asyncio.to_thread(member.until, "/readyz")
    assert not member.answers("/leaderz")


def audit(url: str, pair: tuple[Member, Member]) -> None:
    """End both daemons, and compare their files with the log."""
    for member in pair:
        member.end(signal.SIGTERM)
    with contextlib.closing(open_log(url)) as log:
        assert check_files(log, [member.data for member in pair]) > 1


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "standby"])
async def test_full_disk_ends_no_wait(pair: tuple[Member, Member], url: str, victim: int) -> None:
    """A leader resigns and discards its file, so that the standby leads at once; a standby exits, and callers notice
    nothing. Neither starts until there is room again; then it stands by, and can take over.
    """
    full, (leader, standby) = pair[victim], pair
    async with AsyncClient(both(pair), give_up_after=None) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
        await until_pending(client, 1)
        fill(full)
        assert await asyncio.to_thread(full.process.wait, PATIENCE_S) == EXIT_REPLACED
        if full is leader:
            assert "resigned from epoch 1" in leader.log
            assert "cannot write the journal's file" in leader.log
            assert not (leader.data / "journal.db").exists()
        else:
            assert "cannot write the standby's file" in standby.log
        await asyncio.to_thread(is_refused_while_full, full)
        if full is standby:
            await client.advance("orders-0", high_watermark=6)
            assert leader.is_running
        await restart(full)
        if full is standby:
            await asyncio.to_thread(leader.end, signal.SIGTERM)
        await advance_patiently(client, 7)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied
    assert "leading, epoch 2" in standby.log
    await asyncio.to_thread(audit, url, pair)


@pytest.mark.parametrize("pair", [(*CALM, *SNAPSHOTS)], indirect=True)
async def test_damaged_files(pair: tuple[Member, Member]) -> None:
    """Both files are damaged while the daemons run. The leader, which reads its file for a snapshot, hands over
    instead of storing it; the standby, which reads it when it takes over, resigns. Both fetch their files again, and
    continue all waits.
    """
    leader, standby = pair
    async with AsyncClient(both(pair), give_up_after=None) as client:
        waiting = asyncio.create_task(client.produce({"orders-0": 7}, timeout=600))
        await until_pending(client, 1)
        for member in pair:
            await asyncio.to_thread(wait_until, lambda member=member: damage(member.data), "the wait is in the file")
        async with asyncio.timeout(PATIENCE_S):
            while leader.is_running:
                with contextlib.suppress(errors.Unavailable):
                    await asyncio.gather(*(client.advance(f"other-{n}", high_watermark=1) for n in range(100)))
        assert leader.process.returncode == EXIT_REPLACED
        assert "damaged file: shutting down" in leader.log
        assert await asyncio.to_thread(standby.process.wait, PATIENCE_S) == EXIT_REPLACED
        assert "resigned from epoch 2" in standby.log
        assert not (standby.data / "journal.db").exists()
        leader.start_if_ended()
        await asyncio.to_thread(leader.until, "/leaderz")
        assert "it is discarded, and fetched again" in leader.log
        await restart(standby)
        await advance_patiently(client, 7)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).satisfied


def damage(folder: Path) -> bool:
    """Damage all registrations in the file of a running daemon. Return whether there are any."""
    with contextlib.closing(sqlite3.connect(folder / "journal.db", timeout=PATIENCE_S)) as database:
        changed = database.execute("UPDATE registrations SET content = zeroblob(length(content))").rowcount
        database.commit()
    return changed > 0


async def test_standby_catches_up_after_each_power_failure(
    pair: tuple[Member, Member], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, standby = pair
    power = Power(tmp_path / "power")
    async with AsyncClient(both(pair), give_up_after=None) as client:
        for number in range(1, POWER_FAILURES + 1):
            standby.end()
            power.fail(standby.data)
            with monkeypatch.context() as patch:
                for name, value in power.environment(0).items():
                    patch.setenv(name, value)
                await restart(standby)
            await asyncio.gather(*(client.advance(f"t-{n}", high_watermark=number) for n in range(200)))
        await asyncio.to_thread(leader.end, signal.SIGTERM)
        await advance_patiently(client, 7)
    await asyncio.to_thread(audit, url, pair)


# Alerts and the dashboard's row about a fleet, with a real Prometheus.


def test_alerts_and_panels_of_a_fleet(prometheus: tuple[Path, str], url: str, tmp_path: Path) -> None:
    """While one daemon leads and one stands by no alert fires, and each panel shows something. Without the standby, and
    then without the leader, alerts say so.
    """
    targets, address = prometheus
    alerts = (
        "PurgatoryNoLeader",
        "PurgatoryNoStandby",
        "PurgatoryStandbyBehind",
        "PurgatorySnapshotOld",
        "PurgatoryAppendSlow",
    )
    with Fleet(tmp_path, url, "--fleet-silence-ms", "600000") as fleet:
        members = fleet.start_pair()
        targets.write_text(yaml.safe_dump([{"targets": [one.http_address for one in members]}]), "utf-8")
        values = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
        unanswered = {re.sub(r"\$\w+", lambda found: values[found[0]], one) for one in queries() if FLEET in one}
        assert unanswered
        for one in sorted(unanswered):
            wait_until(lambda: answer_of(address, one), one, but=OSError)  # noqa: B023 - called at once
        until_firing(address, but=alerts)
        members[1].end()
        until_firing(address, "PurgatoryNoStandby", but=("PurgatoryNoLeader",))
        members[1].start_if_ended()
        until_firing(address, but=alerts)
        members[0].end()
        until_firing(address, "PurgatoryNoLeader", but=("PurgatoryNoStandby",))
        assert fleet_command(["status", members[1].http_address]) == 1
