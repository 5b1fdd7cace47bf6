"""The Redis source with a real primary and two replicas: lag, hangs, failovers, rights."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome
from purgatory_connectors.cli import open_source
from purgatory_connectors.errors import SourceRefused

from purgatory.source_uri import SourceUri, SourceUriInvalid
from tests.docs.pages import commands_about, shell, sources_about
from tests.kit.daemon import DaemonProcess, StartDaemon
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
        assert (await client.produce({f"{prefix}/any": end}, timeout=60)).outcome is Outcome.SATISFIED
        assert r1.written() == p.written()
        stale = await until_mark(client, f"{prefix}/all", lambda mark: mark.stale_reason)
        assert stale.stale_reason == "r2: it does not answer"
        assert (await client.partition((f"{prefix}/any", 0))).stale_reason == ""
        pending = asyncio.create_task(client.produce({f"{prefix}/all": end, f"{prefix}/r2": end}, timeout=60))
        await until_mark(client, f"{prefix}/all", lambda mark: mark.watched == 1)
        assert not pending.done()
        r2.send(signal.SIGCONT)
        assert (await pending).outcome is Outcome.SATISFIED
        assert r2.written() == p.written()
        end = p.write()
        ends = await client.ends([f"{prefix}/all"])
        assert min(ends.offsets.values()) >= end
        assert (await client.wait_for(ends, timeout=60)).outcome is Outcome.SATISFIED


@pytest.mark.slow
async def test_a_failover_that_loses_a_write(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """After a promotion, all marks have a new epoch, at the fork or below; waits that name the old one fail (74)."""
    p, r1, r2 = servers.values()
    prefix = f"redis/{p.port}"
    async with watched(shared_daemon, servers) as client:
        end = p.write()
        assert (await client.produce({f"{prefix}/all": end}, timeout=60)).outcome is Outcome.SATISFIED
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
            assert result.outcome is Outcome.SATISFIED
        assert r2.written() == r1.written()
        old = await client.partition((f"{prefix}/p", 0))
        assert (old.leader_epoch, old.high_watermark < lost) == (epoch + 1, True)
        assert old.stale_reason


@pytest.mark.slow
async def test_a_user_without_the_right(shared_daemon: DaemonProcess, servers: Servers) -> None:
    """If the user may not call INFO, the reason names the right. Once it is granted, the marks become fresh."""
    p = servers["p"]
    prefix = f"redis/{p.port}"
    async with watched(shared_daemon, servers) as client:
        await until_mark(client, f"{prefix}/p", lambda mark: mark.high_watermark >= 0 and not mark.stale_reason)
        p.client.acl_setuser("default", enabled=True, commands=["-info"])
        stale = await until_mark(client, f"{prefix}/p", lambda mark: mark.stale_reason)
        assert "+info" in stale.stale_reason
        p.client.acl_setuser("default", enabled=True, commands=["+info"])
        await until_mark(client, f"{prefix}/p", lambda mark: not mark.stale_reason)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("redis://a,b?servers=x", "a different name to each of the 2 hosts"),
        ("redis://a,b?servers=x,all", "other than any, all, quorum"),
        ("redis://a,a", "a different name"),
        ("redis://a?quorum=0", "quorum"),
        ("redis://a?colour=red", "colour"),
        ("valkey://a:port", "port"),
        ("redis://:secret@a", "no user or password"),
    ],
)
def test_wrong_addresses_are_refused(uri: str, said: str) -> None:
    """A setting that cannot be used is refused at the start, with a message that names it."""
    with pytest.raises((SourceRefused, SourceUriInvalid), match=said):
        open_source(SourceUri.parse(uri))


@pytest.mark.slow
def test_commands_of_the_documentation(servers: Servers, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Each command on a Redis mark succeeds with the source of the page."""
    while servers["p"].write() < 8412:  # the offset that the page waits for
        pass
    daemon = start_daemon(*sources_about("redis", ",".join(one.address for one in servers.values())))
    script = "\n".join(["set -e", *commands_about("redis")]).replace("redis-cli", f"redis-cli -p {servers['p'].port}")
    done = shell(script, tmp_path, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "master_repl_offset:" in done.stdout
