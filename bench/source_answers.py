"""How late waits are answered that a Kafka source feeds, with everything real: `python -m bench.source_answers`.

A cluster of one broker, a daemon with `--source`, a client that waits, and beside them, in the same run, a consumer
that only reads `__consumer_offsets`. All share this machine's processors.
"""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from purgatory_client import AsyncClient
from purgatory_client.results import Outcome, Result

from bench.kafka_source import bare_consumer, row
from examples.kafka_cluster import KafkaCluster
from examples.local_daemon import serving
from tests.kafka.clients import ClusterClients

COMMITS: Final = 500
RECORDS: Final = 200
POLL_MS: Final = 50
GROUPS: Final = 100
WAITS_PER_GROUP: Final = 100


def spread(times_ms: Sequence[float]) -> str:
    ordered = sorted(times_ms)
    return f"{statistics.median(ordered):.2f} / {ordered[int(len(ordered) * 0.99)]:.2f} ms (p50 / p99)"


async def answered_at(wait: Awaitable[Result]) -> float:
    """When it was answered, as seen by the caller."""
    result = await wait
    assert result.outcome is Outcome.SATISFIED, result
    return time.monotonic()


async def commit_to_answer(bootstrap: str, client: AsyncClient) -> None:
    """From a commit's call to the answer of the wait for it, and to where a consumer alone sees it."""
    seen: dict[int, float] = {}
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=bare_consumer, args=(bootstrap, seen, stop, ready))
    thread.start()
    await asyncio.to_thread(ready.wait, 30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "late"})
    sent: dict[int, float] = {}
    answered: list[float] = []
    for offset in range(2, COMMITS + 2):
        wait = asyncio.create_task(answered_at(client.processed("late", {"orders-0": offset - 1}, timeout=60)))
        await asyncio.sleep(0.01)  # so that it is registered
        committed = time.monotonic()
        await asyncio.to_thread(consumer.commit, offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        answered.append((await wait - committed) * 1e3)
        sent[offset] = committed
    await asyncio.to_thread(consumer.close)  # by when the other consumer has seen the last one, too
    stop.set()
    await asyncio.to_thread(thread.join)
    bare = [(seen[offset] - committed) * 1e3 for offset, committed in sent.items()]
    row("commit -> a consumer alone", spread(bare))
    row("commit -> its wait answered", spread(answered))
    ratios = (statistics.median(answered) / statistics.median(bare), sorted(answered)[-6] / sorted(bare)[-6])
    row("... beside the consumer", f"{ratios[0]:.2f} x / {ratios[1]:.2f} x")


async def record_to_answer(bootstrap: str, client: AsyncClient) -> None:
    """From a record's acknowledgement (acks=all) to the answer of a wait for it."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    late = []
    for offset in range(RECORDS):
        wait = asyncio.create_task(answered_at(client.produce({"kafka/orders-1": offset + 1}, timeout=60)))
        # Somebody waits always: what is measured is a poll, and not how soon polling begins. The pause is no multiple
        # of it, so that records fall anywhere between two polls.
        await asyncio.sleep(0.013 + 0.007 * (offset % 11))
        producer.produce("orders", b"x", partition=1)
        await asyncio.to_thread(producer.flush)
        acknowledged = time.monotonic()
        late.append((await wait - acknowledged) * 1e3)
    row(f"record -> wait answered, {POLL_MS} ms polls", f"{spread(late)}, at most {max(late):.1f}")


async def many_groups(clients: ClusterClients, client: AsyncClient) -> None:
    """All of them wait at once, then each group commits once."""
    names = [f"group-{number}" for number in range(GROUPS)]
    waits = [
        asyncio.create_task(answered_at(client.processed(name, {"orders-2": record}, timeout=300)))
        for name in names
        for record in range(WAITS_PER_GROUP)
    ]
    while sum(kind.pending for kind in (await client.status()).kinds) < len(waits):  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.05)
    begun = time.monotonic()
    for name in names:
        await asyncio.to_thread(clients.commit, name, {("orders", 2): WAITS_PER_GROUP})
    committed = time.monotonic()
    last = max(await asyncio.gather(*waits))
    row(f"{len(waits):,} waits on {GROUPS} groups", f"all satisfied {(last - committed) * 1e3:.0f} ms after the last")
    row("... commits took", f"{committed - begun:.1f} s")


async def measure(cluster: KafkaCluster, folder: Path) -> None:
    uri = f"kafka://{cluster.bootstrap}?topics=orders&poll-ms={POLL_MS}"
    clients = ClusterClients(cluster.bootstrap)
    clients.create("orders", 5)
    clients.commit("late", {("orders", 0): 1})
    async with serving(folder, "--source", uri) as address, AsyncClient(address) as client:
        await client.processed("late", {"orders-0": 0}, timeout=60)
        await commit_to_answer(cluster.bootstrap, client)
        await record_to_answer(cluster.bootstrap, client)
        await many_groups(clients, client)


def main() -> None:
    settings = {"offsets.topic.num.partitions": 4}
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka", 1, settings) as cluster:
        asyncio.run(measure(cluster, Path(name)))


if __name__ == "__main__":
    main()
