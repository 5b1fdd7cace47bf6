"""The Redis source with a real primary and two replicas: lag, hangs, failovers, rights; and with servers that lie."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
import redis
from purgatory_client import AsyncClient
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.polled_source import Unreadable
from purgatory_connectors.redis.redis_source import RedisSource

from examples.free_ports import free_port
from purgatory.source_uri import SourceUri
from purgatory.testing import ConnectorContract, WatchedSystem
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually, wait_until
from tests.kit.programs import skip_unless_required
from tests.kit.recorded import assert_recorded, cases_of
from tests.sources.publishing import publishing, until_mark

FAST = "servers=p,r1,r2&poll_ms=5&idle_poll_ms=20&timeout_ms=300"


class LocalRedis:
    """A server on loopback without persistence, in a folder of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        command = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.client = redis.Redis(port=self.port, protocol=2)
        wait_until(self.client.ping, (folder / "log").read_text, but=redis.ConnectionError)

    def follow(self, primary: "LocalRedis") -> None:
        self.client.replicaof("127.0.0.1", primary.port)

    def write(self) -> int:
        """Set a key, and return the offset after it, which is the position to wait for."""
        self.client.incr("written")
        return int(self.client.info("replication")["master_repl_offset"])

    def written(self) -> int:
        """How many writes can be read here."""
        return int(self.client.get("written") or 0)

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


Servers = dict[str, LocalRedis]


@contextmanager
def started(folder: Path) -> Iterator[Servers]:
    """A primary "p" with the replicas "r1" and "r2". Without Redis the test is skipped, or fails if it is required."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        skip_unless_required("REDIS", "no redis-server found (Debian: apt-get install redis-server)")
    with ExitStack() as stack:
        found = {name: stack.enter_context(closing(LocalRedis(program, folder / name))) for name in ("p", "r1", "r2")}
        for name in ("r1", "r2"):
            found[name].follow(found["p"])
        yield found


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with started(tmp_path) as servers:
        yield servers


class Replicas(WatchedSystem):
    """The mark of the replica that is furthest."""

    mark = ends = "redis/main/any"

    def __init__(self, servers: Servers) -> None:
        self._primary, *self._replicas = servers.values()
        self.uri = f"redis://{','.join(one.address for one in servers.values())}?{FAST}"

    def write(self) -> int:
        return self._primary.write()

    def position(self) -> int:
        states = [one.client.info("replication") for one in self._replicas]
        return max(int(one.get("slave_repl_offset", one["master_repl_offset"])) for one in states)

    def stop(self) -> None:
        for one in self._replicas:
            one.process.send_signal(signal.SIGSTOP)

    def start(self) -> None:
        for one in self._replicas:
            one.process.send_signal(signal.SIGCONT)

    def begin_again(self) -> None:
        """A replica is promoted."""
        self._primary.process.kill()
        self._primary, *self._replicas = self._replicas
        self._primary.client.replicaof("NO", "ONE")
        for one in self._replicas:
            one.follow(self._primary)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    with started(tmp_path_factory.mktemp("redis")) as servers:
        yield Replicas(servers)


@pytest.mark.slow
class TestContract(ConnectorContract): ...


@pytest.mark.slow
async def test_a_failover_that_loses_a_write(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """After a promotion, all marks have a new epoch, at the fork or below."""
    p, r1, r2 = servers.values()
    prefix = f"redis/{p.port}"
    hosts = ",".join(one.address for one in servers.values())
    async with publishing(shared_daemon, f"redis://{hosts}?name={p.port}&{FAST}") as client:
        await until_mark(client, f"{prefix}/all", lambda mark: mark.high_watermark >= 0 and not mark.stale_reason)
        r1.process.send_signal(signal.SIGSTOP)
        r2.process.send_signal(signal.SIGSTOP)
        p.client.client_kill_filter(_type="replica")  # so that these writes wait in no socket
        lost = max(p.write() for _ in range(20))
        epoch = (await until_mark(client, f"{prefix}/p", lambda mark: mark.high_watermark >= lost)).leader_epoch
        p.process.kill()
        r1.process.send_signal(signal.SIGCONT)
        r2.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(r1.client.replicaof, "NO", "ONE")
        await asyncio.to_thread(r2.follow, r1)
        end = await asyncio.to_thread(r1.write)
        for mark in ("any", "r2"):
            await until_mark(client, f"{prefix}/{mark}", lambda mark: mark.leader_epoch > epoch)
            result = await client.produce({f"{prefix}/{mark}": end}, leader_epochs=epoch + 1, timeout=60)
            assert result.satisfied
        assert r2.written() == r1.written()
        old = await client.partition((f"{prefix}/p", 0))
        assert (old.leader_epoch, old.high_watermark < lost) == (epoch + 1, True)
        assert old.stale_reason


@pytest.mark.slow
def test_commands_of_the_page_succeed_on_real_redis(
    servers: Servers, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    while servers["p"].write() < 8412:  # the offset that the page waits for
        pass
    daemon = start_daemon(*sources_about("redis", ",".join(one.address for one in servers.values())))
    script = "\n".join(["set -e", *commands_about("redis")]).replace("redis-cli", f"redis-cli -p {servers['p'].port}")
    done = shell(script, tmp_path, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "master_repl_offset:" in done.stdout


PRIMARY = "role:master\r\nmaster_replid:a1\r\nmaster_replid2:0\r\nmaster_repl_offset:7\r\nsecond_repl_offset:-1\r\n"


@asynccontextmanager
async def server(answer: str) -> AsyncIterator[str]:
    """The address of a server that answers INFO with this text, or as written if it begins like another answer. If
    it begins with "-", everything is answered with it.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).startswith(b"*"):
            words = [(await reader.readline(), (await reader.readline()).strip())[1] for _ in range(int(line[1:]))]
            text = answer if answer.startswith("-") else "+OK"
            if words[0] == b"INFO" and text == "+OK":
                text = answer if answer[:1] in ("$", "*") else f"${len(answer)}\r\n{answer}"
            writer.write(f"{text}\r\n".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as serving:
        yield f"127.0.0.1:{serving.sockets[0].getsockname()[1]}"


ANSWERS = Path(__file__).with_name("answers.txt")


async def test_server_with_a_wrong_answer_is_unreadable_with_the_reason() -> None:
    """As in answers.txt."""

    async def reason(case: str) -> str:
        async with server(eval(case, {"PRIMARY": PRIMARY})) as address:
            source = open_source(SourceUri.parse(f"redis://{address}"))
            assert isinstance(source, RedisSource)
            with pytest.raises(Unreadable) as unreadable:
                await source.asked(address)
            await source.close()
        return str(unreadable.value).replace(address, "ADDRESS")

    assert_recorded(ANSWERS, [await reason(case) for case in cases_of(ANSWERS)])


async def test_mark_of_a_server_that_is_no_longer_listed_is_removed(shared_daemon: DaemonProcess) -> None:
    gone, listed = "redis/unlisted/r3", "redis/unlisted/p"
    async with server(PRIMARY) as address, AsyncClient(shared_daemon.address) as before:
        await before.advance((gone, 0), high_watermark=5)
        async with publishing(shared_daemon, f"redis://{address}?name=unlisted&servers=p") as client:

            async def is_gone() -> bool:
                return {one.topic async for one in client.partitions(prefix="redis/unlisted/")} == {listed}

            await eventually(is_gone)
