"""A source that publishes to real daemons: values and breaks arrive over restarts. What it stores for the next."""

import asyncio
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome
from purgatory_client.errors import NotFound
from purgatory_connectors.errors import SourceRefused
from purgatory_connectors.publisher.lineage_store import FILE_NAME, LineageStore
from purgatory_connectors.publisher.mark_lineage import MarkLineage
from purgatory_connectors.publisher.observation import Observation, SeenReplicas

from examples.free_ports import free_port
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually, until_pending
from tests.sources.publishing import DictSource, running, until_mark

NAME = ("t/orders", 0)


async def until_at(client: AsyncClient, topic: str, epoch: int, offset: int) -> None:
    await until_mark(client, topic, lambda mark: (mark.leader_epoch, mark.high_watermark) == (epoch, offset))


async def test_marks_and_breaks_reach_daemons_over_restarts(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """Two daemons receive everything. A change of identity ends waits that name the old epoch (74); other waits
    continue in the new lineage. A daemon that has lost its marks gets them again, in the same epoch; a source that is
    started again finds the break that it has missed, and what is gone.
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
