"""A file source that publishes to real daemons: values and breaks arrive over restarts. What it stores for the next."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome
from purgatory_client.errors import NotFound, Unavailable
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.lineage_store import FILE_NAME, LineageStore
from purgatory_connectors.publisher.mark_lineage import MarkLineage
from purgatory_connectors.publisher.observation import End, Observation, SeenReplicas, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source

from examples.free_ports import free_port
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually, until_pending
from tests.sources.file_source import FileSourceProcess, write_positions

StartSource = Callable[..., FileSourceProcess]


@pytest.fixture
def positions(tmp_path: Path) -> Path:
    path = tmp_path / "positions.json"
    write_positions(path, {})
    return path


@pytest.fixture
def start_source(tmp_path: Path, positions: Path) -> Iterator[StartSource]:
    """Start the source of that file, with what an earlier one has stored."""
    started: list[FileSourceProcess] = []

    def start(*daemons: DaemonProcess) -> FileSourceProcess:
        source = FileSourceProcess(positions, tmp_path / "state", [daemon.address for daemon in daemons])
        started.append(source)
        return source

    yield start
    for source in started:
        source.kill()


async def mark_of(client: AsyncClient, topic: str) -> tuple[int, int] | None:
    """Epoch and offset of a mark; None if the daemon does not have it."""
    try:
        partition = await client.partition((topic, 0))
    except NotFound:
        return None
    return partition.leader_epoch, partition.high_watermark


async def until_mark(client: AsyncClient, topic: str, epoch: int, offset: int) -> None:
    async def is_there() -> bool:
        return await mark_of(client, topic) == (epoch, offset)

    await eventually(is_there, but=Unavailable)


@asynccontextmanager
async def clients(*daemons: DaemonProcess) -> AsyncIterator[list[AsyncClient]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(AsyncClient(daemon.address)) for daemon in daemons]


async def test_marks_and_breaks_reach_daemons_over_restarts(
    start_daemon: StartDaemon, positions: Path, start_source: StartSource
) -> None:
    """Two daemons receive everything. A change of identity ends waits that name the old epoch (74); other waits
    continue in the new lineage. A daemon that has lost its marks gets them again, in the same epoch; a source that is
    started again finds the break that it has missed, and what is gone.
    """
    name, address = ("t/orders", 0), f"127.0.0.1:{free_port()}"
    daemons = [start_daemon(), start_daemon("--grpc-address", address)]
    write_positions(positions, {"t/orders": (10, "a")})
    source = start_source(*daemons)
    async with clients(*daemons) as (first, second):
        await until_mark(first, "t/orders", 0, 10)
        await until_mark(second, "t/orders", 0, 10)
        assert (await first.produce({name: 10}, timeout=10)).satisfied
        bound = asyncio.create_task(first.produce({name: 30}, leader_epochs=0, timeout=60))
        loose = asyncio.create_task(first.produce({name: 20}, timeout=60))
        await until_pending(first, 2)
        write_positions(positions, {"t/orders": (15, "b")})
        assert [one.error_code for one in (await bound).partitions.values()] == [74]
        write_positions(positions, {"t/orders": (20, "b")})
        assert (await loose).satisfied
        await until_mark(second, "t/orders", 1, 20)
        daemons[1].kill()
        start_daemon("--grpc-address", address)
        await until_mark(second, "t/orders", 1, 20)
        source.kill()
        write_positions(positions, {"t/orders": (25, "c"), "t/other": (1, "")})
        source = start_source(*daemons)
        for client in (first, second):
            await until_mark(client, "t/orders", 2, 25)
            await until_mark(client, "t/other", 0, 1)
        source.kill()
        write_positions(positions, {"t/orders": (25, "c")})
        start_source(*daemons)
        await eventually(lambda: is_gone(second, "t/other"))


async def is_gone(client: AsyncClient, topic: str) -> bool:
    return await mark_of(client, topic) is None


class QuietSource(Source):
    """A source that observes nothing by itself."""

    name = "quiet://"
    topic_prefixes: tuple[str, ...] = ("t/",)

    async def run(self, publisher: Publisher) -> None:
        publisher.report(SourceState.LIVE)
        await asyncio.Event().wait()

    async def ends(self, names: Sequence[str]) -> list[End]:
        return []


async def test_replicas_reach_the_daemon_and_move_no_mark(start_daemon: StartDaemon) -> None:
    """They end no wait, not even one that names the epoch, and are not published for a mark that was never observed."""
    daemon, name = start_daemon(), ("t/orders", 0)
    publisher = Publisher(QuietSource(), {daemon.address: lambda: AsyncClient(daemon.address)})
    running = asyncio.create_task(publisher.run())

    async def until_kept(client: AsyncClient, in_sync: list[int], others: dict[int, bool]) -> None:
        async def is_kept() -> bool:
            if await mark_of(client, "t/orders") is None:
                return False
            one = await client.partition(name)
            replicas = {each.replica_id: each.in_sync for each in one.replicas}
            return (one.in_sync_replica_ids, replicas, one.high_watermark) == (in_sync, others, 10)

        await eventually(is_kept)

    async with clients(daemon) as (client,):
        publisher.observe_replicas({name: SeenReplicas(1, (1, 2, 3), (1, 2, 3))})
        publisher.observe_replicas({("t/unseen", 0): SeenReplicas(1, (1,), (1,))})
        publisher.observe([Observation(*name, 10)])
        await until_kept(client, [1, 2, 3], {2: True, 3: True})
        pending = asyncio.create_task(client.produce({name: 12}, leader_epochs=0, timeout=30))
        publisher.observe_replicas({name: SeenReplicas(1, (1, 2, 3), (1,))})
        await until_kept(client, [1], {2: False, 3: False})
        publisher.observe_replicas({name: SeenReplicas(2, (2, 3, 4), (2, 4))})
        await until_kept(client, [2, 4], {3: False, 4: True})
        with pytest.raises(NotFound):
            await client.partition(("t/unseen", 0))
        publisher.observe([Observation(*name, 12)])
        assert (await pending).outcome is Outcome.SATISFIED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


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


def test_damaged_and_newer_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but long enough to look like none" * 100)
    with pytest.raises(SourceRefused, match=FILE_NAME):
        LineageStore(tmp_path)
    assert path.read_bytes().startswith(b"not a database")
    path.unlink()
    LineageStore(tmp_path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(SourceRefused, match="newer version"):
        LineageStore(tmp_path)
