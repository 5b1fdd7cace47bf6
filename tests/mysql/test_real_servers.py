"""The source with real servers of MySQL and MariaDB: two replicas that lag, hang, fail over and are reset."""

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
from typing import Any, ClassVar

import aiohttp
import pymysql
import pytest
from fastapi import FastAPI
from purgatory_client import AsyncClient
from purgatory_client.middleware import readable_replicas, wrote
from purgatory_client.middleware.asgi import ReadYourWrites
from purgatory_client.middleware.exchange import OnTimeout
from purgatory_client.sources.gtids import executed_of
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

pytestmark = pytest.mark.slow

FAST = "servers=p,r1,r2&poll_ms=5&idle_poll_ms=20&timeout_ms=300&user=root"


class LocalMariaDB:
    """A server on loopback, in a folder of its own that begins as a copy of one which `install` has made."""

    program = shutil.which("mariadbd")
    installer: ClassVar = ["mariadb-install-db", "--skip-test-db", "--auth-root-authentication-method=normal"]
    sizes: ClassVar = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=8M"]
    options: ClassVar = ["--log-slave-updates", "--skip-name-resolve"]
    source_of = "SELECT '0'"
    executed = "SELECT @@gtid_current_pos"
    last = "SELECT @@last_gtid"
    """The last transaction of the session, perhaps with earlier ones."""
    reset = "RESET MASTER"
    follow_source = (
        "CHANGE MASTER TO master_host='127.0.0.1', master_port={port}, master_user='root', master_delay={delay}, "
        "master_use_gtid=slave_pos, master_connect_retry=1"
    )

    @classmethod
    def install(cls, folder: Path) -> None:
        program, *options = cls.installer
        with folder.with_suffix(".log").open("wb") as log:
            command = [program, *cls._common(folder), *options]
            assert not subprocess.call(command, stdout=log, stderr=log), Path(log.name).read_text()

    @classmethod
    def _common(cls, folder: Path) -> list[str]:
        # A server that starts deletes every temporary table in its tmpdir, also those of other servers.
        (temporary := folder.with_suffix(".tmp")).mkdir()
        common = ["--no-defaults", f"--datadir={folder}", f"--tmpdir={temporary}", *cls.sizes]
        return common if os.getuid() else [*common, "--user=root"]

    def __init__(self, installed: Path, folder: Path, server_id: int) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        shutil.copytree(installed, folder, ignore=shutil.ignore_patterns("auto.cnf"))  # it has the UUID
        command = [
            str(self.program), *self._common(folder), f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={folder}/s", f"--server-id={server_id}", "--log-bin=log", "--slave-net-timeout=2", *self.options,
        ]  # fmt: skip
        with (folder / "stderr").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(lambda: self.query("SELECT 1"), (folder / "stderr").read_text, but=pymysql.Error)
        self.query(self.reset)  # the first transactions of each folder are local to it
        self.source = str(self.query(self.source_of))

    def connect(self) -> "pymysql.Connection[Any]":
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True)

    def query(self, *statements: str) -> Any:  # noqa: ANN401 - any value
        """Run statements in one session. Returns the first value of the last one."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for one in statements:
                cursor.execute(one)
            return (cursor.fetchone() or [None])[0]

    def follow(self, primary: "LocalMariaDB", delay: int = 0) -> None:
        follow = self.follow_source.format(port=primary.port, delay=delay)
        self.query("STOP REPLICA", follow, "START REPLICA")

    def write(self, count: int = 1, values: str = "()") -> int:
        """Insert rows one by one, and return the number that the session got for the last one."""
        gtids = self.query(*[f"INSERT INTO written.rows VALUES {values}"] * count, self.last)
        return executed_of(gtids)[self.source].newest

    def newest(self, source: str) -> int:
        """Number of the newest transaction of the source that it has executed."""
        return executed_of(self.query(self.executed))[source].newest

    def written(self) -> int:
        """How many rows can be read here."""
        return int(self.query("SELECT count(*) FROM written.rows"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


_MYSQLD = os.environ.get("PURGATORY_TEST_MYSQLD") or shutil.which("mysqld")


class LocalMySQL(LocalMariaDB):
    """The same of MySQL. The program `mysqld` may also be MariaDB's."""

    program = _MYSQLD if _MYSQLD and Path(_MYSQLD).resolve().name != "mariadbd" else None
    installer: ClassVar = [str(program), "--initialize-insecure"]
    sizes: ClassVar = ["--innodb-redo-log-capacity=32M", "--innodb-buffer-pool-size=8M", "--secure-file-priv=NULL"]
    options: ClassVar = [
        "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--replica-preserve-commit-order=OFF", "--mysqlx=OFF",
        "--performance-schema=OFF",
    ]  # fmt: skip
    source_of = "SELECT @@server_uuid"
    executed = last = "SELECT @@GLOBAL.gtid_executed"
    reset = "RESET BINARY LOGS AND GTIDS"
    follow_source = (
        "CHANGE REPLICATION SOURCE TO source_host='127.0.0.1', source_port={port}, source_user='root', "
        "source_delay={delay}, source_auto_position=1, get_source_public_key=1, source_connect_retry=1"
    )


Servers = dict[str, LocalMariaDB]


@contextmanager
def started(kind: type[LocalMariaDB], installed: Path, folder: Path) -> Iterator[Servers]:
    """A primary "p" with the replicas "r1" and "r2"."""
    with ExitStack() as stack:
        servers = {}
        for server_id, name in enumerate(("p", "r1", "r2"), 1):
            servers[name] = stack.enter_context(closing(kind(installed, folder / name, server_id)))
        for name in ("r1", "r2"):
            servers[name].follow(servers["p"])
        servers["p"].query("CREATE DATABASE written", "CREATE TABLE written.rows (at serial)")
        yield servers


only_mariadb = pytest.mark.parametrize("kind", [LocalMariaDB], indirect=True, ids=["mariadb"])
only_mysql = pytest.mark.parametrize("kind", [LocalMySQL], indirect=True, ids=["mysql"])


@pytest.fixture(scope="module", params=[LocalMariaDB, LocalMySQL], ids=["mariadb", "mysql"])
def kind(request: pytest.FixtureRequest) -> type[LocalMariaDB]:
    kind: type[LocalMariaDB] = request.param
    if kind.program is None:
        advice = "no server: install mariadb-server; for MySQL, .ci/mysql makes a command for PURGATORY_TEST_MYSQLD"
        skip_unless_required(kind.__name__.removeprefix("Local").upper(), advice)
    return kind


@pytest.fixture(scope="module")
def installed(kind: type[LocalMariaDB], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new data folder."""
    folder = tmp_path_factory.mktemp("installed") / "data"
    kind.install(folder)
    return folder


@pytest.fixture
def servers(kind: type[LocalMariaDB], installed: Path, tmp_path: Path) -> Iterator[Servers]:
    with started(kind, installed, tmp_path) as servers:
        yield servers


class Primary(WatchedSystem):
    """The mark of the transactions that the primary has executed."""

    def __init__(self, servers: Servers) -> None:
        self._server = servers["p"]
        self.mark = self.ends = f"mysql/main/p/{self._server.source}"
        self.uri = f"mysql://{','.join(one.address for one in servers.values())}?{FAST}"

    def write(self) -> int:
        return self._server.write()

    def position(self) -> int:
        return self._server.newest(self._server.source)

    def stop(self) -> None:
        self._server.process.send_signal(signal.SIGSTOP)

    def start(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)

    def begin_again(self) -> None:
        self._server.query(self._server.reset)


@pytest.fixture(scope="module")
def system(kind: type[LocalMariaDB], installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primary]:
    with started(kind, installed, tmp_path_factory.mktemp("system")) as servers:
        yield Primary(servers)


class TestContract(ConnectorContract): ...


@asynccontextmanager
async def following(daemon: DaemonProcess, servers: Servers) -> AsyncIterator[tuple[AsyncClient, str]]:
    """A client of the daemon, and the prefix of the marks, once the source has read all servers."""
    p, name = servers["p"], str(servers["p"].port)
    uri = f"mysql://{','.join(one.address for one in servers.values())}?name={name}&{FAST}"
    async with publishing(daemon, uri) as client:
        prefix = f"mysql/{name}"
        all_ready = f"{prefix}/all/{p.source}"
        await until_mark(client, all_ready, lambda mark: mark.high_watermark >= 0 and not mark.stale_reason)
        yield client, prefix


async def test_replica_that_stops_applying_holds_all_but_not_any(
    shared_daemon: DaemonProcess, servers: Servers
) -> None:
    p, _, r2 = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        await asyncio.to_thread(r2.query, "STOP REPLICA SQL_THREAD")
        number = await asyncio.to_thread(p.write)
        assert (await client.produce({f"{prefix}/any/{p.source}": number}, timeout=60)).satisfied
        assert not (await client.produce({f"{prefix}/all/{p.source}": number}, timeout=0.3)).satisfied
        await asyncio.to_thread(r2.query, "START REPLICA SQL_THREAD")
        assert (await client.produce({f"{prefix}/all/{p.source}": number}, timeout=60)).satisfied
        r2.process.send_signal(signal.SIGSTOP)
        stale = await until_mark(client, f"{prefix}/all/{p.source}", lambda mark: bool(mark.stale_reason))
        assert "r2" in stale.stale_reason
        assert (await client.produce({f"{prefix}/quorum/{p.source}": number}, timeout=60)).satisfied
        r2.process.send_signal(signal.SIGCONT)
        await until_mark(client, f"{prefix}/all/{p.source}", lambda mark: not mark.stale_reason)


@only_mariadb
async def test_promotion_that_loses_writes_begins_a_new_history(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """All marks of the domain get a new epoch, and transactions that only the old primary had do not count."""
    p, r1, r2 = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        for one in (r1, r2):
            await asyncio.to_thread(one.query, "STOP SLAVE")
        lost = await asyncio.to_thread(p.write, 20)
        written = await until_mark(client, f"{prefix}/p/{p.source}", lambda mark: mark.high_watermark >= lost)
        epoch = written.leader_epoch
        p.process.kill()
        await asyncio.to_thread(r1.query, "RESET SLAVE ALL")
        await asyncio.to_thread(r2.follow, r1)
        number = await asyncio.to_thread(r1.write)
        assert number < lost
        for mark in ("any", "r2"):
            await until_mark(client, f"{prefix}/{mark}/{p.source}", lambda mark: mark.leader_epoch > epoch)
            result = await client.produce({f"{prefix}/{mark}/{p.source}": number}, leader_epochs=epoch + 1, timeout=60)
            assert result.satisfied
        assert r2.written() == r1.written() == 1
        old = await until_mark(client, f"{prefix}/p/{p.source}", lambda mark: mark.leader_epoch > epoch)
        assert old.high_watermark < number


@only_mysql
async def test_waits_for_the_old_source_are_stale_once_a_promoted_replica_writes(
    shared_daemon: DaemonProcess, servers: Servers
) -> None:
    """Marks for transactions that both replicas have remain, and the new source has marks of its own."""
    p, r1, r2 = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        number = await asyncio.to_thread(p.write)
        assert (await client.produce({f"{prefix}/all/{p.source}": number}, timeout=60)).satisfied
        for one in (r1, r2):
            await asyncio.to_thread(one.query, "STOP REPLICA")
        lost = await asyncio.to_thread(p.write)
        await until_mark(client, f"{prefix}/p/{p.source}", lambda mark: mark.high_watermark >= lost)
        waiting = asyncio.create_task(client.produce({f"{prefix}/any/{p.source}": lost}, timeout=60))
        p.close()
        await asyncio.to_thread(r1.query, "RESET REPLICA ALL")
        await asyncio.to_thread(r2.follow, r1)
        promoted = await asyncio.to_thread(r1.write)
        assert (await client.produce({f"{prefix}/any/{r1.source}": promoted}, timeout=60)).satisfied
        assert (await client.produce({f"{prefix}/r2/{p.source}": number}, timeout=60)).satisfied
        assert r2.written() == r1.written() == 2
        old = await until_mark(client, f"{prefix}/any/{p.source}", lambda mark: mark.stale_reason)
        assert (old.high_watermark, "no longer writes" in old.stale_reason) == (number, True)
        waiting.cancel()


@only_mysql
async def test_mark_stops_before_a_transaction_that_a_parallel_applier_has_not_executed(
    shared_daemon: DaemonProcess, servers: Servers
) -> None:
    p, r1, _ = servers.values()
    async with following(shared_daemon, servers) as (client, prefix):
        before = await asyncio.to_thread(p.write)
        mark = f"{prefix}/r1/{p.source}"
        assert (await client.produce({mark: before}, timeout=60)).satisfied
        with closing(r1.connect()) as holder:
            holder.cursor().execute("BEGIN")
            holder.cursor().execute("SELECT * FROM written.rows WHERE at = 1 FOR UPDATE")
            await asyncio.to_thread(p.query, "UPDATE written.rows SET at = 1000")
            number = await asyncio.to_thread(p.write)
            await eventually(lambda: r1.newest(p.source) == number, "a later transaction is executed")
            stale = await until_mark(client, mark, lambda mark: bool(mark.stale_reason))
            assert (stale.high_watermark, f"lacks transaction {number - 1}" in stale.stale_reason) == (before, True)
        assert (await client.produce({mark: number}, timeout=60)).satisfied


async def test_replica_of_a_reset_primary_is_stale(shared_daemon: DaemonProcess, servers: Servers) -> None:
    p = servers["p"]
    async with following(shared_daemon, servers) as (client, prefix):
        await asyncio.to_thread(p.query, p.reset)
        await asyncio.to_thread(p.write)
        stale = await until_mark(client, f"{prefix}/r1/{p.source}", lambda mark: bool(mark.stale_reason))
        assert "before the reset" in stale.stale_reason


@only_mariadb
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


async def test_wrong_password_is_refused_with_the_reason(servers: Servers) -> None:
    p = servers["p"]
    await asyncio.to_thread(p.query, "CREATE USER some IDENTIFIED BY 'right'")
    source = open_source(SourceUri.parse(f"mysql://{p.address}?user=some"))
    assert isinstance(source, MysqlSource)
    with pytest.raises(Unreadable, match="PURGATORY_MYSQL_PASSWORD") as caught:
        await source.asked(p.address)
    assert caught.value.is_refused
    await source.close()


@only_mysql
async def test_account_of_mysql_without_rights_is_served_with_tls_and_without(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default plugin caching_sha2_password encrypts the password with a key of the server if there is no TLS."""
    p = servers["p"]
    authority = p.query("CREATE USER some IDENTIFIED BY 'right'", "SELECT concat(@@datadir, 'ca.pem')")
    monkeypatch.setenv("PURGATORY_MYSQL_PASSWORD", "right")
    for tls in (f"&ssl_ca={authority}&ssl_verify_cert=true", ""):
        source = open_source(SourceUri.parse(f"mysql://{p.address}?user=some{tls}"))
        assert isinstance(source, MysqlSource)
        assert (await source.asked(p.address)).own == p.source
        p.query("SET GLOBAL gtid_mode = ON_PERMISSIVE")
        with pytest.raises(Unreadable, match="gtid_mode"):
            await source.asked(p.address)
        without_tls = ["SET GLOBAL ssl_cert = 'none'", "ALTER INSTANCE RELOAD TLS NO ROLLBACK ON ERROR"]
        p.query("SET GLOBAL gtid_mode = ON", *without_tls)
        assert (await source.asked(p.address)).own == p.source
        await source.close()


def shop(servers: Servers, name: str) -> FastAPI:
    """Writes to the primary, and reads from a replica that has the write."""
    app = FastAPI()

    @app.post("/rows/{row}")
    def write(row: int) -> None:
        p = servers["p"]
        wrote({f"{name}/any/{p.source}": p.write(values=f"({row})")})

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


@only_mariadb
@pytest.mark.parametrize("mode", ["refuse", "serve", "primary"])
async def test_every_stale_read_of_the_middleware_is_labelled_while_the_daemon_is_killed_and_back(
    servers: Servers, mode: OnTimeout, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        daemon = stack.enter_context(DaemonProcess(tmp_path / "1"))
        _, name = await stack.enter_async_context(following(daemon, servers))
        for replica in ("r1", "r2"):
            servers[replica].follow(servers["p"], delay=2)
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
            return app.counts["reached"] > 100

        assert await visit(session, next(rows), sends_token=False) == (200, True, "")
        before = await visits(100)
        daemon.kill()
        away = await visits(150)
        stack.enter_context(DaemonProcess(tmp_path / "2", ["--grpc-address", daemon.address]))
        await eventually(is_back, "requests wait again")
        after = await visits(40)
    assert before == after == {FRESH}
    assert app.counts["unavailable"] >= 150
    seen = {"refuse": (503, False, ""), "serve": (200, True, "unavailable"), "primary": FRESH}[mode]
    assert seen in away
    assert away <= {seen, (200, False, "unavailable")} if mode == "serve" else away == {seen}
