"""Read-only calls: listings with bounded work per page, however many operations are pending."""

import asyncio
import base64
import binascii
import heapq
import json
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from purgatory import __version__, sizes
from purgatory.engine import COMPILED
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN, OBSERVE, Role
from purgatory.service.errors import RpcError, invalid_argument, not_found, quoted
from purgatory.service.host import Host
from purgatory.service.reasons import held_back
from purgatory.service.rpc.call import Call
from purgatory.service.sessions.session import Callbacks, Session
from purgatory.service.sources.source_table import KnownSource
from purgatory.service.translate import views
from purgatory.service.translate.sources import absent_source_status, source_status
from purgatory.service.visibility import may_see, owner_of, rank_pending, ranked_views
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import source_pb2 as source_wire

Shared = TypeVar("Shared")

KEPT_TIMES: Final = 10
"""An answer is reused for ten times as long as it took to compute: at most an eleventh of the loop's time."""
KEPT_S_MAX: Final = 1.0
"""Upper limit of that time."""
NOT_KEPT_S_MAX: Final = 0.005
"""An answer that took less time than this is not reused."""


class SingleFlight(Generic[Shared]):
    """An expensive answer that is the same for every caller: concurrent requests share one computation.

    Runs `compute` in its own task, one at a time, so that it survives callers that disconnect.
    """

    def __init__(self, compute: Callable[[], Awaitable[Shared]]) -> None:
        self._compute: Final = compute
        self._task: asyncio.Task[Shared] | None = None
        self._kept_until_s = 0.0

    async def get(self) -> Shared:
        """Return the answer, which may be up to `KEPT_S_MAX` old."""
        task = self._task
        if task is None or (task.done() and (time.monotonic() >= self._kept_until_s or _has_failed(task))):
            task = self._task = asyncio.create_task(self._run(), name="shared answer")
        # The computation belongs to all of its callers. Any one of them may be cancelled.
        return await asyncio.shield(task)

    async def _run(self) -> Shared:
        began_s = time.monotonic()
        answer = await self._compute()
        now_s = time.monotonic()
        took_s = now_s - began_s
        if took_s > NOT_KEPT_S_MAX:
            self._kept_until_s = now_s + min(KEPT_S_MAX, KEPT_TIMES * took_s)
        return answer


def _has_failed(task: asyncio.Task[Shared]) -> bool:
    # `exception` of a cancelled task raises CancelledError, which would cancel the caller.
    return task.cancelled() or task.exception() is not None


# ruff: noqa: N802 - methods have the names of the calls

ANY_OWNER: Final = -1
NO_OWNER: Final = 2**31 - 1
"""An owner that has no operations: the listing then does its normal work and finds nothing."""
ANY_KIND: Final = 0
START_MAX: Final = 2**31 - 1
"""Highest start of a page. Tokens can be forged, and the engine's integers are bounded."""
PARTITION_COST: Final = 4
"""Cost of translating a partition without its replicas, in replicas."""

Answer = TypeVar("Answer", bound=Message)
Name = tuple[str, int]
"""Topic and partition."""
Place = list[int | str]
"""The start of a page. Only the listing interprets its parts."""


class InspectionCalls:
    """The read-only part of the service. Methods raise `RpcError`."""

    def __init__(self, host: Host, callbacks: Callbacks, status_line: Callable[[], str]) -> None:
        self._host: Final = host
        self._callbacks: Final = callbacks
        self._status_line: Final = status_line
        self._remaining_times: Final = SingleFlight(self._count_remaining)
        self._sorted_names: Final = SingleFlight(self._sort_names)
        self._stale_partitions: Final = SingleFlight(self._count_stale)
        self._names: list[Name] = []
        self._names_at = -1
        """The engine's count of partition additions and removals when `_names` was sorted."""

    async def GetOperation(self, request: wire.GetOperationRequest, call: Call) -> wire.GetOperationResponse:
        """Return one pending operation. Refuses unknown sessions and operations."""
        session = self._session(request, call)
        now = self._now()
        if session is not None:
            view = self._host.engine.inspection.describe(session.owner, request.operation_id)
            # The same error for an operation that does not exist and for one that the caller may not see.
            if view is not None and may_see(call.account, session.account, view):
                causes = held_back(self._host, view)
                answer = views.pending_operation(view, session.session_id, session.account.principal, now, causes)
                return wire.GetOperationResponse(operation=answer)
        raise not_found("pending operation", f"{request.session_id}/{request.operation_id}")

    async def ListOperations(self, request: wire.ListOperationsRequest, call: Call) -> wire.ListOperationsResponse:
        """Return a page of pending operations. Refuses unknown sessions and kinds, and tokens of other requests."""
        self._host.gate.check_answer(call.account)
        host, kind = self._host, int(request.kind)
        if kind != ANY_KIND and not views.is_known_kind(kind):
            raise invalid_argument("kind", f"is not a known kind of operation: {kind}")
        owner_id = ANY_OWNER
        if request.session_id:
            one = self._session(request, call)
            owner_id = NO_OWNER if one is None else one.owner.owner_id
        name = views.partition_name(request.topic_partition) if request.HasField("topic_partition") else None
        if request.order:
            return held_answer(self._host, await self._ranked(request, call, owner_id, name), call)
        if request.search:
            raise invalid_argument("search", "needs an order: set order as well")
        filters = f"operations {request.principal!r} {request.session_id!r} {kind} {name} {request.key!r}"
        place = read_token(filters, request.page_token, (int,))
        start = int(place[0]) if place is not None else 0
        if not 0 <= start <= START_MAX:
            raise invalid_argument("page_token", f"begins at {start}")
        size = page_size(request.page_size)
        watched, response = host.holds.of("ListOperations"), wire.ListOperationsResponse()
        bytes_left = sizes.PAGE_BYTES_MAX
        while True:
            with watched:
                # A few at a time: whether the page is full by bytes is known only after they were translated.
                now, asked = self._now(), min(sizes.LISTED_OPERATIONS_AT_ONCE, size - len(response.operations))
                found, start = host.engine.inspection.list_pending(start, asked, owner_id, kind, name, request.key)
                for view in found:
                    owner, session_id = owner_of(host, view)
                    if may_see(call.account, owner, view):
                        operation = views.pending_operation(
                            view, session_id, "" if owner is None else owner.principal, now
                        )
                        bytes_left -= operation.ByteSize()
                        response.operations.append(operation)
            if start < 0 or bytes_left <= 0 or len(response.operations) == size:
                break
            await call.turn()
        if start >= 0:
            response.next_page_token = make_token(filters, [start])
        return held_answer(self._host, response, call)

    async def _ranked(
        self, request: wire.ListOperationsRequest, call: Call, owner_id: int, name: Name | None
    ) -> wire.ListOperationsResponse:
        host, order, size = self._host, request.order, page_size(request.page_size)
        if order not in wire.OperationOrder.values():
            raise invalid_argument("order", f"unknown order: {order}")
        if request.page_token:
            raise invalid_argument("page_token", "a listing in an order has only one page")
        is_by_time_left = order in (wire.OPERATION_ORDER_LEAST_REMAINING, wire.OPERATION_ORDER_MOST_REMAINING)
        descending = order in (wire.OPERATION_ORDER_MOST_REMAINING, wire.OPERATION_ORDER_SHORTEST_WAITED)
        watched = host.holds.of("ListOperations")
        ranking, _ = await rank_pending(
            host, call.account, size, watched, call.turn, owner_id=owner_id, kind=request.kind, partition=name,
            key=request.key, search=request.search, descending=descending,
        )  # fmt: skip
        response = wire.ListOperationsResponse(matching=ranking.operations)
        ranked = ranking.soonest_expiring() if is_by_time_left else ranking.longest_waiting()
        bytes_left = sizes.PAGE_BYTES_MAX
        for start in range(0, len(ranked), sizes.LISTED_OPERATIONS_AT_ONCE):
            with watched:
                now, part = self._now(), ranked[start : start + sizes.LISTED_OPERATIONS_AT_ONCE]
                for _, view, owner in ranked_views(host, call.account, part):
                    session_id = owner_of(host, view)[1]
                    operation = views.pending_operation(view, session_id, "" if owner is None else owner.principal, now)
                    bytes_left -= operation.ByteSize()
                    response.operations.append(operation)
                    if bytes_left <= 0:
                        return response
            await call.turn()
        return response

    async def GetPartition(self, request: wire.GetPartitionRequest, call: Call) -> wire.GetPartitionResponse:
        """Return one partition's marks, replicas and waits. Refuses unknown partitions, and topics without a role."""
        self._host.gate.check_answer(call.account)
        name = views.partition_name(request.topic_partition)
        if name[0] not in call.account.grants.on_topics(OBSERVE):
            raise self._denied(call, OBSERVE, f"topic {quoted(name[0])}")
        view = self._host.engine.inspection.partition_view(name)
        if view is None:
            raise not_found("partition", f"{name[0]}-{name[1]}")
        listening_ms = self._host.listening.now_ms()
        shown = views.partition(view, self._host.sources.stale(name, listening_ms), listening_ms)
        return held_answer(self._host, wire.GetPartitionResponse(partition=shown), call)

    async def ListPartitions(self, request: wire.ListPartitionsRequest, call: Call) -> wire.ListPartitionsResponse:
        """Return a page of known partitions. They are sorted by name, so that added and removed partitions do not shift
        other pages.

        Partitions of topics on which the caller lacks the role observe are omitted.
        """
        self._host.gate.check_answer(call.account)
        host = self._host
        filters = f"partitions {request.topic_prefix!r}"
        place = read_token(filters, request.page_token, (str, int))
        after = (str(place[0]), int(place[1])) if place is not None else None
        size = page_size(request.page_size)
        # Few names are sorted at once: they need no slices, and no copy that is kept.
        few = host.engine.partition_count <= sizes.LISTED_NAMES_PER_SLICE
        names = sorted(host.engine.inspection.partition_names()) if few else await self._sorted_names.get()
        first = bisect_left(names, request.topic_prefix, key=itemgetter(0))
        start = first if after is None else max(first, bisect_right(names, after))
        page = PartitionPage(host, names, start, size, request.topic_prefix, call.account)
        with_page = host.holds.of("ListPartitions")
        while True:
            with with_page:
                is_done = page.fill()
            if is_done:
                break
            await call.turn()
        if page.last is not None and page.has_more:
            page.response.next_page_token = make_token(filters, list(page.last))
        return held_answer(self._host, page.response, call)

    async def _sort_names(self) -> list[Name]:
        """Return all known partitions by name. They are sorted again only after some were added or removed."""
        engine, watched = self._host.engine, self._host.holds.of("ListPartitions")
        if self._names_at != engine.inspection.partition_changes:
            # Both without an await in between: a change during the sort makes the next call sort again.
            changes, names = engine.inspection.partition_changes, engine.inspection.partition_names()
            runs = []
            for first in range(0, len(names), sizes.LISTED_NAMES_PER_SLICE):
                with watched:
                    runs.append(sorted(names[first : first + sizes.LISTED_NAMES_PER_SLICE]))
                await asyncio.sleep(0)
            # Lazy: the merge does its work where the slices are taken, so that each can be bounded.
            merged = heapq.merge(*runs)
            in_order: list[Name] = []
            while True:
                with watched:
                    part = list(islice(merged, sizes.LISTED_NAMES_PER_SLICE))
                in_order += part
                if len(part) < sizes.LISTED_NAMES_PER_SLICE:
                    break
                await asyncio.sleep(0)
            self._names, self._names_at = in_order, changes
        return self._names

    async def GetStatus(self, request: wire.GetStatusRequest, call: Call) -> wire.GetStatusResponse:
        host = self._host
        webhooks = self._callbacks.counts()
        return wire.GetStatusResponse(
            version=__version__,
            compiled=COMPILED,
            started_time=views.timestamp(host.started_time),
            draining=host.draining,
            kinds=views.kind_statuses(host.engine.inspection.counts),
            partitions=host.engine.partition_count,
            signal_keys=host.engine.inspection.signal_key_count,
            sessions=host.sessions.count,
            sessions_connected=host.sessions.connected,
            unacknowledged_results=host.sessions.unacknowledged_results,
            remaining_time=await self._remaining_times.get() if request.remaining_time else None,
            sources=await self._sources(call.account),
            webhooks=None if webhooks is None else webhooks._asdict(),
            fleet=self._status_line(),
        )

    async def _sources(self, account: Account) -> list[source_wire.SourceStatus]:
        """Return the sources that feed any name that the account may observe."""
        host = self._host
        observed = account.grants.on_topics(OBSERVE)
        known = {source.name for source in host.sources}
        absent = [
            absent_source_status(source)
            for source in host.source_links.supervised
            if source.name not in known and observed.meets_prefix("")
        ]
        if not known:
            return absent
        stale_partitions = await self._stale_partitions.get()
        now_ms = host.listening.now_ms()
        return absent + [
            source_status(source, now_ms, stale_partitions.get(source, 0), host.source_links.restarts.get(source.name))
            for source in host.sources
            if any(observed.meets_prefix(prefix) for prefix in source.topic_prefixes)
        ]

    async def _count_stale(self) -> dict[KnownSource, int]:
        """Count the stale partitions that each source feeds or fed, in slices."""
        host, counts, watched = self._host, Counter[KnownSource](), self._host.holds.of("GetStatus")
        names, now_ms = host.engine.inspection.partition_names(), host.listening.now_ms()
        for first in range(0, len(names), sizes.STALE_NAMES_PER_SLICE):
            with watched:
                for name in names[first : first + sizes.STALE_NAMES_PER_SLICE]:
                    if host.sources.stale(name, now_ms) is not None:
                        counts.update(source for source in host.sources if name[0].startswith(source.topic_prefixes))
            await asyncio.sleep(0)
        return counts

    async def _count_remaining(self) -> wire.RemainingTime:
        """Count how much time pending operations have left, in slices."""
        host, times, watched = self._host, views.no_remaining_times(), self._host.holds.of("GetStatus")
        slot = 0
        while True:
            with watched:
                slot = host.engine.inspection.count_remaining(
                    slot, sizes.LISTED_SLOTS_PER_SLICE, host.time.now_ms(), times
                )
            if slot < 0:
                return views.remaining(times)
            await asyncio.sleep(0)

    def _session(self, request: wire.GetOperationRequest | wire.ListOperationsRequest, call: Call) -> Session | None:
        """Return the session that a request names: the caller's own or, with the role admin, another principal's.

        Raises `RpcError` if the caller's own session is unknown. Returns None if the other principal's session is
        unknown: the answer must equal that for a session in which the caller may see nothing.
        """
        sessions = self._host.sessions
        sessions.shards.check_session(request.session_id)
        # A foreign session is not looked up before the role is checked: the error must not depend on whether it exists.
        if request.principal in ("", call.account.principal):
            return sessions.get(request.session_id, call.account)
        if not call.account.grants.holds_any(frozenset({ADMIN})):
            raise self._denied(call, ADMIN, "sessions of others")
        return sessions.find(request.session_id, sessions.accounts.find(request.principal))

    def _denied(self, call: Call, role: Role, name: str) -> RpcError:
        """Return the refusal for a missing role, and audit it."""
        return self._host.sessions.accounts.audit.denied(call.account.principal, role, name)

    def _now(self) -> views.WallTime:
        return views.WallTime(self._host.time.now_ms(), time.time())


def held_answer(host: Host, answer: Answer, call: Call) -> Answer:
    """Count an answer against the memory budget until its call ends, as it is held until the caller has read it."""
    budget, held = host.shares.budget, answer.ByteSize()
    budget.hold_answer(call.account, held)
    on_end: Any = lambda _context: budget.hold_answer(call.account, -held)  # noqa: E731 - the stubs want a class that does not exist
    call.context.add_done_callback(on_end)
    return answer


class PartitionPage:
    """A page of partitions that is filled from a position in the sorted names."""

    def __init__(self, host: Host, names: Sequence[Name], start: int, size: int, prefix: str, account: Account) -> None:
        self.response: Final = wire.ListPartitionsResponse()
        self.last: Name | None = None
        """The last name on the page."""
        self.has_more = False
        """Whether another page follows. Set when the page is complete."""
        self._host: Final = host
        self._names: Final = names
        self._place = start
        self._size: Final = size
        self._prefix: Final = prefix
        self._seen: Final = account.grants.on_topics(OBSERVE)
        self._bytes_left = sizes.PAGE_BYTES_MAX

    def fill(self) -> bool:
        """Add some partitions; return whether the page is complete."""
        cost_left = sizes.LISTED_ITEMS_PER_SLICE
        listening_ms = self._host.listening.now_ms()
        stop = min(self._place + sizes.LISTED_NAMES_PER_SLICE, len(self._names))
        while self._place < stop and cost_left > 0:
            name = self._names[self._place]
            if not name[0].startswith(self._prefix):
                return True
            self._place += 1
            view = self._host.engine.inspection.partition_view(name) if name[0] in self._seen else None
            if view is None:
                continue
            # Only at another partition that the caller may see: a token for nothing but invisible ones would show that
            # they exist.
            if self._bytes_left <= 0 or len(self.response.partitions) == self._size:
                self.has_more = True
                return True
            message = views.partition(view, self._host.sources.stale(name, listening_ms), listening_ms)
            self.response.partitions.append(message)
            self.last = name
            self._bytes_left -= message.ByteSize()
            cost_left -= PARTITION_COST + len(view.replicas)
        return self._place >= len(self._names)


# Page tokens: opaque to callers, and refused when forged or made for another request.


def page_size(asked: int) -> int:
    """Return the page size: the default for 0, at most the maximum. Refuses negative sizes."""
    if asked < 0:
        raise invalid_argument("page_size", f"must be 0 or greater, not {asked}")
    return min(asked, sizes.PAGE_SIZE_MAX) if asked else sizes.PAGE_SIZE_DEFAULT


def make_token(request: str, place: Place) -> str:
    """Return the token of the page that begins at `place`. `request` identifies the listing and its filters."""
    text = json.dumps([_digest(request), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_token(request: str, token: str, shape: tuple[type, ...]) -> Place | None:
    """Return the start of a page; None for the first one. Refuses forged tokens and those of other requests.

    `shape`: the types of the place's parts.
    """
    if not token:
        return None
    try:
        parts = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # a forged token may nest brackets too deep for json's recursion
        parts = None
    # By exact type: True would pass as an integer by `isinstance`.
    if not isinstance(parts, list) or tuple(type(part) for part in parts[1:]) != shape or parts[0] != _digest(request):
        raise invalid_argument(
            "page_token",
            f"must come from the previous answer, with the same filters; this one does not: {quoted(token)}",
        )
    place: Place = parts[1:]
    return place


def _digest(request: str) -> int:
    return binascii.crc32(request.encode())
