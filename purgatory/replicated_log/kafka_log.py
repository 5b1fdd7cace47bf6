"""The log in Kafka: one topic with a partition for each shard, and a second one for snapshots.

No transactions, no consumer group: the position of an entry decides whether it counts. Idempotence only keeps copies
out of the log, which readers would skip.
"""

import logging
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic
from google.protobuf.message import DecodeError

from purgatory.replicated_log.entry import Entry
from purgatory.replicated_log.errors import LogLost, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.replicated_log import Place, ReplicatedLog, Snapshot, checked_chunk
from purgatory.v1 import fleet_log_pb2 as pb

ANSWER_S: Final = 2.0
ADMIN_S: Final = 30.0
"""For creating and trimming topics."""
READ_ENTRIES_MAX: Final = 500
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
TO_READ: Final = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
TO_LEAD: Final = (*TO_READ, AclOperation.WRITE, AclOperation.DELETE)
"""Permissions on both topics. A standby needs those of a leader, and would otherwise miss them when it takes over."""
DEFAULTS: Final[dict[str, Any]] = {
    "client.id": "purgatory-fleet",
    "socket.timeout.ms": 4_000,  # give up on a broker that hangs; the library's default is a minute
    "topic.metadata.refresh.interval.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 2,  # hide the line per connection attempt; errors are raised
}
PRODUCER: Final[dict[str, Any]] = {"acks": "all", "linger.ms": 0, "message.timeout.ms": round(ANSWER_S * 1_000)}
CONSUMER: Final[dict[str, Any]] = {
    "group.id": "purgatory-fleet",  # librdkafka wants one; it is neither joined nor committed to
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Any other value silently moves a reader whose entries have been trimmed.
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 100,
}
RESERVED: Final = PRODUCER.keys() | CONSUMER.keys() | {"bootstrap.servers", "message.max.bytes", "transactional.id"}
"""Settings on which the promises depend, or with which no group, or no large one, can be appended. A file that contains
one of them is refused.
"""

log = logging.getLogger("purgatory.replicated_log.librdkafka")

Reports = list[tuple[KafkaError | None, Message]]
"""The report of a record that was sent; empty until it arrives."""


class _Stored(NamedTuple):
    """A snapshot in the second topic, with the offset of each chunk."""

    position: int
    chunks: int
    offsets: dict[int, int]


class KafkaLog(ReplicatedLog):
    def __init__(self, brokers: str, name: str, shard: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """Create the clients, which connect in the background.

        Args:
            brokers: "host:9092,host:9092".
            name: The topic.
            shard: The shard, which is the partition.
            settings: Further settings of librdkafka, such as the login.

        Raises:
            LogRefused: A setting is invalid, or must not be changed.
        """
        given = dict(settings or {})
        for reserved in sorted(RESERVED & given.keys()):
            raise LogRefused(f"{reserved} cannot be set for a fleet's log: remove it from the file")
        self._topic: Final = name
        self._snapshots: Final = f"{name}-snapshots"
        self._shard: Final = shard
        self._believed_s = time.monotonic() + ANSWER_S
        """From this time on a broker is believed that a topic does not exist: a new one is not known to all at once."""
        self._connection_error = ""
        """The last one of the administrative client."""
        # The default may be changed for services without idempotence, and only a producer has it.
        idempotence = {"enable.idempotence": given.pop("enable.idempotence", True)}
        common = {**DEFAULTS, "bootstrap.servers": brokers, "logger": log, **given}
        try:
            self._producer: Final = Producer(common | idempotence | PRODUCER)
            self._consumer: Final = Consumer(common | CONSUMER)
            administrative = {"socket.timeout.ms": round(ADMIN_S * 1_000), "error_cb": self._note_error}
            self._admin: Final = AdminClient(common | administrative)
        except KafkaException as error:
            raise LogRefused(f"a setting for Kafka is invalid: {error.args[0].str()}") from None
        self._sent: Reports = []
        """The report of the last entry."""
        self._next: tuple[str, int] | None = None
        """Topic and offset that the consumer returns next."""

    def create(self, shards: int) -> None:
        config = REQUIRED | {key: str(least) for key, least in AT_LEAST.items()}
        topics = [NewTopic(topic, shards, REPLICAS, config=config) for topic in (self._topic, self._snapshots)]
        for topic, future in self._admin.create_topics(topics, request_timeout=ADMIN_S).items():
            try:
                future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    kind = LogUnavailable if code < 0 else LogRefused  # negative: an error of the library
                    raise kind(f"topic {topic} cannot be created: {self._reason(error)}") from None
        until = self._believed_s = time.monotonic() + ADMIN_S
        while True:
            try:
                partitions, _ = self._describe(self._topic, ())
                self._bounds(self._snapshots)
                return self._begin(range(len(partitions)))
            except LogUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def _begin(self, shards: Iterable[int]) -> None:
        """Write the origin of each shard that is empty. A second one, of another `init`, would be void."""
        origin = Entry.origin().to_bytes()
        for shard in shards:
            if not self._bounds(self._topic, shard)[1]:
                self._produce(self._topic, origin, ANSWER_S, shard=shard)

    def check(self, shards: int | None) -> None:
        needed = TO_READ if shards is None else TO_LEAD
        for topic in (self._topic, self._snapshots):
            partitions, config = self._describe(topic, needed)
            replicas = min((len(at.replicas) for at in partitions), default=0)
            facts = [(key, config.get(key), value) for key, value in REQUIRED.items()]
            wrong = [f"{key}={is_now}, must be {value}" for key, is_now, value in facts if is_now != value]
            counts = [(key, int(config.get(key) or 0), least) for key, least in AT_LEAST.items()]
            for name, count, least in [*counts, ("replicas", replicas, REPLICAS)]:
                if count < least:
                    wrong.append(f"{name}={count}, must be at least {least}")
            if shards is not None and len(partitions) != shards:
                wrong.append(f"partitions={len(partitions)}, must be {shards}, the number of shards")
            elif self._shard >= len(partitions):
                wrong.append(f"partitions={len(partitions)}, so there is no shard {self._shard}")
            if wrong:
                raise LogRefused(f"topic {topic}: {'; '.join(wrong)}")

    def _describe(self, topic: str, needed: Sequence[AclOperation]) -> tuple[list[Any], dict[str, str | None]]:
        """The partitions of a topic, and its settings. Raises LogRefused if it or one of the permissions is missing."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            # Learn which brokers there are. Otherwise one that is gone would be asked again for 10 to 20 s.
            self._admin.list_topics(topic, timeout=ANSWER_S)
            found = self._admin.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=ANSWER_S
            )[topic].result()
            # None: this service does not tell them.
            missing = [one for one in needed if one not in (found.authorized_operations or needed)]
            if missing:
                raise _lacking(topic, missing)
            config = self._admin.describe_configs([resource], request_timeout=ANSWER_S)[resource].result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART and time.monotonic() < self._believed_s:
                time.sleep(0.1)
                return self._describe(topic, needed)
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise LogRefused(f"topic {topic}: does not exist. `purgatory fleet init` creates it") from None
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise _lacking(topic, needed) from None
            raise LogUnavailable(f"Kafka does not describe topic {topic}: {self._reason(error)}") from None
        return found.partitions, {key: entry.value for key, entry in config.items()}

    def end(self) -> int:
        return self._bounds(self._topic)[1]

    def read(self, start: int, wait_s: float) -> list[Entry]:
        messages = self._fetch(self._topic, start, wait_s)
        return [Entry.from_bytes(one.value() or b"", _offset(one), one.timestamp()[1]) for one in messages]

    def begin(self, entry: Entry, position: int) -> None:  # noqa: ARG002 - the broker decides
        if self._next is not None:
            # Otherwise the consumer would fetch all that this daemon writes from now on.
            self._consumer.unassign()
            self._next = None
        self._sent = self._send(self._topic, entry.to_bytes(), self._shard)

    def finish(self, timeout_s: float) -> Place | None:
        message = self._delivered(self._sent, timeout_s)
        # Without an offset: the broker recognised a copy.
        return Place(_offset(message), message.timestamp()[1]) if _offset(message) >= 0 else None

    def put_snapshot(self, position: int, chunks: Sequence[bytes]) -> None:
        snapshot, count = os.urandom(16), len(chunks)
        for number, content in enumerate(chunks):
            chunk = pb.SnapshotChunk(snapshot=snapshot, chunk=number, chunks=count, position=position, content=content)
            chunk.crc32 = zlib.crc32(content)
            # One at a time: an append of the same moment should not wait for all of them.
            self._produce(self._snapshots, chunk.SerializeToString(), ANSWER_S)

    def last_snapshot(self, below: int | None = None) -> Snapshot | None:
        complete = [stored for stored in self._stored() if len(stored.offsets) == stored.chunks]
        if below is not None:
            complete = [stored for stored in complete if stored.position < below]
        newest = max(complete, key=lambda stored: stored.position, default=None)
        return None if newest is None else Snapshot(newest.position, lambda: self._chunks(newest))

    def _chunks(self, stored: _Stored) -> Iterator[bytes]:
        for number in range(stored.chunks):
            at = stored.offsets[number]
            for message in self._scan(at, at + 1):
                chunk = pb.SnapshotChunk.FromString(message.value() or b"")
                yield checked_chunk(number, chunk.content, chunk.crc32)

    def trim(self, below: int) -> None:
        kept = [min(stored.offsets.values()) for stored in self._stored() if stored.position >= below]
        assert below >= 0, "Kafka would take it for the end of the log"
        parts = [TopicPartition(self._topic, self._shard, below)]
        parts += [TopicPartition(self._snapshots, self._shard, min(kept))] if kept else []
        for part, future in self._admin.delete_records(parts, request_timeout=ADMIN_S).items():
            try:
                future.result()
            except KafkaException as error:
                raise LogUnavailable(f"topic {part.topic} cannot be trimmed: {error.args[0].str()}") from None

    def close(self) -> None:
        self._consumer.close()
        self._producer.purge()

    def _note_error(self, error: KafkaError) -> None:
        self._connection_error = error.str()

    def _reason(self, error: KafkaException) -> str:
        """Why a request has failed. With a wrong password it only times out: the connection's error has the cause."""
        self._admin.poll(0)
        failure, cause = error.args[0], self._connection_error
        is_local = failure.code() < 0  # an error of the library
        return f"{failure.str()} ({cause})" if is_local and cause else str(failure.str())

    def _produce(self, topic: str, content: bytes, timeout_s: float, shard: int | None = None) -> Message:
        """Write a record; returns it with its offset once the replicas have it."""
        return self._delivered(self._send(topic, content, self._shard if shard is None else shard), timeout_s)

    def _send(self, topic: str, content: bytes, shard: int) -> Reports:
        reports: Reports = []
        try:
            self._producer.produce(topic, content, partition=shard, on_delivery=lambda *report: reports.append(report))
        except (KafkaException, BufferError) as error:
            raise LogUnavailable(f"Kafka: {error}") from None
        return reports

    def _delivered(self, reports: Reports, timeout_s: float) -> Message:
        """The record of a report, which is awaited."""
        until = time.monotonic() + timeout_s
        while not reports:
            left_s = until - time.monotonic()
            self._producer.poll(max(0.0, left_s))  # even after the deadline: a paused process may have its report
            if left_s <= 0 and not reports:
                raise LogUnavailable(f"Kafka has not answered for {timeout_s:.1f} s")
        failure, message = reports[0]
        if failure is not None:
            raise LogUnavailable(f"Kafka: {failure.str()}")
        return message

    def _bounds(self, topic: str, shard: int | None = None) -> tuple[int, int]:
        """The first offset, and the one after the last, from the broker."""
        part = TopicPartition(topic, self._shard if shard is None else shard)
        try:
            try:
                first, end = self._consumer.get_watermark_offsets(part, timeout=ANSWER_S, cached=False)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - that is its name
                    raise
                # librdkafka remembers that a partition had no leader, for minutes after it has one again.
                self._consumer.list_topics(topic, timeout=ANSWER_S)
                first, end = self._consumer.get_watermark_offsets(part, timeout=ANSWER_S, cached=False)
        except KafkaException as error:
            raise LogUnavailable(f"Kafka does not return the end of topic {topic}: {error.args[0].str()}") from None
        return first, end

    def _fetch(self, topic: str, start: int, wait_s: float) -> list[Message]:
        if self._next != (topic, start):
            self._consumer.assign([TopicPartition(topic, self._shard, start)])
        self._next = None
        first = self._consumer.poll(wait_s)
        # Not `consume(500, wait_s)`, which waits until it has 500.
        found = [] if first is None else [first, *self._consumer.consume(READ_ENTRIES_MAX, 0)]
        # librdkafka looks for the coordinator of its group, although nothing needs it.
        found = [one for one in found if _code(one) != KafkaError.GROUP_AUTHORIZATION_FAILED]
        for at, message in enumerate(found):
            error = message.error()
            if error is not None and at > 0:
                return found[:at]  # the next call gets the error again
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                begin, end = self._bounds(topic)
                if start < begin:
                    raise LogTrimmed(f"topic {topic} begins at position {begin}, after position {start}")
                if start > end:
                    raise LogLost(f"the log has gone back: it ends at position {end}, before position {start}")
            if error is not None:
                raise LogUnavailable(f"Kafka: {error.str()}")
        self._next = topic, _offset(found[-1]) + 1 if found else start
        return found

    def _scan(self, start: int, end: int) -> Iterator[Message]:
        """The records of the second topic between two offsets."""
        until = time.monotonic() + ANSWER_S
        while start < end:
            for message in self._fetch(self._snapshots, start, ANSWER_S / 10):
                start, until = _offset(message) + 1, time.monotonic() + ANSWER_S
                if start <= end:
                    yield message
            if time.monotonic() > until:
                raise LogUnavailable(f"Kafka does not return the records of topic {self._snapshots}")

    def _stored(self) -> list[_Stored]:
        found: dict[bytes, _Stored] = {}
        try:
            for message in self._scan(*self._bounds(self._snapshots)):
                try:
                    chunk = pb.SnapshotChunk.FromString(message.value() or b"")
                except DecodeError:
                    continue  # not a daemon's
                stored = found.setdefault(chunk.snapshot, _Stored(chunk.position, chunk.chunks, {}))
                stored.offsets.setdefault(chunk.chunk, _offset(message))
        except LogTrimmed:
            return self._stored()  # the leader has trimmed it since the bounds were read
        return list(found.values())


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _code(message: Message) -> int:
    error = message.error()
    return KafkaError.NO_ERROR if error is None else error.code()


def _lacking(topic: str, permissions: Sequence[AclOperation]) -> LogRefused:
    names = ", ".join(one.name.title().replace("_", "") for one in permissions)
    return LogRefused(f"topic {topic}: this daemon's login lacks permissions on it: {names}")
