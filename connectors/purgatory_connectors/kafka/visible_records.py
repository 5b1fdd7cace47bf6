"""Finds out whether a consumer has anything left to read between two offsets. "Caught up" is based on this.

A group's committed offset stays below the end of a log if the last offsets have no visible record: transaction markers
occupy offsets, aborted records are skipped, and compacted or deleted records are gone. A wait for "committed offset at
least the end" would then never complete. One fetch from the committed offset decides: it returns the first visible
record (with its offset) or the end of the readable log.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Partition = tuple[str, int]

FETCH_WAIT_MS: Final = 10
"""How long a broker waits before it answers an empty fetch."""
FETCH_BYTES: Final = 1_024
"""One record is enough; brokers return at least one even if it is larger."""


class VisibleRecords:
    """Checks partitions of one cluster. It is not thread-safe, and each check blocks.

    `configuration` is librdkafka's. It needs the right to read the topics and joins no group.
    """

    def __init__(self, configuration: Mapping[str, Any], isolation: str = "read_committed") -> None:
        self._consumer: Final = Consumer(
            {
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "fetch.message.max.bytes": FETCH_BYTES,
                **configuration,
                "group.id": "purgatory-source",  # required by librdkafka; the group is neither joined nor committed to
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # if the offsets up to the start of the log were deleted
                "isolation.level": isolation,
            }
        )

    def none_between(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float = 2.0
    ) -> dict[Partition, bool | None]:
        """For each partition and its (committed offset, end): whether the log has no visible record in that range.

        None: unknown. Either the topic may not be read, or the answer took too long, for example because a broker is
        down or a transaction that began before the end is still open. Try again later. A negative committed offset
        means the start of the log.
        """
        answers: dict[Partition, bool | None] = dict.fromkeys(spans)
        self._consumer.assign(
            [TopicPartition(topic, number, max(first, 0)) for (topic, number), (first, _) in spans.items()]
        )
        deadline = time.monotonic() + timeout_s
        left = set(spans)
        try:
            while left and (left_s := deadline - time.monotonic()) > 0:
                message = self._consumer.poll(left_s)
                if message is None:
                    continue
                topic, number = message.topic(), message.partition()
                if topic is None or number is None:
                    continue  # a group error, for example because it may not be described; the group is not used
                partition = topic, number
                is_refused = _is_refused(message)
                if partition not in left or ((place := _place(message)) is None and not is_refused):
                    continue
                left.remove(partition)
                if place is not None:
                    answers[partition] = self._answer(message, place, spans[partition][1])
                self._consumer.incremental_unassign([TopicPartition(*partition)])
        finally:
            self._consumer.unassign()
        return answers

    def close(self) -> None:
        self._consumer.close()

    @staticmethod
    def _answer(message: Message, place: int, end: int) -> bool | None:
        if place >= end:
            return True
        return None if message.error() is not None else False


def _place(message: Message) -> int | None:
    """The offset of the first visible record, or the end of the readable log; None: a broker is down."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name for it
        return None
    return message.offset()


def _is_refused(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
