"""Two daemons over one log in real Kafka: they are stopped and killed, and so are its brokers."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import ElectionType, KafkaException, TopicPartition

from examples.kafka_cluster import KafkaCluster
from purgatory.replicated_log.leadership import EXIT_REPLACED
from tests.histories.judge import Broken
from tests.histories.worlds.pair import PairWorld
from tests.kafka.clients import ClusterClients
from tests.kit.commands import fleet_command
from tests.kit.fleet import Member

pytestmark = pytest.mark.slow

PATIENCE_S: Final = 120.0
DAEMONS: Final = ("stop", "crash point")
"""The other ways in which a daemon ends are tested over a log in PostgreSQL."""
FAULTS: Final = 5
"""One of each kind."""
IMPATIENT: Final = {"socket.timeout.ms": "2000"}
"""The broker that is asked may hang."""


class BrokerWorld(PairWorld):
    """It has faults of brokers too. After each of those, all callers are served again."""

    def __init__(self, folder: Path, log_uri: str, cluster: KafkaCluster, topic: str) -> None:
        self._faults: Final[dict[str, Callable[[], Awaitable[None]]]] = {
            "kill the leading broker": self._kill_leading,
            "hang the leading broker": self._hang_leading,
            "kill two brokers": self._kill_two,
        }
        super().__init__(folder, log_uri, 1, [*self._faults, *DAEMONS])
        self._cluster: Final = cluster
        self._topic: Final = topic
        self._clients: Final = ClusterClients(cluster.bootstrap, IMPATIENT)

    async def fault(self, kind: str, member: Member) -> None:
        if kind in self._faults:
            await self._faults[kind]()
        else:
            await super().fault(kind, member)

    async def _kill_leading(self) -> None:
        """Two brokers of three are enough. The lead moves to one of them, and back once the broker has returned."""
        await self._until(self._elects_preferred, "the preferred broker leads")
        broker = await self._until_led_by(lambda leader: leader > 0)
        self._cluster.kill(broker)
        began_s = time.monotonic()
        await self._until_led_by(lambda leader: leader not in {broker, -1})
        await self._until_served("the broker that led was killed", began_s)
        await self._during(self._cluster.start, broker)
        await self._until(self._is_in_sync, "the preferred broker is in sync again")
        began_s = time.monotonic()
        await self._until(self._elects_preferred, "the preferred broker leads again")
        await self._until_served("the lead moved to another broker", began_s)

    async def _hang_leading(self) -> None:
        """The lead moves, and the broker that led finds out when it is continued."""
        broker = await self._until_led_by(lambda leader: leader > 0)
        self._cluster.hang(broker)
        try:
            began_s = time.monotonic()
            await self._until_led_by(lambda leader: leader not in {broker, -1})
            await self._until_served("the broker that led hangs", began_s)
        finally:
            self._cluster.wake(broker)
        await self._until_served("it was continued", time.monotonic())

    async def _kill_two(self) -> None:
        """One broker of three is not enough: no daemon leads, and each exits to be restarted, until two are back."""
        broker = await self._until_led_by(lambda leader: leader > 0)
        victims = (broker, broker % len(self._cluster.brokers) + 1)
        exits = self._exits()
        self._cluster.kill(*victims)
        await self._until(lambda: self._exits() > exits, "the leader exits")
        await self._until(lambda: not any(one.answers("/leaderz") for one in self.members), "no daemon leads")
        await self._during(self._cluster.start, *victims)
        await self._until_served("two of three brokers were started again", time.monotonic())

    def _exits(self) -> int:
        return sum(member.exit_codes.count(EXIT_REPLACED) for member in self.members)

    def _partition(self) -> Any:  # noqa: ANN401 - as the library describes it
        """The partition of the log; None if nobody answers."""
        with suppress(KafkaException):
            return self._clients.admin.list_topics(self._topic, timeout=10).topics[self._topic].partitions[0]
        return None

    def _leader(self) -> int:
        """The broker that leads the partition; -1: none, or nobody answers."""
        partition = self._partition()
        return partition.leader if partition else -1

    def _is_in_sync(self) -> bool:
        partition = self._partition()
        return partition is not None and len(partition.isrs) == len(self._cluster.brokers)

    def _elects_preferred(self) -> bool:
        """Whether the preferred broker leads after its election, which fails if it leads already or is out of sync."""
        with suppress(KafkaException):
            self._clients.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(self._topic, 0)]).result()
        partition = self._partition()
        return partition is not None and partition.leader == partition.replicas[0]

    async def _during(self, call: Callable[..., None], *arguments: int) -> None:
        """Make a call that blocks, as a supervisor of the daemons."""
        running = asyncio.create_task(asyncio.to_thread(call, *arguments))
        await self._until(running.done, f"{call} returns")
        await running

    async def _until_led_by(self, is_right: Callable[[int], bool]) -> int:
        """Wait until the right broker leads the partition, and return it."""
        seen: list[int] = []

        def leads() -> bool:
            seen.append(self._leader())
            return is_right(seen[-1])

        await self._until(leads, "the right broker leads")
        return seen[-1]

    async def _until_served(self, what: str, since_s: float) -> None:
        """Wait until batches of each caller have been accepted from now on."""
        await self.load.until_all_rise(lambda caller: caller.accepted_batches, self.check, f"served ({what})")
        print(f"{what}: all callers served after {time.monotonic() - since_s:.1f} s, {self._exits()} exits so far")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, as a supervisor of the daemons."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not await asyncio.to_thread(condition):
            self.check()
            if time.monotonic() > deadline_s:
                raise Broken(f"not within {PATIENCE_S} s: {what}\n{self.logs}")
            await asyncio.sleep(0.05)


def test_no_fault_loses_repeats_or_hastens_anything_over_kafka(three_brokers: KafkaCluster, tmp_path: Path) -> None:
    """Either daemon is stopped, and killed at a point of its commit. The broker that leads the partition is killed,
    gives the lead away, hangs, and is killed together with another. Each acknowledged wait ends once and not too early,
    all callers are served once two brokers are in sync, and each daemon's file has exactly the rows that the log says.
    """
    topic = f"brokers-{uuid.uuid4().hex[:8]}"
    url = f"kafka://{three_brokers.bootstrap}/{topic}"
    assert fleet_command(["init", url]) == 0
    run = BrokerWorld(tmp_path, url, three_brokers, topic)
    try:
        tally = asyncio.run(run.run(FAULTS))
    finally:
        three_brokers.start()
    assert min(tally["operations"], tally["groups in the log"]) > FAULTS
    assert fleet_command(["verify", url]) == 0
