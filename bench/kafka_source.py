"""What the Kafka source costs and how late it is, on a cluster of its own: `python -m bench.kafka_source`.

No daemon: a feed that only keeps the newest marks stands in its place, so the figures are the source's. CPU time is
that of the source's process; the brokers' and that of clients which commit are not in it.
"""

import asyncio
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from struct import pack
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from purgatory_sources.kafka.offset_records import decode_offset

from examples.kafka_cluster import KafkaCluster
from tests.kafka.clients import ClusterClients
from tests.kafka.recording_feed import running_source

GROUPS: Final = 200
PARTITIONS: Final = 1_000
RECORDS: Final = 200_000
COMMITS: Final = 300
IDLE_S: Final = 30.0
OFFSETS_TOPIC: Final = "__consumer_offsets"
DATA_SEGMENTS_OUT: Final = 156
"""Of `struct tcp_info`."""


def commit_record(group: str, topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
    """A record as brokers from 2.1 to 4.0 write it."""
    names = b"".join(pack(">h", len(name)) + name.encode() for name in (group, topic))
    key = pack(">h", 1) + names + pack(">i", partition)
    return key, pack(">hqihq", 3, offset, -1, 0, 1)


def write_commits(bootstrap: str, count: int) -> None:
    """Writes commit records of 200 groups by hand. Brokers take records of internal topics from this client id only."""
    producer = Producer({
        "bootstrap.servers": bootstrap, "client.id": "__admin_client", "linger.ms": 20, "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
    })  # fmt: skip
    log = {group: java_hash(f"group-{group}") % 4 for group in range(GROUPS)}
    for number in range(count):
        group = number % GROUPS
        key, value = commit_record(f"group-{group}", "orders", number // GROUPS % 5, number // GROUPS)
        producer.produce(OFFSETS_TOPIC, value, key, partition=log[group])
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)


def java_hash(text: str) -> int:
    """Of ASCII, as Kafka places groups."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >= 1 << 31 else value)


async def follow_commits(bootstrap: str) -> None:
    """Commit records that come while the source runs."""
    async with running_source(bootstrap, "topics=orders") as (_, feed):
        writer = multiprocessing.get_context("spawn").Process(target=write_commits, args=(bootstrap, RECORDS))
        last = (RECORDS - 1) // GROUPS
        begun, cpu = time.monotonic(), time.process_time()
        writer.start()
        newest = f"kafka/group-{GROUPS - 1}/orders", last % 5
        await feed.until(lambda: feed.marks.get(newest) == last, "the last commit")
        took, used = time.monotonic() - begun, time.process_time() - cpu
        await asyncio.to_thread(writer.join)
        row("commit records followed", f"{RECORDS / took:,.0f} /s, {used / RECORDS * 1e6:.1f} µs of CPU each")
        row("... with their writer's start", f"{took:.2f} s")
        row("... so one core follows", f"{RECORDS / used:,.0f} /s")


def bare_consumer(bootstrap: str, seen: dict[int, float], stop: threading.Event, ready: threading.Event) -> None:
    """The same topic read by a consumer alone: when each offset is there."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "bare", "enable.auto.commit": False, "socket.nagle.disable": True,
        "isolation.level": "read_committed", "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(OFFSETS_TOPIC, log, OFFSET_END) for log in range(4)])
    while not stop.is_set():
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            ready.set()
            continue
        key = message.key()
        decoded = None if key is None else decode_offset(key, message.value())
        if decoded is not None and decoded[1] is not None and decoded[0][0] == "late":
            seen[decoded[1]] = time.monotonic()
    consumer.close()


async def commit_to_mark(bootstrap: str) -> None:
    """From a commit's call to where it is known: by a consumer alone, and by the source."""
    bare: dict[int, float] = {}
    marked: dict[int, float] = {}
    sent: dict[int, float] = {}
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=bare_consumer, args=(bootstrap, bare, stop, ready))
    thread.start()
    await asyncio.to_thread(ready.wait, 30)
    async with running_source(bootstrap, "topics=orders") as (_, feed):
        feed.want(("kafka/late/orders", 0))
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "late"})
        observe = feed.observe

        def note(observations: object) -> None:
            now = time.monotonic()
            kept = list(observations)  # type: ignore[call-overload]
            marked.update((seen.offset, now) for seen in kept if seen.topic == "kafka/late/orders")
            observe(kept)

        feed.observe = note  # type: ignore[method-assign]
        for offset in range(1, COMMITS + 1):
            sent[offset] = time.monotonic()
            await asyncio.to_thread(consumer.commit, offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
            await asyncio.sleep(0.005)
        await feed.until(lambda: COMMITS in marked)
        await asyncio.to_thread(consumer.close)
    stop.set()
    thread.join()
    both = sorted(bare.keys() & marked.keys() & sent.keys() - {1})
    for name, found in (("a consumer alone", bare), ("the source's mark", marked)):
        late = sorted((found[offset] - sent[offset]) * 1e3 for offset in both)
        row(f"commit -> {name}", f"{statistics.median(late):.2f} / {late[int(len(late) * 0.99)]:.2f} ms (p50 / p99)")


async def idle(bootstrap: str) -> None:
    """Nobody waits: 1,000 partitions, 200 groups."""
    async with running_source(bootstrap) as (source, feed):
        await feed.until(lambda: len(feed.marks) >= PARTITIONS)
        await asyncio.sleep(3)
        cpu, sent, begun = time.process_time(), segments_sent(bootstrap), time.monotonic()
        await asyncio.sleep(IDLE_S)
        took = time.monotonic() - begun
        share = (time.process_time() - cpu) / took
        row("idle", f"{share:.2%} of a core, {len(feed.marks)} marks, {source.name.partition(':')[0]}")
        row("... requests to the cluster", f"at most {(segments_sent(bootstrap) - sent) / took:.2f} /s")


def segments_sent(bootstrap: str) -> int:
    """How many segments with data this process has sent to a broker: as many as requests, or more (Linux)."""
    port, total = int(bootstrap.rpartition(":")[2]), 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family != socket.AF_UNIX and connection.getpeername()[1] == port:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
                    total += int.from_bytes(info[DATA_SEGMENTS_OUT : DATA_SEGMENTS_OUT + 4], sys.byteorder)
        except OSError:
            continue  # no connection, or one that has just been closed
    return total


def row(name: str, value: str) -> None:
    sys.stdout.write(f"{name:32} {value}\n")
    sys.stdout.flush()


def main() -> None:
    settings = {"offsets.topic.num.partitions": 4}
    with tempfile.TemporaryDirectory() as folder, KafkaCluster(Path(folder), 1, settings) as cluster:
        clients = ClusterClients(cluster.bootstrap)
        clients.create("orders", 5)
        clients.create("many", PARTITIONS - 5)
        clients.commit("late", {("orders", 0): 0})
        asyncio.run(commit_to_mark(cluster.bootstrap))
        asyncio.run(follow_commits(cluster.bootstrap))
        asyncio.run(idle(cluster.bootstrap))


if __name__ == "__main__":
    main()
