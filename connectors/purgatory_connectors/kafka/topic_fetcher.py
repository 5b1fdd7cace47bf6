"""Reads low-latency topics: each record that arrives proves that its log ends after it.

The cost is that of consuming these topics while there are waits for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

from purgatory_connectors.kafka.kafka_events import EndsFetched, EventQueue
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.offset_records import Partition

LOG: Final = logging.getLogger(__name__)

POLL_S: Final = 0.1
DRAIN_MAX: Final = 10_000


class TopicFetcher:
    """Puts lower bounds of the ends of partitions into `events`."""

    def __init__(self, settings: KafkaSettings, events: EventQueue) -> None:
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
        first = consumer.poll(POLL_S)
        if first is None:
            return
        ends: dict[Partition, int] = {}
        for message in [first, *consumer.consume(DRAIN_MAX, 0)]:
            topic, number, offset = message.topic(), message.partition(), message.offset()
            error = message.error()
            if topic is None or number is None or offset is None:
                continue
            if error is None:
                ends[topic, number] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name for it
                ends[topic, number] = offset
        self._events.put(EndsFetched(ends))
