"""Inspection calls: listings with bounded work for each page, whatever is pending. Read-only."""

import asyncio
import heapq
import time
from collections.abc import Iterable
from typing import Final

from purgatory.service.host import Host
from purgatory.service.rpc.page_tokens import make_token, page_size, read_token
from purgatory.service.rpc.statuses import invalid_argument, not_found
from purgatory.service.translate.views import (
    WallTime,
    is_known_kind,
    no_remaining_times,
    partition,
    partition_name,
    pending_operation,
    remaining,
)
from purgatory.v1 import purgatory_service_pb2 as wire

ANY_OWNER: Final = -1
ANY_KIND: Final = 0
SLOTS_PER_SLICE: Final = 20_000
"""Slots visited before the loop is free again: less than a millisecond, compiled."""
START_MAX: Final = 2**31 - 1
"""Highest start of a page: tokens can be forged, and the engine's integers are bounded."""


def wall_time(host: Host) -> WallTime:
    """Now, on the engine's clock and the wall clock."""
    return WallTime(host.time.now_ms(), time.time())


def list_operations(host: Host, request: wire.ListOperationsRequest) -> wire.ListOperationsResponse:
    """A page of pending operations. Refuses unknown sessions and kinds, and page tokens of other requests."""
    kind = int(request.kind)
    if kind != ANY_KIND and not is_known_kind(kind):
        raise invalid_argument("kind", f"is not a known kind of operation: {kind}")
    owner_id = host.sessions.get(request.session_id).owner.owner_id if request.session_id else ANY_OWNER
    name = partition_name(request.topic_partition) if request.HasField("topic_partition") else None
    filters = f"operations {request.session_id!r} {kind} {name} {request.key!r}"
    place = read_token(filters, request.page_token, (int,))
    start = int(place[0]) if place is not None else 0
    if not 0 <= start <= START_MAX:
        raise invalid_argument("page_token", f"begins at {start}")
    now = wall_time(host)
    views, next_start = host.engine.list_pending(
        start, page_size(request.page_size), now.now_ms, owner_id, kind, name, request.key
    )
    operations = []
    for view in views:
        session = host.sessions.of_owner(view.owner_id)
        operations.append(pending_operation(view, session.session_id if session is not None else "", now))
    token = make_token(filters, [next_start]) if next_start >= 0 else ""
    return wire.ListOperationsResponse(operations=operations, next_page_token=token)


def get_operation(host: Host, request: wire.GetOperationRequest) -> wire.GetOperationResponse:
    """One pending operation. Refuses unknown sessions and operations."""
    session = host.sessions.get(request.session_id)
    now = wall_time(host)
    view = host.engine.describe(session.owner, request.operation_id, now.now_ms)
    if view is None:
        raise not_found("pending operation", f"{request.session_id}/{request.operation_id}")
    return wire.GetOperationResponse(operation=pending_operation(view, session.session_id, now))


async def remaining_time(host: Host) -> wire.RemainingTime:
    """How much time pending operations have left, counted in slices with the loop free in between."""
    times = no_remaining_times()
    slot = host.engine.count_remaining(0, SLOTS_PER_SLICE, host.time.now_ms(), times)
    while slot >= 0:
        await asyncio.sleep(0)
        slot = host.engine.count_remaining(slot, SLOTS_PER_SLICE, host.time.now_ms(), times)
    return remaining(times)


def get_partition(host: Host, request: wire.GetPartitionRequest) -> wire.GetPartitionResponse:
    """One partition's marks, replicas and waits. Refuses unknown partitions."""
    name = partition_name(request.topic_partition)
    view = host.engine.partition_view(name, host.time.now_ms())
    if view is None:
        raise not_found("partition", f"{name[0]}-{name[1]}")
    return wire.GetPartitionResponse(partition=partition(view))


def list_partitions(host: Host, request: wire.ListPartitionsRequest) -> wire.ListPartitionsResponse:
    """A page of known partitions, ordered by name, so that partitions that come and go do not shift other pages."""
    filters = f"partitions {request.topic_prefix!r}"
    place = read_token(filters, request.page_token, (str, int))
    after = (str(place[0]), int(place[1])) if place is not None else None
    size = page_size(request.page_size)
    names = _names_after(host.engine.partition_names(), request.topic_prefix, after, size + 1)
    now_ms = host.time.now_ms()
    views = [host.engine.partition_view(name, now_ms) for name in names[:size]]
    more = len(names) > size
    return wire.ListPartitionsResponse(
        partitions=[partition(view) for view in views if view is not None],
        next_page_token=make_token(filters, list(names[size - 1])) if more else "",
    )


def _names_after(
    names: Iterable[tuple[str, int]], prefix: str, after: tuple[str, int] | None, count: int
) -> list[tuple[str, int]]:
    wanted = (name for name in names if name[0].startswith(prefix) and (after is None or name > after))
    return heapq.nsmallest(count, wanted)
