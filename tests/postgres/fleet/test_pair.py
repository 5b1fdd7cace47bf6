"""Daemons over one log in a real PostgreSQL: a leader and its standby, and shards on two hosts."""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from purgatory_client import AsyncClient, errors

from examples.local_postgres import LocalPostgres
from examples.secure_demo.authority import Authority
from purgatory.extension import StartupError
from purgatory.journal.errors import JournalError
from purgatory.replicated_log.errors import LogTrimmed
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.replica import MARK
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc
from tests.client.cli.test_commands import purgatory
from tests.fleet.host_run import HostRun
from tests.fleet.shard_daemons import stand_by
from tests.histories.worlds.pair import ENDS, PairWorld
from tests.kit.commands import fleet_command
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, eventually, until_pending, wait_until
from tests.kit.fleet import Fleet, Member
from tests.postgres.conftest import new_log

pytestmark = pytest.mark.slow

CALM = pytest.mark.parametrize("pair", [("--fleet-silence-ms", "600000")], indirect=True)
"""A pair whose standby takes over only if the leader resigns, however busy the machine is."""


@pytest.fixture(params=[("--fleet-snapshot-bytes", "20000")])
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


def test_no_fault_loses_repeats_or_hastens_anything(url: str, tmp_path: Path) -> None:
    """While either daemon is killed, stopped, handed over or killed at a point of its commit, each acknowledged wait
    ends once and not too early; afterwards each daemon's file has exactly the rows that the log says.
    """
    tally = asyncio.run(PairWorld(tmp_path, url, 1, ENDS).run(len(ENDS)))
    assert min(tally["operations"], tally["groups in the log"]) > len(ENDS)


@CALM
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
    assert fleet_command(["handover", "--address", standby.grpc_address]) == 2
    assert f"standby; {leader.grpc_address}" in capfd.readouterr().err


async def test_pair_over_tls(url: str, tmp_path: Path) -> None:
    """With TLS a standby listens with the daemon's certificate, and a client that trusts it follows the leader. So do
    the commands.
    """
    authority = Authority("The pair's authority")
    certificate, key = authority.issue("purgatory", hosts=["127.0.0.1"]).write(tmp_path, "server")
    flags = ("--tls-certificate-file", str(certificate), "--tls-key-file", str(key), "--fleet-silence-ms", "600000")
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


async def test_new_daemon_starts_from_a_snapshot(pair: tuple[Member, Member], url: str, tmp_path: Path) -> None:
    """The leader stores snapshots and trims the log; a daemon with an empty folder starts from the last snapshot, and
    continues all waits when it takes over. It knows the snapshot's age as a standby and as the leader.
    """
    leader, standby = pair
    standby.end()
    async with AsyncClient(f"{both(pair)},127.0.0.1:9") as client:
        kept = asyncio.create_task(client.produce({"orders-0": 10}, timeout=600))
        await until_pending(client, 1)
        with contextlib.closing(open_log(url)) as log:
            while leader.log.count("stored a snapshot") < 2:
                await client.signal_key("busy", 1)
                await asyncio.gather(*(client.advance(f"other-{n}", high_watermark=1) for n in range(200)))
                await asyncio.sleep(0.2)  # a daemon looks for the need of a snapshot every few seconds
            with pytest.raises(LogTrimmed):
                await asyncio.to_thread(log.read, 0, 1.0)
        assert fleet_command(["verify", url]) == 0
        other = Member("c", tmp_path, url)
        try:
            await asyncio.to_thread(other.until, "/readyz")
            assert "loaded the snapshot" in other.log
            await asyncio.to_thread(wait_until, lambda: knows_snapshot(other), "the standby knows the snapshot's age")
            leader.end()
            await asyncio.to_thread(other.until, "/leaderz")
            await asyncio.to_thread(wait_until, lambda: knows_snapshot(other), "so does the new leader")
            assert "stored a snapshot" not in other.log
            async with AsyncClient(other.grpc_address) as direct:
                await until_pending(direct, 1)
        finally:
            other.end()
        kept.cancel()


def knows_snapshot(member: Member) -> bool:
    """Whether a daemon shows the position and the age of the last snapshot."""
    view = member.view()
    return bool(view["snapshot_position"] >= 0 and 0 < view["snapshot_age_s"] < PATIENCE_S)


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


async def test_what_cannot_keep_the_promises_is_refused(url: str, tmp_path: Path) -> None:
    """A daemon does not start with a log and no folder, with asynchronous answers, with a journal that is not in the
    log, or without the log with a copy of it.
    """
    data = tmp_path / "data"
    listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    with_log, with_folder = ["--fleet-log", url], ["--data-dir", str(data)]
    plain = await asyncio.to_thread(DaemonProcess, tmp_path / "plain", with_folder)
    await asyncio.to_thread(plain.stop)
    for arguments, refusal in (
        (with_log, "fleet.log needs journal.dir"),
        ([*with_log, *with_folder, "--journal-mode", "async"], "fleet.log needs journal.mode sync"),
        ([*with_log, *with_folder], "contains a journal that is not in the log"),
        (
            [*with_log, *with_folder, "--source", "rediss://h"],
            "run `purgatory-source redis URI --to HOST:PORT,HOST:PORT`",
        ),
    ):
        with pytest.raises((StartupError, JournalError), match=re.escape(refusal)):
            await stand_by(*listen, *arguments)
    (data / MARK).touch()
    with pytest.raises(StartupError, match="is a copy of a fleet's log"):
        await stand_by(*listen, *with_folder)


SHARDS = 2
"""Each is two processes. `make fleet-crash ARGS="--shards 4"` runs four."""


def test_shards_on_two_hosts(log_servers: LocalPostgres, tmp_path: Path) -> None:
    """Each shard survives the loss of either host, and is handed over by itself."""
    url = new_log(log_servers)
    assert fleet_command(["init", url, "--shards", str(SHARDS)]) == 0
    assert asyncio.run(HostRun(tmp_path, url, SHARDS).run()) > SHARDS
