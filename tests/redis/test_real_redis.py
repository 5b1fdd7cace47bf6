"""The Redis source with a real primary and two replicas: lag, hangs, failovers, rights; and with servers that lie."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from purgatory_client import AsyncClient
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.polled_source import Unreadable
from purgatory_connectors.redis.redis_source import RedisSource

from purgatory.source_uri import SourceUri
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually
from tests.kit.required import skip_unless_required
from tests.redis.local_redis import LocalRedis, NoRedis
from tests.sources.publishing import publishing, until_mark

FAST = "servers=p,r1,r2&poll_ms=5&idle_poll_ms=20&timeout_ms=300"
Servers = dict[str, LocalRedis]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A primary "p" with the replicas "r1" and "r2". Without Redis the test is skipped, or fails if it is required."""
    found: Servers = {}
    try:
        for name in ("p", "r1", "r2"):
            found[name] = LocalRedis(tmp_path / name)
    except NoRedis as missing:
        skip_unless_required("REDIS", missing)
    for name in ("r1", "r2"):
        found[name].follow(found["p"])
    yield found
    for one in found.values():
        one.close()


def watched(daemon: DaemonProcess, servers: Servers) -> AbstractAsyncContextManager[AsyncClient]:
    """A client of the daemon, while a source publishes to it, named after the primary's port."""
    hosts = ",".join(one.address for one in servers.values())
    return publishing(daemon, f"redis://{hosts}?name={servers['p'].port}&{FAST}")


@pytest.mark.slow
async def test_a_replica_that_lags_and_one_that_hangs(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """While a replica hangs, `any` goes on and `all` is stale; a wait for `all` ends once it has caught up."""
    p, r1, r2 = servers.values()
    prefix = f"redis/{p.port}"
    async with watched(shared_daemon, servers) as client:
        for mark in ("p", "r1", "r2", "any", "all", "quorum"):
            await until_mark(
                client, f"{prefix}/{mark}", lambda mark: mark.high_watermark >= 0 and not mark.stale_reason
            )
        r2.send(signal.SIGSTOP)
        end = p.write()
        assert (await client.produce({f"{prefix}/any": end}, timeout=60)).satisfied
        assert r1.written() == p.written()
        stale = await until_mark(client, f"{prefix}/all", lambda mark: mark.stale_reason)
        assert stale.stale_reason == "r2: it does not answer"
        assert (await client.partition((f"{prefix}/any", 0))).stale_reason == ""
        pending = asyncio.create_task(client.produce({f"{prefix}/all": end, f"{prefix}/r2": end}, timeout=60))
        await until_mark(client, f"{prefix}/all", lambda mark: mark.watched == 1)
        assert not pending.done()
        r2.send(signal.SIGCONT)
        assert (await pending).satisfied
        assert r2.written() == p.written()
        end = p.write()
        ends = await client.ends([f"{prefix}/all"])
        assert min(ends.offsets.values()) >= end
        assert (await client.wait_for(ends, timeout=60)).satisfied


@pytest.mark.slow
async def test_a_failover_that_loses_a_write(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """After a promotion, all marks have a new epoch, at the fork or below; waits that name the old one fail (74)."""
    p, r1, r2 = servers.values()
    prefix = f"redis/{p.port}"
    async with watched(shared_daemon, servers) as client:
        end = p.write()
        assert (await client.produce({f"{prefix}/all": end}, timeout=60)).satisfied
        r1.send(signal.SIGSTOP)
        r2.send(signal.SIGSTOP)
        p.client.client_kill_filter(_type="replica")  # so that these writes wait in no socket
        lost = max(p.write() for _ in range(20))
        epoch = (await until_mark(client, f"{prefix}/p", lambda mark: mark.high_watermark >= lost)).leader_epoch
        bound = asyncio.create_task(client.produce({f"{prefix}/any": lost + 5_000}, leader_epochs=epoch, timeout=60))
        await until_mark(client, f"{prefix}/any", lambda mark: mark.watched == 1)
        p.kill()
        r1.send(signal.SIGCONT)
        r2.send(signal.SIGCONT)
        await asyncio.to_thread(r1.promote)
        await asyncio.to_thread(r2.follow, r1)
        failed = await bound
        assert [one.error_code for one in failed.partitions.values()] == [74]
        end = await asyncio.to_thread(r1.write)
        for mark in ("any", "r2"):
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


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not that of Redis"),
        ("role:sentinel\r\n", "not that of Redis"),
        (PRIMARY.replace("second_repl_offset", "other"), "not that of Redis"),
        (PRIMARY.replace(":7", ":seven"), "not that of Redis"),
        (PRIMARY.replace(":7", ":-1"), "not that of Redis"),
        (PRIMARY.replace(":7", f":{2**61}"), "not that of Redis"),
        ("-WRONGPASS invalid username-password pair", "PURGATORY_REDIS_PASSWORD"),
        ("-NOAUTH Authentication required.", "PURGATORY_REDIS_PASSWORD"),
        ("-NOPERM this user has no permissions to run the 'info' command", r"right \+info"),
        ("-LOADING Redis is loading the dataset in memory", "loading"),
        ("$9000000000\r\n", "longer than 65,536 bytes"),
        ("*100000000\r\n" + ":1\r\n" * 20_000, "longer than 65,536 bytes"),
        ("*1\r\n" * 10_000, "nested too deeply"),
    ],
)
async def test_server_with_a_wrong_answer_is_unreadable_with_the_reason(answer: str, said: str) -> None:
    async with server(answer) as address:
        source = open_source(SourceUri.parse(f"redis://{address}"))
        assert isinstance(source, RedisSource)
        with pytest.raises(Unreadable, match=said):
            await source.asked(address)
        await source.close()


async def test_mark_of_a_server_that_is_no_longer_listed_is_removed(shared_daemon: DaemonProcess) -> None:
    gone, listed = "redis/unlisted/r3", "redis/unlisted/p"
    async with server(PRIMARY) as address, AsyncClient(shared_daemon.address) as before:
        await before.advance((gone, 0), high_watermark=5)
        async with publishing(shared_daemon, f"redis://{address}?name=unlisted&servers=p") as client:

            async def is_gone() -> bool:
                return {one.topic async for one in client.partitions(prefix="redis/unlisted/")} == {listed}

            await eventually(is_gone)
