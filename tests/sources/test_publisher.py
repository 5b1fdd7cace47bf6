"""A file source that publishes to real daemons: all values arrive, breaks are published, and kills lose nothing."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome
from purgatory_client.errors import NotFound, PurgatoryClientError
from purgatory_connectors.publisher.observation import End, Observation, SeenReplicas, SourceState
from purgatory_connectors.publisher.publisher import Publisher, Source

from examples.free_ports import free_ports
from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.eventually import eventually
from tests.sources.file_source import FileSourceProcess, Positions, write_positions

LATE_S = 10.0
StartSource = Callable[..., FileSourceProcess]


@pytest.fixture
def positions(tmp_path: Path) -> Path:
    """The positions file."""
    path = tmp_path / "positions.json"
    write_positions(path, {})
    return path


@pytest.fixture
def start_source(tmp_path: Path, positions: Path) -> Iterator[StartSource]:
    """Start sources of that file. The same `state` means the same source again."""
    started: list[FileSourceProcess] = []

    def start(*daemons: DaemonProcess, state: str = "state") -> FileSourceProcess:
        source = FileSourceProcess(positions, tmp_path / state, [daemon.address for daemon in daemons])
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

    await eventually(is_there)


@asynccontextmanager
async def clients(*daemons: DaemonProcess) -> AsyncIterator[list[AsyncClient]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(AsyncClient(daemon.address)) for daemon in daemons]


async def test_marks_arrive_and_breaks_end_waits_with_an_epoch(
    start_daemon: StartDaemon, positions: Path, start_source: StartSource
) -> None:
    """Two daemons receive everything. A change of identity ends waits that name the old epoch (74); other waits
    continue in the new lineage.
    """
    daemons = [start_daemon(), start_daemon()]
    write_positions(positions, {"t/orders": (10, "a")})
    start_source(*daemons)
    async with clients(*daemons) as (first, second):
        await until_mark(first, "t/orders", 0, 10)
        await until_mark(second, "t/orders", 0, 10)
        name = ("t/orders", 0)
        done = await first.produce({name: 10}, timeout=10)
        assert done.outcome is Outcome.SATISFIED
        bound = asyncio.create_task(first.produce({name: 30}, leader_epochs=0, timeout=20))
        loose = asyncio.create_task(first.produce({name: 20}, timeout=20))
        while (await first.partition(name)).watched != 2:  # noqa: ASYNC110 - a daemon's state
            await asyncio.sleep(0.01)
        write_positions(positions, {"t/orders": (15, "b")})
        failed = await bound
        assert failed.outcome is Outcome.FAILED
        assert [one.error_code for one in failed.partitions.values()] == [74]
        write_positions(positions, {"t/orders": (20, "b")})
        assert (await loose).outcome is Outcome.SATISFIED
        await until_mark(second, "t/orders", 1, 20)
        write_positions(positions, {})
        while await mark_of(second, "t/orders") is not None:  # noqa: ASYNC110 - a daemon's state
            await asyncio.sleep(0.01)


class FileWorld:
    """Marks in a file that move and are reset, their waiters, and the history of their values."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.positions: Positions = {f"t/{number}": (0, "0") for number in range(4)}
        self.facts: dict[str, list[tuple[float, int]]] = {topic: [] for topic in self.positions}
        self.answered = 0
        self.too_early: list[object] = []
        self._path = path
        self.write()

    def write(self) -> None:
        for topic, (offset, _) in self.positions.items():
            self.facts[topic].append((time.monotonic(), offset))
        write_positions(self._path, self.positions)

    async def move(self) -> None:
        while True:
            topic = self.random.choice(list(self.positions))
            offset, identity = self.positions[topic]
            if self.random.random() < 0.003:  # rare, because answers within LATE_S of a reset prove nothing
                self.positions[topic] = (offset // 2, str(int(identity) + 1))
            else:
                self.positions[topic] = (offset + self.random.randint(1, 5), identity)
            self.write()
            await asyncio.sleep(0.005)

    async def wait(self, client: AsyncClient) -> None:
        """Wait for a future value, and check the answer against the history."""
        while True:
            topic = self.random.choice(list(self.positions))
            required = self.positions[topic][0] + self.random.randint(1, 10)
            begun = time.monotonic()
            try:
                result = await client.produce({(topic, 0): required}, timeout=60)
            except PurgatoryClientError:
                await asyncio.sleep(0.05)
                continue
            if result.outcome is not Outcome.SATISFIED:
                continue
            self.answered += 1
            # A break reaches a daemon that was restarted only once a source has connected to it again.
            facts = self.facts[topic]
            current = [
                fact
                for fact, after in zip(facts, [*facts[1:], None], strict=True)
                if after is None or after[0] > begun - LATE_S
            ]
            if not any(offset >= required for _, offset in current):
                self.too_early.append((topic, required, begun, current[-5:]))


@pytest.mark.slow
async def test_nothing_is_lost_nor_early_while_sources_and_daemons_are_killed(
    start_daemon: StartDaemon, tmp_path: Path, positions: Path, start_source: StartSource
) -> None:
    """Under load with occasional resets, one of two sources and two daemons (one with a journal) are killed and
    restarted. No wait is answered too early, and both daemons end with the current values.
    """
    ports = free_ports(2)
    flags = [
        ["--grpc-address", f"127.0.0.1:{ports[0]}", "--data-dir", str(tmp_path / "data")],
        ["--grpc-address", f"127.0.0.1:{ports[1]}"],
    ]
    daemons = [start_daemon(*each) for each in flags]
    world = FileWorld(positions, seed=2)
    killed, _ = [start_source(*daemons, state=f"state {number}") for number in range(2)]

    async def until_answered(count: int) -> None:
        count += world.answered
        await eventually(lambda: world.answered >= count)

    async with clients(*daemons) as each, asyncio.TaskGroup() as tasks:
        busy = [tasks.create_task(world.wait(client)) for client in each for _ in range(20)]
        busy.append(tasks.create_task(world.move()))
        await until_answered(100)
        killed.kill()
        start_source(*daemons, state="state 0")
        for index in (1, 0):
            await until_answered(100)
            daemons[index].kill()
            daemons[index] = start_daemon(*flags[index])
        await until_answered(100)
        for task in busy:
            task.cancel()
    world.write()
    async with clients(*daemons) as each:
        for topic, (offset, _) in world.positions.items():
            for client in each:
                async with asyncio.timeout(60):
                    while (await mark_of(client, topic) or (0, -1))[1] != offset:  # noqa: ASYNC110 - a daemon's state
                        await asyncio.sleep(0.02)
        epochs = [[one.leader_epoch async for one in client.partitions(prefix="t/")] for client in each]
    assert world.too_early == []
    assert epochs[0] == epochs[1]


class QuietSource(Source):
    """A source that observes nothing by itself."""

    name = "quiet://"
    topic_prefixes: tuple[str, ...] = ("t/",)

    async def run(self, publisher: Publisher) -> None:
        publisher.report(SourceState.LIVE)
        await asyncio.Event().wait()

    async def ends(self, names: Sequence[str]) -> list[End]:
        return []


async def test_who_keeps_a_partition_reaches_the_daemon(start_daemon: StartDaemon) -> None:
    """Replicas and in-sync sets reach the daemon. They move no mark and end no wait, not even one that names the epoch.
    They are not published for a mark that was never observed.
    """
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
