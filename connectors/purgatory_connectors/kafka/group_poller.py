"""Polls the coordinators of groups for committed offsets: as a check, or if `__consumer_offsets` may not be read. Also
requests the start offsets and lags of share groups (KIP-932, KIP-1226), which no Python client does.

Uses aiokafka, because the admin client of confluent-kafka aborts the whole process if a coordinator's broker goes down
while it is polled repeatedly (librdkafka's issues 3663 and 4605).

All records below a start offset have been acknowledged, rejected or given up after the last attempt. Brokers store a
start offset together with the next acknowledgement, so that it stays behind while nothing follows. The lag does not: it
is 0 once all records of the partition are done.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.kafka.offset_records import CommitName, Partition

_TEXT: Final = CompactString("utf-8")
_TAGS: Final = ("tags", TaggedFields)
_ERROR: Final = (("error_code", Int16), ("error_message", _TEXT))
_GROUP_ID_NOT_FOUND: Final = 69


class ShareStart(NamedTuple):
    """The start offset of a share group on a partition, its lag (-1: unknown), and the topic that both refer to."""

    offset: int
    lag: int
    topic_id: str


class _Starts(Response):  # type: ignore[misc] # aiokafka has no types
    API_KEY = 90
    API_VERSION = 1
    _START = (("start_offset", Int64), ("leader_epoch", Int32), ("lag", Int64))
    _PARTITION = (("partition", Int32), *_START, *_ERROR, _TAGS)
    _TOPIC = (("topic", _TEXT), ("id_high", Int64), ("id_low", Int64), ("partitions", CompactArray(*_PARTITION)), _TAGS)
    _GROUP = (("group", _TEXT), ("topics", CompactArray(*_TOPIC)), *_ERROR, _TAGS)
    SCHEMA = Schema(("throttle_time_ms", Int32), ("groups", CompactArray(*_GROUP)), _TAGS)


class _AskStarts(RequestStruct):  # type: ignore[misc]
    API_KEY = 90
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Starts
    _TOPIC = (("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)
    _GROUP = (("group", _TEXT), ("topics", CompactArray(*_TOPIC)), _TAGS)
    SCHEMA = Schema(("groups", CompactArray(*_GROUP)), _TAGS)


class ShareStartsRequest(Request[_AskStarts]):  # type: ignore[misc]
    """Asks a group's coordinator for its start offsets on all topics."""

    API_KEY = 90

    def __init__(self, group: str) -> None:
        self._group: Final = group

    def build(self, request_struct_class: type[_AskStarts]) -> _AskStarts:
        return request_struct_class([(self._group, None, {})], {})


def starts_of(response: Any) -> dict[Partition, ShareStart]:  # noqa: ANN401 - aiokafka has no types
    """The start offsets in a response; a group that does not exist has none. Raises KafkaError."""
    found = {}
    for _, topics, group_error, message, _ in response.groups:
        if group_error not in {0, _GROUP_ID_NOT_FOUND}:
            raise for_code(group_error)(message or "")
        for topic, id_high, id_low, partitions, _ in topics:
            topic_id = f"{id_high % 2**64:016x}{id_low % 2**64:016x}"
            for number, offset, _, lag, error, partition_message, _ in partitions:
                if error:
                    raise for_code(error)(partition_message or "")
                if offset >= 0:  # otherwise no record has been done yet
                    found[topic, number] = ShareStart(offset, lag, topic_id)
    return found


AT_ONCE_MAX: Final = 32
"""Maximum number of groups that are polled concurrently."""

CLOSING_S: Final = 5.0
"""How long `close` waits for requests whose callers were cancelled; longer than aiokafka's own request timeout."""

Answer = TypeVar("Answer")


class _OutspokenClient(AIOKafkaAdminClient):  # type: ignore[misc]
    """Raises the top-level error of a response, which `list_consumer_group_offsets` of aiokafka 0.14 ignores. Without
    it, a coordinator that has moved, is loading or refuses would look like a group without offsets.
    """

    async def _send_request(self, request: Request, node_id: int | None = None) -> Response:
        response = await super()._send_request(request, node_id)
        if isinstance(request, OffsetFetchRequest) and (code := getattr(response, "error_code", 0)):
            raise for_code(code)
        return response


class GroupPoller:
    """Connects on the first request, and reconnects after a failed attempt. `arguments` are aiokafka's."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # no line per attempt; errors are still raised
        self._admin: _OutspokenClient | None = None
        self._starting = asyncio.Lock()
        self._coordinators: dict[str, int] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._questions: set[asyncio.Task[Any]] = set()

    async def offsets(self, group: str) -> dict[CommitName, int]:
        """All committed offsets of a group. Raises SourceStale, or SourceRefused without Describe on the group."""
        found = await self._asked(group, self._committed)
        return {(group, at.topic, at.partition): value.offset for at, value in found.items() if value.offset >= 0}

    async def share_starts(self, group: str) -> dict[Partition, ShareStart]:
        """The start offsets of a share group, none if there is no such group. Raises as `offsets`."""
        return await self._asked(group, self._share_starts)

    async def _asked(self, group: str, question: Callable[[str], Coroutine[Any, Any, Answer]]) -> Answer:
        async with self._at_once:
            try:
                return await self._to_its_end(question(group))
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
                raise SourceRefused(
                    f"not authorized to read offsets of group {group!r}; allow Describe on it and on its topics"
                ) from error
            except (KafkaError, OSError, TimeoutError, AssertionError) as error:
                # It has moved, or its broker is down: look it up again with the next request.
                self._coordinators.pop(group, None)
                raise SourceStale(f"the coordinator of group {group!r} does not answer: {_reason(error)}") from error

    async def offsets_of(self, groups: Iterable[str]) -> dict[str, dict[CommitName, int] | Exception]:
        """Call `offsets` for several groups; each result is its offsets or its exception."""
        wanted = list(groups)
        found = await asyncio.gather(*map(self.offsets, wanted), return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, SourceStale | SourceRefused):
                raise answer
        return dict(zip(wanted, found, strict=True))  # type: ignore[arg-type]

    async def close(self) -> None:
        if self._questions:
            _, unanswered = await asyncio.wait(self._questions, timeout=CLOSING_S)
            for question in unanswered:
                question.cancel()
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()

    async def _to_its_end(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Await a request that continues if the caller is cancelled. Otherwise a connection that aiokafka is just
        opening would stay open without an owner.
        """
        task = asyncio.ensure_future(question)
        self._questions.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, question: asyncio.Task[Any]) -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # mark it as retrieved, or asyncio would log it

    async def _committed(self, group: str) -> dict[Any, Any]:
        admin, coordinator = await self._coordinator(group)
        return dict(await admin.list_consumer_group_offsets(group, group_coordinator_id=coordinator))

    async def _share_starts(self, group: str) -> dict[Partition, ShareStart]:
        admin, coordinator = await self._coordinator(group)
        try:
            answer = await admin._send_request(ShareStartsRequest(group), coordinator)  # noqa: SLF001 - no other way
        except (NotImplementedError, IncompatibleBrokerVersion) as error:
            raise SourceRefused("share groups need brokers 4.2 or newer") from error
        return starts_of(answer)

    async def _coordinator(self, group: str) -> tuple[_OutspokenClient, int]:
        admin = await self._connected()
        coordinator = self._coordinators.get(group)
        if coordinator is None:
            coordinator = self._coordinators[group] = await admin.find_coordinator(group)
        return admin, coordinator

    async def _connected(self) -> _OutspokenClient:
        async with self._starting:
            if self._admin is None:
                admin = _OutspokenClient(**self._arguments)
                try:
                    await admin.start()
                except BaseException:
                    await admin.close()
                    raise
                self._admin = admin
            return self._admin


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
