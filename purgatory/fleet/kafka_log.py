"""The log in Kafka: one topic with a partition for each shard, and a second one for snapshots.

No transactions, no consumer group: the position of an entry says whether it counts. Idempotence only keeps copies out
of the log, which readers would skip.
"""

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from purgatory.fleet.entry import Entry
from purgatory.fleet.errors import LogLost, LogRefused, LogTrimmed, LogUnavailable
from purgatory.fleet.replicated_log import Place, Snapshot, checked_chunk
from purgatory.v1 import fleet_log_pb2 as pb

ANSWER_S: Final = 2.0
"""How long a broker may take to answer, except while the topics are created or trimmed."""

ADMIN_S: Final = 30.0
READ_ENTRIES_MAX: Final = 500
SNAPSHOTS: Final = "-snapshots"
"""Suffix of the second topic."""

REPLICAS: Final = 3
REQUIRED: Final = {
    # Never compacted: compaction would keep a deposed leader's record instead of the one that counts.
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
AT_LEAST: Final = {"min.insync.replicas": 2, "max.message.bytes": 1_000_000}
CLIENT: Final[dict[str, Any]] = {
    "client.id": "purgatory-fleet",
    "allow.auto.create.topics": False,
    "socket.timeout.ms": 4_000,  # give up on a broker that hangs; the library's default is a minute
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 2,  # hide the line per connection attempt; errors are raised
}
PRODUCER: Final[dict[str, Any]] = {
    "enable.idempotence": True,  # may be switched off, for services without it
    "linger.ms": 0,
    "message.timeout.ms": round(ANSWER_S * 1_000),
}
CONSUMER: Final[dict[str, Any]] = {"fetch.wait.max.ms": 100}
OURS: Final[dict[str, Any]] = {"acks": "all", "message.max.bytes": 1_000_000}
READERS: Final[dict[str, Any]] = {
    "group.id": "purgatory-fleet",  # librdkafka wants one; it is neither joined nor committed to
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Any other value moves a reader whose entries have been trimmed to another position, without a word.
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
}
"""Settings on which the promises depend. A file that contains one of them is refused."""

log = logging.getLogger("purgatory.fleet.librdkafka")


@dataclass
class _Stored:
    """A snapshot in the second topic."""

    position: int
    chunks: int
    offsets: dict[int, int] = field(default_factory=dict)
    """Of each chunk."""


class KafkaLog:
    """See `ReplicatedLog`."""

    def __init__(self, brokers: str, name: str, shard: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """Args:
            brokers: "host:9092,host:9092".
            name: The topic.
            shard: The shard, which is the partition.
            settings: Further settings of librdkafka: the login.

        Raises:
            LogRefused: A setting is invalid, or must not be changed.
        """
        reserved = sorted((OURS.keys() | READERS.keys() | {"bootstrap.servers"}) & (settings or {}).keys())
        if reserved:
            raise LogRefused(f"{reserved[0]} cannot be set for a fleet's log: the promises depend on it")
        self._name: Final = name
        self._shard: Final = shard
        common = {**CLIENT, "bootstrap.servers": brokers, "logger": log}
        given = dict(settings or {})
        idempotence = {"enable.idempotence": given.pop("enable.idempotence", True)}
        try:
            self._producer: Final = Producer(common | PRODUCER | given | idempotence | OURS)
            self._consumer: Final = Consumer(common | CONSUMER | given | READERS)
            self._admin: Final = AdminClient(common | given)
        except KafkaException as error:
            raise LogRefused(f"a setting for Kafka is invalid: {error.args[0].str()}") from None
        self._next: tuple[str, int] | None = None
        """Topic and offset that the consumer returns next."""

    def create(self, shards: int) -> None:
        """See `ReplicatedLog.create`."""
        config = REQUIRED | {name: str(least) for name, least in AT_LEAST.items()}
        topics = [NewTopic(name, shards, REPLICAS, config=config) for name in self._topics]
        for name, future in self._admin.create_topics(topics, operation_timeout=ADMIN_S).items():
            try:
                future.result(ADMIN_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise LogRefused(f"topic {name} cannot be created: {error.args[0].str()}") from None
        until = time.monotonic() + ADMIN_S
        while True:  # not every broker knows a new topic at once
            try:
                self._watermarks(self._name), self._watermarks(self._name + SNAPSHOTS)
                return
            except LogUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def check(self, shards: int) -> None:
        """See `ReplicatedLog.check`."""
        for name in self._topics:
            try:
                topic = self._admin.list_topics(name, timeout=ANSWER_S).topics[name]
                resource = ConfigResource(ConfigResource.Type.TOPIC, name)
                config = self._admin.describe_configs([resource])[resource].result(ANSWER_S) if not topic.error else {}
            except (KafkaException, TimeoutError) as error:
                raise LogUnavailable(f"Kafka does not describe topic {name}: {error}") from None
            if topic.error is not None:
                raise LogRefused(f"topic {name}: {topic.error.str()}. `purgatory fleet init` creates it")
            found = {key: entry.value for key, entry in config.items()}
            wrong = [f"{key}={found.get(key)}, must be {value}" for key, value in REQUIRED.items() if found.get(key) != value]
            for key, least in AT_LEAST.items():
                if int(found.get(key) or 0) < least:
                    wrong.append(f"{key}={found.get(key)}, must be at least {least}")
            replicas = min((len(at.replicas) for at in topic.partitions.values()), default=0)
            if replicas < REPLICAS:
                wrong.append(f"{replicas} replicas, must be at least {REPLICAS}")
            if len(topic.partitions) != shards:
                wrong.append(f"{len(topic.partitions)} partitions, must be {shards}, the number of shards")
            if wrong:
                raise LogRefused(f"topic {name}: {'; '.join(wrong)}")

    def end(self) -> int:
        """See `ReplicatedLog.end`."""
        return self._watermarks(self._name)[1]

    def read(self, start: int, wait_s: float) -> list[Entry]:
        """See `ReplicatedLog.read`."""
        messages = self._fetch(self._name, start, wait_s)
        return [Entry.from_bytes(one.value() or b"", _offset(one), one.timestamp()[1]) for one in messages]

    def append(self, entry: Entry, position: int, timeout_s: float, meanwhile: Callable[[], None]) -> Place | None:  # noqa: ARG002 - the topic gives the position
        """See `ReplicatedLog.append`."""
        if self._next is not None:
            # The consumer would fetch everything that this daemon writes from now on.
            self._consumer.unassign()
            self._next = None
        reports: list[tuple[KafkaError | None, Message]] = []
        until = time.monotonic() + timeout_s
        self._produce(self._name, entry.to_bytes(), reports)
        meanwhile()
        while not reports:
            left_s = until - time.monotonic()
            self._producer.poll(max(0.0, left_s))
            if left_s <= 0 and not reports:
                raise LogUnavailable(f"Kafka has not answered for {timeout_s:g} s")
        error, message = reports[0]
        if error is not None:
            raise LogUnavailable(f"Kafka: {error.str()}")
        offset = message.offset()
        return None if offset is None or offset < 0 else Place(offset, message.timestamp()[1])

    def put_snapshot(self, position: int, chunks: Sequence[bytes]) -> None:
        """See `ReplicatedLog.put_snapshot`."""
        snapshot, reports = os.urandom(16), list[tuple[KafkaError | None, Message]]()
        for number, content in enumerate(chunks):
            chunk = pb.SnapshotChunk(
                snapshot=snapshot, chunk=number, chunks=len(chunks), position=position, crc32=zlib.crc32(content),
                content=content,
            )  # fmt: skip
            self._produce(self._name + SNAPSHOTS, chunk.SerializeToString(), reports)
            # One after the other, so that an append of the same moment does not wait behind all of them.
            if self._producer.flush(2 * ANSWER_S):
                raise LogUnavailable("Kafka does not answer while a snapshot is written")
        for error, _ in reports:
            if error is not None:
                raise LogUnavailable(f"Kafka: {error.str()}")

    def last_snapshot(self) -> Snapshot | None:
        """See `ReplicatedLog.last_snapshot`."""
        complete = [stored for stored in self._snapshots() if len(stored.offsets) == stored.chunks]
        if not complete:
            return None
        newest = max(complete, key=lambda stored: stored.position)
        return Snapshot(newest.position, lambda: self._chunks(newest))

    def _chunks(self, stored: _Stored) -> Iterator[bytes]:
        for number in range(stored.chunks):
            at = stored.offsets[number]
            message = next(self._scan(self._name + SNAPSHOTS, at, at + 1), None)
            chunk = pb.SnapshotChunk.FromString((message and message.value()) or b"")
            yield checked_chunk(number, chunk.content, chunk.crc32)

    def trim(self, below: int) -> None:
        """See `ReplicatedLog.trim`."""
        kept = [min(stored.offsets.values()) for stored in self._snapshots() if stored.position >= below - 1]
        ends = {self._name: below, **({self._name + SNAPSHOTS: min(kept)} if kept else {})}
        parts = [TopicPartition(topic, self._shard, before) for topic, before in ends.items()]
        for part, future in self._admin.delete_records(parts, request_timeout=ADMIN_S).items():
            try:
                future.result(ADMIN_S)
            except KafkaException as error:
                raise LogUnavailable(f"topic {part.topic} cannot be trimmed: {error.args[0].str()}") from None

    def close(self) -> None:
        """See `ReplicatedLog.close`."""
        self._consumer.close()
        self._producer.purge()

    @property
    def _topics(self) -> tuple[str, str]:
        return self._name, self._name + SNAPSHOTS

    def _produce(self, topic: str, content: bytes, reports: list[tuple[KafkaError | None, Message]]) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            reports.append((error, message))

        try:
            self._producer.produce(topic, content, partition=self._shard, on_delivery=report)
        except (KafkaException, BufferError) as error:
            raise LogUnavailable(f"Kafka: {error}") from None

    def _watermarks(self, topic: str) -> tuple[int, int]:
        try:
            part = TopicPartition(topic, self._shard)
            first, end = self._consumer.get_watermark_offsets(part, timeout=ANSWER_S, cached=False)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka does not return the end of topic {topic}: {error.args[0].str()}") from None
        return first, end

    def _fetch(self, topic: str, start: int, wait_s: float) -> list[Message]:
        if self._next != (topic, start):
            self._consumer.assign([TopicPartition(topic, self._shard, start)])
            self._next = topic, start
        first = self._consumer.poll(wait_s)
        # Not `consume(500, wait_s)`, which waits for all 500.
        found = [] if first is None else [first, *self._consumer.consume(READ_ENTRIES_MAX, 0)]
        messages: list[Message] = []
        for message in found:
            error = message.error()
            if error is not None:
                self._next = None
                if messages:
                    return messages  # the error comes again with the next call
                self._raise(error, topic, start)
            messages.append(message)
        if messages:
            self._next = topic, _offset(messages[-1]) + 1
        return messages

    def _raise(self, error: KafkaError, topic: str, start: int) -> None:
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - that is its name
            raise LogUnavailable(f"Kafka: {error.str()}")
        first, end = self._watermarks(topic)
        if start < first:
            raise LogTrimmed(f"topic {topic} begins at position {first}, after position {start}")
        if start > end:
            raise LogLost(f"the log has gone back: topic {topic} ends at position {end}, before position {start}")
        raise LogUnavailable(f"Kafka: {error.str()}")

    def _scan(self, topic: str, start: int, end: int) -> Iterator[Message]:
        """The messages between two offsets."""
        until = time.monotonic() + ANSWER_S
        while start < end:
            messages = self._fetch(topic, start, 0.2)
            for message in messages:
                if _offset(message) >= end:
                    return
                yield message
                start = _offset(message) + 1
            if messages:
                until = time.monotonic() + ANSWER_S
            elif time.monotonic() > until:
                raise LogUnavailable(f"Kafka does not return the messages of topic {topic}")

    def _snapshots(self) -> list[_Stored]:
        topic = self._name + SNAPSHOTS
        found: dict[bytes, _Stored] = {}
        for message in self._scan(topic, *self._watermarks(topic)):
            chunk = pb.SnapshotChunk.FromString(message.value() or b"")
            stored = found.setdefault(chunk.snapshot, _Stored(chunk.position, chunk.chunks))
            stored.offsets.setdefault(chunk.chunk, _offset(message))
        return list(found.values())


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
