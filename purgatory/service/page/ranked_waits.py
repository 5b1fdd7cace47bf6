"""Who waits on what: the whole table of what is pending, looked at slice by slice, once for all who look."""

import asyncio
import heapq
import time
from itertools import islice
from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.ranking import PendingRanking, RankedOperation
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.access.visibility import may_see
from purgatory.service.host import Host
from purgatory.service.page.operation_view import pending_fields

SLOTS_PER_SLICE: Final = 10_000
"""Visited before the loop is free again: some milliseconds."""
RANKED_MAX: Final = 20
NAMES_PER_SLICE: Final = 5_000
NAMES_SHOWN: Final = 50
AGAIN_S_MIN: Final = 1.0
LOAD: Final = 0.01
"""The part of one processor that all this may take: what took 50 ms is looked at again after 5 s."""
ACCOUNTS_MAX: Final = 16
"""Rankings that are kept: one for each account that looks, and one for all who see everything."""


class RankedWaits:
    """Rankings by account. Costs nothing while nobody asks."""

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._kept: Final[dict[str | None, _Kept]] = {}

    async def show(self, account: Account, search: str) -> dict[str, Any]:
        """What the account may see: its own operations or, with the role admin on everything, all. `search` is a part
        of the names to be shown.
        """
        sees_all = account.grants.is_everywhere(ADMIN)
        key = None if sees_all else account.principal
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= ACCOUNTS_MAX:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[key] = _Kept()
        if kept.looking is None and time.monotonic() >= kept.again_s:
            kept.looking = asyncio.create_task(self._look(kept, account, sees_all=sees_all), name="page ranking")
        if kept.looking is not None:
            await asyncio.shield(kept.looking)  # it goes on for the others when one viewer goes away
        names, matching = await self._hottest(kept.ranking, search)
        return {
            "operations": kept.ranking.operations,
            "names": len(kept.ranking.waits),
            "names_are_cut": kept.ranking.is_cut,
            "matching": matching,
            "again_ms": round(max(0.0, kept.again_s - time.monotonic()) * 1_000),
            "sees_all": sees_all,
            "hot": [[topic, partition, waits] for waits, (topic, partition) in names],
            "longest": self._rows(kept.ranking.longest_waiting(), account),
            "soonest": self._rows(kept.ranking.soonest_expiring(), account),
        }

    async def _look(self, kept: "_Kept", account: Account, *, sees_all: bool) -> None:
        owners = None if sees_all else self._owners_of(account)
        ranking, host = PendingRanking(RANKED_MAX, owners), self._host
        watched, slot, used_ns = host.holds.of("page"), 0, 0
        try:
            while slot >= 0:
                began_ns = time.thread_time_ns()
                with watched:
                    slot = host.engine.rank_pending(slot, SLOTS_PER_SLICE, host.time.now_ms(), ranking)
                used_ns += time.thread_time_ns() - began_ns
                await asyncio.sleep(0)
        finally:
            kept.looking = None
        kept.ranking = ranking
        kept.again_s = time.monotonic() + max(AGAIN_S_MIN, used_ns / 1e9 / LOAD)

    def _owners_of(self, account: Account) -> set[int]:
        owners = {session.owner.owner_id for session in self._host.sessions if session.account is account}
        if account.unary_waits:
            owners.add(self._host.unary_waits.owner_of(account).owner_id)
        return owners

    async def _hottest(self, ranking: PendingRanking, search: str) -> tuple[list[tuple[int, PartitionName]], int]:
        """The names on which most waits are, and how many match the search."""
        found: list[tuple[int, PartitionName]] = []
        matching, names, watched = 0, iter(ranking.waits.items()), self._host.holds.of("page")
        while True:
            with watched:
                part = list(islice(names, NAMES_PER_SLICE))
                rows = [(waits, name) for name, waits in part if not search or search in name[0]]
                matching += len(rows)
                found = heapq.nlargest(NAMES_SHOWN, found + rows)
            if len(part) < NAMES_PER_SLICE:
                return found, matching
            await asyncio.sleep(0)

    def _rows(self, ranked: list[RankedOperation], account: Account) -> list[dict[str, Any]]:
        """The operations that are still pending."""
        host, rows = self._host, []
        for one in ranked:
            view = host.engine.ranked_view(one, host.time.now_ms())
            if view is None:
                continue
            session = host.sessions.of_owner(view.owner_id)
            owner = session.account if session is not None else host.unary_waits.account_of(view.operation_id)
            if may_see(account, owner, view):
                rows.append(pending_fields(host, view, one.slot))
        return rows


class _Kept:
    """One ranking, and when it may be made anew."""

    def __init__(self) -> None:
        self.ranking = PendingRanking(RANKED_MAX)
        self.again_s = 0.0
        self.looking: asyncio.Task[None] | None = None
        """One look at a time, for all who ask meanwhile."""
