"""Whether a consumer has anything left to read between two offsets: what "caught up" rests on.

A group's committed offset stops short of a log's end where the last offsets have no record that consumers see: markers
of transactions take offsets, aborted records are skipped, and compacted or deleted ones are gone. Whoever waited for
"committed offset at least the end" would then wait for ever. One fetch from the committed offset tells: what comes
first is a record (with its offset), or the end of what can be read.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

Partition = tuple[str, int]

FETCH_WAIT_MS: Final = 10
"""A broker that has nothing answers after so long."""
FETCH_BYTES: Final = 1_024
"""One record is enough, and brokers send at least one."""


class VisibleRecords:
    """Looks at partitions of one cluster. Not safe to share between threads, and each look blocks.

    `configuration` is librdkafka's. Needs the right to read the topics; joins no group.
    """

    def __init__(self, configuration: Mapping[str, Any], isolation: str = "read_committed") -> None:
        self._consumer: Final = Consumer(
            {
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "fetch.message.max.bytes": FETCH_BYTES,
                **configuration,
                "group.id": "purgatory-source",  # librdkafka wants one; nothing is committed and nobody joins
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # where the offsets up to the log's start are deleted
                "isolation.level": isolation,
            }
        )

    def none_between(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float = 2.0
    ) -> dict[Partition, bool | None]:
        """For each partition and its (committed offset, end): whether no record lies from the one to below the other.

        None: it could not be told: without the right to read the topic, or not in time, as when a broker is away or a
        transaction that began before the end is still open, whose records nobody may see yet: ask again later. A
        negative committed offset stands for the start.
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
                    continue  # an error of the group that it does not join, as where it may not be described
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
    """The offset of the first record that can be seen, or of the end of what can be; None: a broker is away."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's own name for it
        return None
    return message.offset()


def _is_refused(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
