"""The MySQL source with real servers of MariaDB: a primary and two replicas that lag, hang, fail over and are reset."""

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pymysql
import pytest
from fastapi import FastAPI
from purgatory_client import AsyncClient
from purgatory_client.middleware import readable_replicas, wrote
from purgatory_client.middleware.asgi import ReadYourWrites
from purgatory_client.middleware.exchange import OnTimeout
from purgatory_client.sources.gtids import position_of_gtid
from purgatory_connectors.cli import open_source
from purgatory_connectors.mysql.mysql_source import MysqlSource
from purgatory_connectors.publisher.polled_source import Unreadable

from examples.free_ports import free_port
from purgatory.source_uri import SourceUri
from purgatory.testing import ConnectorContract, WatchedSystem
from tests.client.middleware.web_servers import asgi_server
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually, wait_until
from tests.kit.programs import skip_unless_required
from tests.sources.publishing import publishing, until_mark

FAST = "servers=p,r1,r2&poll_ms=5&idle_poll_ms=20&timeout_ms=300&user=root"


class LocalMariaDB:
    """A server on loopback in a folder of its own."""

    def __init__(self, folder: Path, server_id: int) -> None:
        self.port, self.server_id = free_port(), server_id
        self.address = f"127.0.0.1:{self.port}"
        (temporary := folder.with_suffix(".tmp")).mkdir()
        # A server that starts deletes every temporary table in its tmpdir, also those of other servers.
        common = ["--no-defaults", f"--datadir={folder}", f"--tmpdir={temporary}", "--innodb-log-file-size=8M"]
        common += [] if os.getuid() else ["--user=root"]
        install = ["mariadb-install-db", *common, "--skip-test-db", "--auth-root-authentication-method=normal"]
        with (folder.with_suffix(".log")).open("wb") as log:
            assert not subprocess.call(install, stdout=log, stderr=log), Path(log.name).read_text()
        command = [
            "mariadbd", *common, f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={folder}/s",
            f"--server-id={server_id}", "--log-bin=log", "--log-slave-updates", "--skip-name-resolve",
            "--innodb-buffer-pool-size=8M", "--slave-net-timeout=2",
        ]  # fmt: skip
        with (folder / "stderr").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: self.query("SELECT 1"), (folder / "stderr").read_text, but=pymysql.Error)

    def query(self, *statements: str) -> Any:  # noqa: ANN401 - any value
        """Run statements in one session. Returns the first value of the last one."""
        with closing(pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)) as connection:
            cursor = connection.cursor()
            for one in statements:
                cursor.execute(one)
            row = cursor.fetchone()
            return row[0] if row else None

    def follow(self, primary: "LocalMariaDB") -> None:
        self.query(
            "STOP SLAVE",
            f"CHANGE MASTER TO master_host='127.0.0.1', master_port={primary.port}, master_user='root', "
            "master_use_gtid=slave_pos, master_connect_retry=1",
            "START SLAVE",
        )

    def write(self, count: int = 1) -> int:
        """Insert rows one by one, and return the number that the session got for the last one."""
        gtid = self.query(*["INSERT INTO written.rows () VALUES ()"] * count, "SELECT @@last_gtid")
        return position_of_gtid(gtid)[1]

    def written(self) -> int:
        """How many rows can be read here."""
        return int(self.query("SELECT count(*) FROM written.rows"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


Servers = dict[str, LocalMariaDB]


@contextmanager
def started(folder: Path) -> Iterator[Servers]:
    """A primary "p" with the replicas "r1" and "r2". Without MariaDB the test is skipped, or fails if required."""
    if shutil.which("mariadbd") is None:
        skip_unless_required("MYSQL", "no mariadbd found (Debian: apt-get install mariadb-server)")
    with ExitStack() as stack:
        found = {}
        for server_id, name in enumerate(("p", "r1", "r2"), 1):
            found[name] = stack.enter_context(closing(LocalMariaDB(folder / name, server_id)))
        # The first transactions of each folder are local to it.
        for one in found.values():
            one.query("RESET MASTER")
        for name in ("r1", "r2"):
            found[name].follow(found["p"])
        found["p"].query("CREATE DATABASE written", "CREATE TABLE written.rows (at serial)")
        yield found


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with started(tmp_path) as servers:
        yield servers


class Primary(WatchedSystem):
    """The mark of what the primary has executed."""

    mark = ends = "mysql/main/p/0"

    def __init__(self, servers: Servers) -> None:
        self._server = servers["p"]
        self.uri = f"mysql://{','.join(one.address for one in servers.values())}?{FAST}"

    def write(self) -> int:
        return self._server.write()

    def position(self) -> int:
        return position_of_gtid(self._server.query("SELECT @@gtid_current_pos"))[1]

    def stop(self) -> None:
        self._server.process.send_signal(signal.SIGSTOP)

    def start(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)

    def begin_again(self) -> None:
        self._server.query("RESET MASTER")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primary]:
    with started(tmp_path_factory.mktemp("mariadb")) as servers:
        yield Primary(servers)


@pytest.mark.slow
class TestContract(ConnectorContract): ...


@asynccontextmanager
async def following(daemon: DaemonProcess, servers: Servers) -> AsyncIterator[tuple[AsyncClient, str]]:
    """A client of the daemon, and the prefix of the marks, once the source has read all servers."""
    name = str(servers["p"].port)
    uri = f"mysql://{','.join(one.address for one in servers.values())}?name={name}&{FAST}"
    async with publishing(daemon, uri) as client:
        prefix = f"mysql/{name}"
        await until_mark(client, f"{prefix}/all/0", lambda mark: mark.high_watermark >= 0 and not mark.stale_reason)
        yield client, prefix


@pytest.mark.slow
async def test_replica_that_stops_applying_holds_all_but_not_any(
    shared_daemon: DaemonProcess, servers: Servers
) -> None:
    p, _, r2 = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        await asyncio.to_thread(r2.query, "STOP SLAVE SQL_THREAD")
        number = await asyncio.to_thread(p.write)
        assert (await client.produce({f"{prefix}/any/0": number}, timeout=60)).satisfied
        assert not (await client.produce({f"{prefix}/all/0": number}, timeout=0.3)).satisfied
        await asyncio.to_thread(r2.query, "START SLAVE SQL_THREAD")
        assert (await client.produce({f"{prefix}/all/0": number}, timeout=60)).satisfied
        r2.process.send_signal(signal.SIGSTOP)
        stale = await until_mark(client, f"{prefix}/all/0", lambda mark: bool(mark.stale_reason))
        assert "r2" in stale.stale_reason
        assert (await client.produce({f"{prefix}/quorum/0": number}, timeout=60)).satisfied
        r2.process.send_signal(signal.SIGCONT)
        await until_mark(client, f"{prefix}/all/0", lambda mark: not mark.stale_reason)


@pytest.mark.slow
async def test_promotion_that_loses_writes_begins_a_new_history(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """All marks of the domain get a new epoch, and what only the old primary had is not taken for anything new."""
    p, r1, r2 = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        for one in (r1, r2):
            await asyncio.to_thread(one.query, "STOP SLAVE")
        lost = await asyncio.to_thread(p.write, 20)
        epoch = (await until_mark(client, f"{prefix}/p/0", lambda mark: mark.high_watermark >= lost)).leader_epoch
        p.process.kill()
        await asyncio.to_thread(r1.query, "RESET SLAVE ALL")
        await asyncio.to_thread(r2.follow, r1)
        number = await asyncio.to_thread(r1.write)
        assert number < lost
        for mark in ("any", "r2"):
            await until_mark(client, f"{prefix}/{mark}/0", lambda mark: mark.leader_epoch > epoch)
            result = await client.produce({f"{prefix}/{mark}/0": number}, leader_epochs=epoch + 1, timeout=60)
            assert result.satisfied
        assert r2.written() == r1.written() == 1
        old = await until_mark(client, f"{prefix}/p/0", lambda mark: mark.leader_epoch > epoch)
        assert old.high_watermark < number


@pytest.mark.slow
async def test_replica_of_a_reset_primary_is_stale(shared_daemon: DaemonProcess, servers: Servers) -> None:
    p = servers["p"]
    async with following(shared_daemon, servers) as (client, prefix):
        await asyncio.to_thread(p.query, "RESET MASTER")
        await asyncio.to_thread(p.write)
        stale = await until_mark(client, f"{prefix}/r1/0", lambda mark: bool(mark.stale_reason))
        assert "before the reset" in stale.stale_reason


@pytest.mark.slow
def test_commands_of_the_page_succeed_on_real_servers(
    servers: Servers, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    p = servers["p"]
    p.query("CREATE DATABASE shop", "CREATE TABLE shop.orders (at serial)")
    p.query("SET gtid_seq_no = 8411", "INSERT INTO shop.orders () VALUES ()")  # the page waits for the next one
    option, uri = sources_about("mysql", ",".join(one.address for one in servers.values()))
    daemon = start_daemon(option, f"{uri}&user=root")
    script = "\n".join(["set -e", *commands_about("mysql", "mariadb")])
    script = script.replace("mariadb -h primary", f"mariadb --no-defaults -N -u root -h 127.0.0.1 -P {p.port}")
    done = shell(script, tmp_path, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0-1-8412" in done.stdout


@pytest.mark.slow
async def test_wrong_password_is_refused_with_the_reason(servers: Servers) -> None:
    p = servers["p"]
    await asyncio.to_thread(p.query, "CREATE USER some@'127.0.0.1' IDENTIFIED BY 'right'")
    source = open_source(SourceUri.parse(f"mysql://{p.address}?user=some"))
    assert isinstance(source, MysqlSource)
    with pytest.raises(Unreadable, match="PURGATORY_MYSQL_PASSWORD") as caught:
        await source.asked(p.address)
    assert caught.value.is_refused
    await source.close()


def shop(servers: Servers, name: str) -> FastAPI:
    """Writes to the primary, and reads from a replica of those that have the write."""
    app = FastAPI()

    @app.post("/rows/{row}")
    def write(row: int) -> None:
        insert = f"INSERT INTO written.rows VALUES ({row})"
        source, number = position_of_gtid(servers["p"].query(insert, "SELECT @@last_gtid"))
        wrote({f"{name}/any/{source}": number})

    @app.get("/rows/{row}")
    def read(row: int) -> bool:
        server = random.choice(readable_replicas(name, ["r1", "r2"]) or ["p"])
        return bool(servers[server].query(f"SELECT count(*) FROM written.rows WHERE at = {row}"))

    return app


Read = tuple[int, bool, str]  # of an own write: the status, whether it was stale, and the header that says so
FRESH = (200, False, "")


async def visit(session: aiohttp.ClientSession, row: int, sends_token: bool = True) -> Read:
    """Write the row and read it back."""
    async with session.post(f"/rows/{row}") as written:
        headers = {"Purgatory-Token": written.headers["Purgatory-Token"]} if sends_token else {}
    async with session.get(f"/rows/{row}", headers=headers) as answer:
        is_stale = answer.status == 200 and not await answer.json()
        return answer.status, is_stale, answer.headers.get("Purgatory-Stale", "")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["refuse", "serve", "primary"])
async def test_every_stale_read_of_the_middleware_is_labelled_while_the_daemon_is_killed_and_back(
    servers: Servers, mode: OnTimeout, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess(tmp_path / "1"))
        _, name = await stack.enter_async_context(following(daemon, servers))
        for replica in ("r1", "r2"):
            servers[replica].query("STOP SLAVE", "CHANGE MASTER TO master_delay=2", "START SLAVE")
        client = await stack.enter_async_context(AsyncClient(daemon.address, give_up_after=1))
        app, rows = ReadYourWrites(shop(servers, name), client, timeout=30, on_timeout=mode), itertools.count(1)
        url = await stack.enter_async_context(asgi_server(app))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(force_close=True))
        )

        async def visits(count: int) -> set[Read]:
            return set(await asyncio.gather(*(visit(session, next(rows)) for _ in range(count))))

        async def is_back() -> bool:
            await visits(1)
            return app.counts["reached"] > 200

        assert await visit(session, next(rows), sends_token=False) == (200, True, "")
        before = await visits(200)
        daemon.kill()
        away = await visits(500)
        stack.enter_context(DaemonProcess(tmp_path / "2", ["--grpc-address", daemon.address]))
        await eventually(is_back, "requests wait again")
        after = await visits(40)
    assert before == after == {FRESH}
    assert app.counts["unavailable"] >= 500
    seen = {"refuse": (503, False, ""), "serve": (200, True, "unavailable"), "primary": FRESH}[mode]
    assert seen in away
    assert away <= {seen, (200, False, "unavailable")} if mode == "serve" else away == {seen}
