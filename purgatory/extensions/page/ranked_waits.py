"""Rankings of all pending operations, computed in slices and shared by all viewers with the same permissions."""

import asyncio
import heapq
import time
from itertools import islice
from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.ranking import PendingRanking
from purgatory.extensions.page.operation_view import pending_fields
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.fair_queue import next_loop_turn
from purgatory.service.host import Host
from purgatory.service.visibility import rank_pending, ranked_views

ROWS_SHOWN: Final = 20
RANKED_MAX: Final = 10 * ROWS_SHOWN
"""More operations are ranked than shown, because ranked ones may end before they are shown."""
NAMES_PER_SLICE: Final = 5_000
NAMES_SHOWN: Final = 50
AGAIN_S_MIN: Final = 1.0
LOAD: Final = 0.01
"""Maximum share of one processor for all rankings: one that took 50 ms is repeated after 5 s."""
ACCOUNTS_MAX: Final = 16
"""Maximum of cached rankings: one for each account with viewers, and one for all admins."""


class RankedWaits:
    """Rankings by account. Computed on request only."""

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._kept: Final[dict[str | None, _Kept]] = {}

    async def show(self, account: Account, search: str) -> dict[str, Any]:
        """The ranking of the account's own operations; with the role admin on everything, of all operations.

        `search` is a substring of the names to show.
        """
        sees_all = ADMIN in account.grants.everywhere
        key = None if sees_all else account.principal
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= ACCOUNTS_MAX:
                self._kept.pop(next(iter(self._kept)))
            kept = self._kept[key] = _Kept()
        await self._refresh(kept, account, is_due=time.monotonic() >= kept.again_s)
        longest, soonest = self._rows(kept, account)
        if len(soonest) < min(ROWS_SHOWN, kept.ranking.operations):
            # Too many of the ranked operations have ended. Others have been registered since then, so rank again now.
            await self._refresh(kept, account, is_due=True)
            longest, soonest = self._rows(kept, account)
        names, matching = await self._hottest(kept.ranking, search)
        return {
            "operations": kept.ranking.operations,
            "names": len(kept.ranking.waits),
            "names_are_cut": kept.ranking.is_cut,
            "matching": matching,
            "again_ms": round(max(0.0, kept.again_s - time.monotonic()) * 1_000),
            "sees_all": sees_all,
            "hot": [[topic, partition, waits] for waits, (topic, partition) in names],
            "longest": longest,
            "soonest": soonest,
        }

    async def _refresh(self, kept: "_Kept", account: Account, *, is_due: bool) -> None:
        if kept.looking is None and is_due:
            kept.looking = asyncio.create_task(self._look(kept, account), name="page ranking")
        if kept.looking is not None:
            await asyncio.shield(kept.looking)  # continues for other viewers when one disconnects

    async def _look(self, kept: "_Kept", account: Account) -> None:
        watched = self._host.holds.of("page")
        try:
            ranking, used_ns = await rank_pending(self._host, account, RANKED_MAX, watched, next_loop_turn)
        finally:
            kept.looking = None
        kept.ranking = ranking
        kept.again_s = time.monotonic() + max(AGAIN_S_MIN, used_ns / 1e9 / LOAD)

    async def _hottest(self, ranking: PendingRanking, search: str) -> tuple[list[tuple[int, PartitionName]], int]:
        """The names with the most waits, and the number of names that match the search."""
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

    def _rows(self, kept: "_Kept", account: Account) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Two lists of pending operations: longest waiting first, and soonest to expire first."""
        host, ranking = self._host, kept.ranking
        longest, soonest = (
            [
                pending_fields(host, view, one.slot)
                for one, view, _ in islice(ranked_views(host, account, ranked, host.time.now_ms()), ROWS_SHOWN)
            ]
            for ranked in (ranking.longest_waiting(), ranking.soonest_expiring())
        )
        return longest, soonest


class _Kept:
    """One ranking, and the time at which it may be computed again."""

    def __init__(self) -> None:
        self.ranking = PendingRanking(RANKED_MAX)
        self.again_s = 0.0
        self.looking: asyncio.Task[None] | None = None
        """The ranking in progress, if any; all viewers wait for the same one."""
