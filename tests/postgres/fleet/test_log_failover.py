"""A fleet whose PostgreSQL fails over to a replica, is reached over TLS, or refuses the daemons' role."""

import asyncio
import contextlib
import signal
import threading
from pathlib import Path

import psycopg
import pytest
from purgatory_client import Client

from examples.local_postgres import LocalPostgres, LocalServer
from examples.secure_demo.authority import Authority
from purgatory.extensions.fleet import commands
from purgatory.replicated_log.entry import Kind
from purgatory.replicated_log.errors import CutOff, LogUnavailable
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.reign import Reign
from tests.fleet.log_contract import catch_up
from tests.histories.worlds.pair import PairWorld
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.fleet import Fleet, Member
from tests.kit.programs import fleet_command
from tests.postgres.conftest import not_started

pytestmark = pytest.mark.slow


def address(*servers: LocalServer) -> str:
    """The address of a log that is on whichever of the servers is the primary."""
    return f"postgres://postgres@{','.join(server.address for server in servers)}/postgres"


class Promotion(PairWorld):
    """The only fault: the primary dies, and its synchronous replica is promoted."""

    def __init__(self, folder: Path, servers: LocalPostgres) -> None:
        self._servers = servers.servers
        super().__init__(folder, address(*self._servers.values()), 1)

    async def fault(self, kind: str, member: Member) -> None:
        await asyncio.to_thread(self._promote)
        await self.load.until_all_rise(lambda caller: caller.accepted_batches, self.check, "served after the promotion")

    def _promote(self) -> None:
        self._servers["p"].stop(signal.SIGKILL)
        self._servers["r"].promote()


def test_promotion_of_a_synchronous_replica_loses_nothing(tmp_path: Path) -> None:
    """The primary of the log is killed under load: the daemons continue with its synchronous replica, each acknowledged
    wait ends once, and both files have exactly the rows of the new primary.
    """
    with not_started() as servers:
        primary = servers.primary()
        replica = servers.replica("r", primary)
        assert fleet_command(["init", address(primary, replica)]) == 0
        make_synchronous(primary)
        tally = asyncio.run(Promotion(tmp_path, servers).run(1))
        assert tally["operations"] > 100
        assert tally["groups in the log"] > 1


def advance(member: Member, high_watermark: int) -> None:
    with Client(member.grpc_address) as client:
        client.advance("orders-0", high_watermark=high_watermark)


def test_promotion_of_a_replica_that_lacks_entries_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that has gone back: no daemon that has more than the log continues or starts, and each names the command
    that checks the log. A daemon with an empty folder continues with what the log has.
    """
    with not_started() as servers:
        primary = servers.primary()
        replica = servers.replica("r", primary)
        url = address(primary, replica)
        assert fleet_command(["init", url]) == 0
        with Fleet(tmp_path, url) as fleet:
            members = fleet.start_pair()
            advance(members[0], 7)
            end = primary.position()
            wait_until(lambda: replica.position() >= end, "the replica has the mark")
            replica.stop()
            with contextlib.closing(open_log(url)) as log:
                lost = log.end()
            advance(members[0], 8)
            wait_until(
                lambda: min(member.view()["position"] for member in members) >= lost,
                "both have an entry that the replica lacks",
            )
            primary.stop(signal.SIGKILL)
            replica.start()
            replica.promote()
            codes = [member.process.wait(PATIENCE_S) for member in members]
            assert codes[0] == EXIT_REPLACED
            for member in members:
                member.start_if_ended()
                assert member.process.wait(PATIENCE_S) == 1
                refusal = member.log.splitlines()[-1]
                assert "the log has gone back" in refusal
                assert "purgatory fleet verify" in refusal
                assert "stop all daemons, empty their folders, and start them" in refusal
            capsys.readouterr()
            assert fleet_command(["verify", url]) == 0, "what is left is consistent"
            empty = fleet.start("c", "/leaderz")
            with Client(empty.grpc_address) as last:
                assert last.partition("orders-0").high_watermark == 7


@pytest.mark.parametrize(
    "setting", ["", "ALTER ROLE postgres SET client_min_messages = error"], ids=["", "no warnings"]
)
def test_commit_whose_wait_for_the_replica_was_cancelled_is_not_acknowledged(setting: str) -> None:
    """While the synchronous replica is down, each wait for it is cancelled. The primary then shows the entry, but the
    leader does not acknowledge it, however often that happens. What was acknowledged is on the replica.
    """
    with not_started() as servers:
        primary = servers.primary()
        replica = servers.replica("r", primary)
        assert fleet_command(["init", address(primary, replica)]) == 0
        make_synchronous(primary)
        primary.query(setting or "SELECT 1")
        cancelled = threading.Event()
        with contextlib.closing(open_log(address(primary, replica))) as log:
            writer, acknowledged = LogWriter(log, Reign(), lambda _: None), []
            catch_up(writer, log)
            acknowledged += [writer.claim(0), writer.append(Kind.GROUP, 0, b"first")]
            replica.stop()
            canceller = threading.Thread(target=cancel_waits, args=(primary, cancelled))
            canceller.start()
            try:
                with pytest.raises(CutOff):
                    acknowledged.append(writer.append(Kind.GROUP, 0, b"second"))
                with pytest.raises(LogUnavailable, match="without waiting for its replicas"):
                    log.put_snapshot(1, [b"content"])
            finally:
                cancelled.set()
                canceller.join()
            assert log.end() > acknowledged[-1].position + 1, "it is visible"
        primary.stop(signal.SIGKILL)
        replica.start()
        replica.promote()
        with contextlib.closing(open_log(address(replica))) as log:
            assert log.read(1, 0) == acknowledged


def make_synchronous(primary: LocalServer) -> None:
    primary.query("ALTER SYSTEM SET synchronous_standby_names = 'r'")
    primary.query("SELECT pg_reload_conf()")
    state = "SELECT sync_state FROM pg_stat_replication"
    wait_until(lambda: primary.query(state) == [("sync",)], "the replica is synchronous")


def cancel_waits(primary: LocalServer, ended: threading.Event) -> None:
    """Cancel each wait for the replica as soon as it begins."""
    with psycopg.connect(primary.conninfo("postgres"), autocommit=True) as connection:
        while not ended.wait(0.01):
            connection.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")


def test_log_over_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With sslmode=verify-full a daemon leads over TLS. With another authority, or another name in the certificate,
    the commands fail and a daemon does not lead, and both say why.
    """
    ours, other = Authority("The log's authority"), Authority("Another one")
    for name, authority in (("ours", ours), ("other", other)):
        (tmp_path / f"{name}.crt").write_bytes(authority.certificate_pem)
    with not_started() as servers:
        server = servers.primary(is_started=False)
        issued = ours.issue("postgres", hosts=["127.0.0.1"]).write(server.data, "server")
        for path in issued:
            servers.own(path)
        with (server.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write("ssl = on\n")
        (server.data / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n", "utf-8")
        server.start()
        url = f"{address(server)}?sslmode=verify-full&sslrootcert={tmp_path}"
        assert fleet_command(["init", f"{url}/ours.crt"]) == 0
        monkeypatch.setattr(commands, "PATIENCE_S", 0.0)  # the commands would try again, as for a server that starts
        capsys.readouterr()
        assert fleet_command(["verify", f"{url}/other.crt"]) == 2
        assert "certificate verify failed" in capsys.readouterr().err
        by_name = url.replace("127.0.0.1", "localhost")
        assert fleet_command(["verify", f"{by_name}/ours.crt"]) == 2
        assert 'does not match host name "localhost"' in capsys.readouterr().err
        members = [Member("a", tmp_path, f"{url}/ours.crt"), Member("b", tmp_path, f"{url}/other.crt")]
        try:
            members[0].until("/leaderz", supervised=True)
            wait_until(lambda: "certificate verify failed" in members[1].log, "the other one says why it does not")
            assert "cannot connect to PostgreSQL" in members[1].log
            assert not members[1].answers("/readyz")
        finally:
            for member in members:
                member.end()


def test_each_server_of_an_address_is_named() -> None:
    with (
        contextlib.closing(open_log("postgresql://postgres@127.0.0.1:1,127.0.0.1:2/postgres")) as log,
        pytest.raises(LogUnavailable, match=r"port 1 failed: Connection refused; .* port 2 failed: Connection refused"),
    ):
        log.end()
