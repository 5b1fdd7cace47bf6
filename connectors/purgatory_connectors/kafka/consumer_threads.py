"""Threads that read topics with consumers of their own: `__consumer_offsets`, and low-latency topics.

Commits are delivered as soon as they are visible. Each record of a low-latency topic proves that its log ends after it.

Low-latency topics cost as much as consuming them while there are waits for them.
"""

import logging
import threading
from collections.abc import Iterable
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from purgatory_connectors.kafka import kafka_events
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.offset_records import (
    OFFSETS_TOPIC,
    CommitName,
    MalformedRecord,
    Partition,
    decode_offset,
)

LOG: Final = logging.getLogger(__name__)

FETCH_WAIT_MS: Final = 4_000
"""How long a broker waits before it answers an empty fetch: the cost of an idle reader. Records are sent at once."""
LOADING_WAIT_MS: Final = 50
POLL_S: Final = 0.5
RETRY_S: Final = 1.0
REFUSED_RETRY_S: Final = 5.0
DRAIN_MAX: Final = 10_000
REFUSALS: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class CommitReader:
    """Puts batches and refusals into `events`, and retries until `stop` or `give_up`."""

    def __init__(self, settings: KafkaSettings, events: kafka_events.EventQueue) -> None:
        self._settings: Final = settings
        self._events: Final = events
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="commit-reader", daemon=True)
        self._logs: dict[int, _UnreadLog] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait for the thread: at most half a second, unless a broker hangs."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def give_up(self) -> None:
        """Stop without waiting for the thread."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._read_on()
            self._logs = {}
            self._stopping.wait(REFUSED_RETRY_S)

    def _read_on(self) -> None:
        """Read until stopped or until an error occurs."""
        try:
            # The end of a partition is only detected by an empty fetch. Loading therefore uses short fetches; later
            # ones wait at the broker.
            self._read_with(self._open(fetch_wait_max_ms=LOADING_WAIT_MS), until_loaded=True)
            self._read_with(self._open(fetch_wait_max_ms=FETCH_WAIT_MS, socket_timeout_ms=2 * FETCH_WAIT_MS))
        except PermissionError as refused:
            self._events.put(kafka_events.ReadingRefused(str(refused)))
        except Exception:
            LOG.exception("reading %s failed", OFFSETS_TOPIC)
            self._events.put(kafka_events.ReadingRefused(f"reading {OFFSETS_TOPIC} failed; the log has the traceback"))

    def _open(self, **own: int) -> Consumer:
        return Consumer(
            self._settings.librdkafka(
                isolation_level="read_committed",
                enable_partition_eof=True,
                auto_offset_reset="earliest",
                error_cb=self._events.connection_failed,
                **own,
            )
        )

    def _read_with(self, consumer: Consumer, *, until_loaded: bool = False) -> None:
        try:
            if not self._logs and (count := self._wait_for_topic(consumer)):
                self._logs = {number: _UnreadLog() for number in range(count)}
                self._events.put(kafka_events.OffsetsTopicFound(count))
            consumer.assign(
                [
                    TopicPartition(OFFSETS_TOPIC, number, OFFSET_BEGINNING if log.is_loading else log.position)
                    for number, log in self._logs.items()
                ]
            )
            while not self._stopping.is_set():
                self._read(consumer)
                if until_loaded and not any(log.is_loading for log in self._logs.values()):
                    break
        finally:
            consumer.close()

    def _wait_for_topic(self, consumer: Consumer) -> int:
        """Wait for the topic, which brokers create with the first group. Returns its partition count; 0 if stopped."""
        while not self._stopping.is_set():
            try:
                found = consumer.list_topics(OFFSETS_TOPIC, timeout=4.0).topics.get(OFFSETS_TOPIC)
            except KafkaException:
                found = None
            if found is not None and found.error is not None and found.error.code() in REFUSALS:
                raise PermissionError(_refusal())
            if found is not None and found.partitions:
                return len(found.partitions)
            self._stopping.wait(RETRY_S)
        return 0

    def _read(self, consumer: Consumer) -> None:
        batches: list[kafka_events.CommitBatch] = []
        touched: set[int] = set()
        for message in _drained(consumer, POLL_S):
            self._read_message(message, batches, touched)
        for number in sorted(touched):
            self._logs[number].flush(number, batches)
        if batches:
            self._events.put(kafka_events.CommitsRead(batches))

    def _read_message(self, message: Message, batches: list[kafka_events.CommitBatch], touched: set[int]) -> None:
        error = message.error()
        number, offset = message.partition(), message.offset()
        if error is not None:
            code = error.code()
            if code in REFUSALS:
                raise PermissionError(_refusal())
            if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name for it
                assert number is not None
                assert offset is not None
                self._logs[number].reach_end(offset)
                touched.add(number)
            elif code != KafkaError.GROUP_AUTHORIZATION_FAILED:  # its own group, which it does not need
                self._events.connection_failed(error)
            return
        assert number is not None
        assert offset is not None
        log = self._logs[number]
        touched.add(number)
        log.pass_by(offset)
        key = message.key()
        if key is None:
            return
        try:
            decoded = decode_offset(key, message.value())
        except MalformedRecord as bad:
            LOG.warning("%s-%d at %d: %s", OFFSETS_TOPIC, number, offset, bad)
            return
        if decoded is not None:
            log.put(number, *decoded, batches)


class _UnreadLog:
    """Records read from one partition but not delivered yet."""

    __slots__ = ("is_loaded", "is_loading", "position", "values")

    def __init__(self) -> None:
        self.values: dict[CommitName, int | None] = {}
        self.position = 0
        self.is_loading = True
        self.is_loaded = False  # the end was reached, but the load has not been delivered yet

    def pass_by(self, offset: int) -> None:
        if offset < self.position:
            # The log is read from the beginning again, for example after an unclean election. Old values must not count
            # as resets.
            self.is_loading = True
            self.values = {}
        self.position = offset + 1

    def put(self, number: int, name: CommitName, offset: int | None, batches: list[kafka_events.CommitBatch]) -> None:
        values = self.values
        if not self.is_loading and name in values:
            before = values[name]
            if before is None or offset is None or offset < before:
                # Only the last of several commits is delivered, but a reset of the group must not be hidden by a later
                # commit.
                batches.append(kafka_events.CommitBatch(number, values, self.position - 1, self.is_loaded))
                self.is_loaded = False
                self.values = values = {}
        values[name] = offset

    def reach_end(self, offset: int) -> None:
        self.position = max(offset, self.position)
        if self.is_loading:
            self.is_loading = False
            self.is_loaded = True

    def flush(self, number: int, batches: list[kafka_events.CommitBatch]) -> None:
        if self.is_loading:
            return
        values, self.values = self.values, {}
        batches.append(kafka_events.CommitBatch(number, values, self.position, self.is_loaded))
        self.is_loaded = False


def _drained(consumer: Consumer, wait_s: float) -> list[Message]:
    """All messages that are there, after waiting for the first one."""
    # poll() returns with the first record; consume() with a timeout would wait until it has DRAIN_MAX records.
    first = consumer.poll(wait_s)
    # Not `if first`: a message without a value is falsy.
    return [] if first is None else [first, *consumer.consume(DRAIN_MAX, 0)]


def _refusal() -> str:
    return f"not authorized to read {OFFSETS_TOPIC}; allow Read and Describe on the topic {OFFSETS_TOPIC}"


FETCH_POLL_S: Final = 0.1


class TopicFetcher:
    """Puts lower bounds of the ends of partitions into `events`."""

    def __init__(self, settings: KafkaSettings, events: kafka_events.EventQueue) -> None:
        self._settings = settings
        self._events = events
        self._wanted: frozenset[Partition] = frozenset()
        self._changed = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def want(self, partitions: Iterable[Partition]) -> None:
        """Read those of these partitions that are of low-latency topics, from their ends, and no others.

        The thread is started on first use.
        """
        topics = self._settings.low_latency
        wanted = frozenset(one for one in partitions if topics is not None and topics.matches(one[0]))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="topic-fetcher", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _run(self) -> None:
        # Uncommitted records count, because the high watermark does not wait for transactions to end.
        consumer = Consumer(
            self._settings.librdkafka(
                isolation_level="read_uncommitted",
                enable_partition_eof=True,
                auto_offset_reset="latest",
                queued_max_messages_kbytes=4_096,
            )
        )
        assigned: frozenset[Partition] = frozenset()
        try:
            while not self._stopping:
                if not assigned and not self._wanted:
                    self._changed.wait()
                self._changed.clear()
                wanted = self._wanted
                if gone := assigned - wanted:
                    consumer.incremental_unassign([TopicPartition(*one) for one in gone])
                if new := wanted - assigned:
                    consumer.incremental_assign([TopicPartition(*one, OFFSET_END) for one in new])
                assigned = wanted
                self._read(consumer)
        except Exception:
            LOG.exception("reading topics failed; polling their ends instead")
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> None:
        ends: dict[Partition, int] = {}
        for message in _drained(consumer, FETCH_POLL_S):
            topic, number, offset = message.topic(), message.partition(), message.offset()
            error = message.error()
            if topic is None or number is None or offset is None:
                continue
            if error is None:
                ends[topic, number] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name for it
                ends[topic, number] = offset
        if ends:
            self._events.put(kafka_events.EndsFetched(ends))
