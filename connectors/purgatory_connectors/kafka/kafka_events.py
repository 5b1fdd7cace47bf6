"""Events that the threads and parts of a Kafka source report, in one queue."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from purgatory_connectors.kafka.group_marks import UncertainOffset
from purgatory_connectors.kafka.offset_records import CommitName, Partition

LOG: Final = logging.getLogger(__name__)


class OffsetsTopicFound(NamedTuple):
    """`__consumer_offsets` exists. It is read next."""

    partition_count: int


class CommitBatch(NamedTuple):
    """Records of one partition of `__consumer_offsets`, in order, below `position`.

    `values` contains the last offset of each name; None for a tombstone. `is_load`: the batch is the whole content of
    the partition.
    """

    partition: int
    values: dict[CommitName, int | None]
    position: int
    is_load: bool


class CommitsRead(NamedTuple):
    batches: Sequence[CommitBatch]


class ReadingRefused(NamedTuple):
    """`__consumer_offsets` may not be read."""

    reason: str


class EndsFetched(NamedTuple):
    """Lower bounds of the ends of partitions of low-latency topics."""

    ends: Mapping[Partition, int]


class ConnectionFailed(NamedTuple):
    error: KafkaError


class OffsetsUncertain(NamedTuple):
    """Daemons have marks above the committed offsets."""

    doubts: Sequence[UncertainOffset]


class OffsetRemoved(NamedTuple):
    """A group's offset on this topic was removed. The topic may have been deleted."""

    topic: str


KafkaEvent = (
    OffsetsTopicFound | CommitsRead | ReadingRefused | EndsFetched | ConnectionFailed | OffsetsUncertain | OffsetRemoved
)


class EventQueue:
    """The queue of one session, bound to the event loop on which it is created."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._queue: Final[asyncio.Queue[KafkaEvent]] = asyncio.Queue()

    def put(self, event: KafkaEvent) -> None:
        """Add an event, from any thread. It is dropped if the loop has been closed."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            LOG.debug("the loop was closed before the threads ended")

    def connection_failed(self, error: KafkaError) -> None:
        """Librdkafka calls this from its threads."""
        self.put(ConnectionFailed(error))

    async def get(self) -> KafkaEvent:
        return await self._queue.get()
