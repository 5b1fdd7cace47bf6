"""Which pending operations an account may see."""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypedDict, Unpack

from purgatory import sizes
from purgatory.engine.batches import PartitionName
from purgatory.engine.ranking import PendingRanking, RankedOperation
from purgatory.engine.views import PendingView
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.host import Host
from purgatory.service.loop_stalls import StallTimer


class RankingFilters(TypedDict, total=False):
    """Filters of `PendingRanking`."""

    kind: int
    partition: PartitionName | None
    key: str
    search: str
    descending: bool
    search_owner_ids: set[int] | None


def may_see(account: Account, owner: Account | None, view: PendingView) -> bool:
    """Return whether the account may see an operation: its own, or one that waits only for names on which it has the
    role admin.

    `owner` is the owner of the operation; None: the call that waited for it has just ended.
    """
    if account is owner:
        return True
    grants = account.grants
    if ADMIN in grants.everywhere:
        return True
    topics, keys = grants.on_topics(ADMIN), grants.on_keys(ADMIN)
    return all(item.name[0] in (keys if item.name[1] < 0 else topics) for item in view.items)


def owner_of(host: Host, view: PendingView) -> tuple[Account | None, str]:
    """Return the account and the session of a pending operation; no session for a unary wait."""
    session = host.sessions.of_owner(view.owner_id)
    if session is not None:
        return session.account, session.session_id
    return host.unary_waits.account_of(view.operation_id), ""


def rankable_owner_ids(host: Host, account: Account) -> set[int] | None:
    """Return the owners whose operations an account may rank: its own, or with the role admin everywhere all (None).

    A role on some names does not count, because every operation would have to be read to find the names it waits for.
    """
    if ADMIN in account.grants.everywhere:
        return None
    owner_ids = {session.owner.owner_id for session in host.sessions if session.account is account}
    if account.unary_waits:
        owner_ids.add(host.unary_waits.owner_of(account).owner_id)
    return owner_ids


async def rank_pending(
    host: Host,
    account: Account,
    size: int,
    watched: StallTimer,
    next_turn: Callable[[], Awaitable[None]],
    *,
    owner_id: int = -1,
    **filters: Unpack[RankingFilters],
) -> tuple[PendingRanking, int]:
    """Rank every pending operation that the account may rank, slice by slice.

    Args:
        host: The host whose operations are ranked.
        account: The account that requests the ranking.
        size: Number of operations to keep.
        watched: Measures how long each slice holds the event loop.
        next_turn: Awaited between slices.
        owner_id: Only operations of this owner; -1: all.
        filters: As for `PendingRanking`.

    Returns:
        The ranking, and the CPU time that it took, in nanoseconds.
    """
    owner_ids = rankable_owner_ids(host, account)
    if owner_id >= 0:
        # An intersection, so that naming the owner of another account finds nothing instead of revealing it.
        owner_ids = {owner_id} if owner_ids is None else owner_ids & {owner_id}
    ranking = PendingRanking(size, owner_ids, **filters)
    slot, used_ns = 0, 0
    while True:
        began_ns = time.thread_time_ns()
        with watched:
            slot = host.engine.inspection.rank(slot, sizes.RANKED_SLOTS_PER_SLICE, ranking)
        used_ns += time.thread_time_ns() - began_ns
        if slot < 0:
            return ranking, used_ns
        await next_turn()


def ranked_views(
    host: Host, account: Account, ranked: list[RankedOperation]
) -> Iterator[tuple[RankedOperation, PendingView, Account | None]]:
    """Return the ranked operations that are still pending and visible to the account, each with its owner's account."""
    for one in ranked:
        # By slot and id: since the ranking the operation may have ended, and its slot may be used again.
        view = host.engine.inspection.view_of(one.slot, one.operation_id)
        if view is not None:
            owner, _ = owner_of(host, view)
            if may_see(account, owner, view):
                yield one, view, owner
