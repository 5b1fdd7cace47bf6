"""The stream between a source and one daemon: sends reports and ends, receives demand and requests for ends."""

import asyncio
import os.path
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

import grpc.aio

from purgatory.v1 import operation_pb2, source_pb2
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from purgatory_client.errors import PurgatoryClientError, Unavailable
from purgatory_client.partition_names import PartitionName
from purgatory_client.results import OpenEnum
from purgatory_client.rpc_errors import STATUS_LOST, from_code

STALE_MAX: Final = 2_000
STALE_PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions in a report; the daemon enforces both limits."""


class SourceState(OpenEnum):
    """Health of a source; numbers as on the wire. The last two appear only in status."""

    LOADING = 1
    LIVE = 2
    BEHIND = 3
    HELD = 4
    STALE = 5
    REFUSED = 6
    SILENT = 7
    DETACHED = 8


class StaleMarks(NamedTuple):
    """Marks that a source cannot see.

    Attributes:
        topic_prefix: The partitions of all topics with this prefix; empty: all of the source's.
        exact: `topic_prefix` is the whole name of one topic.
        partitions: Only these partitions; empty: all.
        stale_ms: Age of the last reading when this is reported, in milliseconds.
        reason: Why, in a few words for people.
    """

    topic_prefix: str = ""
    exact: bool = False
    partitions: Sequence[int] = ()
    stale_ms: int = 0
    reason: str = ""


class MarkEnd(NamedTuple):
    """The end of a partition: the mark that covers all of it. Without `leader_epoch`, a wait for it checks no epoch."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None


class DemandChanged(NamedTuple):
    """Partitions that now have pending waits, and partitions that have none any more."""

    gained: list[PartitionName]
    lost: list[PartitionName]


class EndsWanted(NamedTuple):
    """A request for the ends of these topics, to be read after it arrived. Reply with `answer_ends`.

    With `as_of_ms`, where they ended at that time, milliseconds since the epoch: the reply must repeat it, or have an
    error if the source cannot look it up.
    """

    ask_id: int
    topics: list[str]
    as_of_ms: int | None = None


class SourceLink:
    """Created by `AsyncClient.attach_source`. Use it in `async with`, and iterate over it the whole time.

    Methods raise the daemon's errors, or Unavailable once the stream has ended; then attach again.

    Attributes:
        demand: The partitions with pending waits, as of the last message that was iterated over.
    """

    def __init__(self, stub: Callable[[], PurgatoryServiceStub], hello: source_pb2.SourceHello) -> None:
        self.demand: Final[set[PartitionName]] = set()
        self._stub: Final = stub
        self._hello: Final = hello
        self._call: Any = None  # its type in the stubs has no methods
        self._writing: Final = asyncio.Lock()  # gRPC permits one write at a time

    async def __aenter__(self) -> Self:
        self._call = self._stub().AttachSource()
        await self._write(source_pb2.AttachSourceRequest(hello=self._hello))
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._call.cancel()

    async def report(
        self, state: SourceState, reason: str = "", stale: Iterable[StaleMarks] = (), lag_ms: int = 0
    ) -> None:
        """Report the health of the source: at once when it changes, and every second. After three seconds without a
        report all its marks are stale.

        Args:
            state: The current health of the source.
            reason: Why, for people.
            stale: The marks that it cannot see now. If there are more than a report may contain, they are merged into a
                common prefix, which may include other marks.
            lag_ms: Milliseconds by which observations lag behind the system.
        """
        report = source_pb2.SourceReport(
            state=source_pb2.SourceState.Name(state),
            reason=reason,
            lag_ms=lag_ms,
            stale=[source_pb2.StaleMarks(**one._asdict()) for one in _fitting(list(stale))],
        )
        await self._write(source_pb2.AttachSourceRequest(report=report))

    async def answer_ends(
        self, ask_id: int, ends: Iterable[MarkEnd] = (), error: str = "", *, as_of_ms: int | None = None
    ) -> None:
        """Answer an `EndsWanted` with ends that were read after it arrived.

        Args:
            ask_id: The id in the request.
            ends: The end of each partition of the requested topics.
            error: Why the ends are unknown, for people.
            as_of_ms: That of the request, unless the source cannot look up a time.
        """
        answer = source_pb2.SourceEnds(ask_id=ask_id, error=error, as_of_ms=as_of_ms)
        for topic, partition, offset, leader_epoch in ends:
            name = operation_pb2.TopicPartition(topic=topic, partition=partition)
            answer.ends.add(topic_partition=name, offset=offset, leader_epoch=leader_epoch)
        await self._write(source_pb2.AttachSourceRequest(ends=answer))

    async def __aiter__(self) -> AsyncIterator[DemandChanged | EndsWanted]:
        """Demand changes and requests from the daemon. Raises when the stream ends."""
        while True:
            try:
                message = await self._call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                raise await self._ended() from None
            if message is grpc.aio.EOF:
                raise await self._ended()
            if message.HasField("ends_wanted"):
                wanted = message.ends_wanted
                as_of_ms = wanted.as_of_ms if wanted.HasField("as_of_ms") else None
                yield EndsWanted(wanted.ask_id, list(wanted.topics), as_of_ms)
            elif message.demand.gained or message.demand.lost:
                changed = DemandChanged(_names(message.demand.gained), _names(message.demand.lost))
                self.demand.update(changed.gained)
                self.demand.difference_update(changed.lost)
                yield changed

    async def _write(self, request: source_pb2.AttachSourceRequest) -> None:
        try:
            async with self._writing:
                await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self._ended() from None

    async def _ended(self) -> PurgatoryClientError:
        """The error that describes why the stream has ended."""
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return Unavailable("the daemon has ended the stream of this source")
        if code is grpc.StatusCode.INTERNAL and await self._call.details() == STATUS_LOST:
            return Unavailable("the stream of this source ended while it was being written")
        return from_code(code.value[0], "", await self._call.details())


def _fitting(stale: list[StaleMarks]) -> list[StaleMarks]:
    """Merge entries until they fit into one report. The result covers at least these marks."""
    if len(stale) <= STALE_MAX and sum(len(one.partitions) for one in stale) <= STALE_PARTITIONS_MAX:
        return stale
    oldest: dict[tuple[str, bool], StaleMarks] = {}
    for one in stale:
        known = oldest.get((one.topic_prefix, one.exact))
        if known is None or known.stale_ms < one.stale_ms:
            oldest[one.topic_prefix, one.exact] = one._replace(partitions=())
    if len(oldest) <= STALE_MAX:
        return list(oldest.values())
    names = [prefix for prefix, _ in oldest]
    longest = max(oldest.values(), key=lambda one: one.stale_ms)
    return [longest._replace(topic_prefix=os.path.commonprefix(names), exact=False)]  # noqa: RUF071 - by characters


def _names(partitions: Iterable[Any]) -> list[PartitionName]:
    return [(one.topic, one.partition) for one in partitions]
