"""Rankings and searches of all pending operations, computed in slices and shared by viewers of the same account."""

import asyncio
import heapq
import time
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import KIND_NAMES
from purgatory.engine.ranking import PendingRanking
from purgatory.engine.views import PendingView
from purgatory.extensions.page.page_fields import pending_fields, session_fields
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN, OBSERVE
from purgatory.service.errors import invalid_argument, resource_exhausted
from purgatory.service.fair_queue import next_loop_turn
from purgatory.service.host import Host
from purgatory.service.reasons import plain_name, spelled
from purgatory.service.sessions.session import Session
from purgatory.service.visibility import rank_pending, ranked_views

SESSIONS_PER_SLICE: Final = 5_000
SESSIONS_SHOWN: Final = 20
OPERATIONS_FOUND_MAX: Final = 50
DIGITS_MAX: Final = 18


@dataclass
class FoundById:
    """The sessions whose id contains the search, and those in which an operation with the id of the search waits."""

    sessions: list[Session] = field(default_factory=list)
    operation_id: int = 0
    """0: the search names no operation."""
    holding: list[Session] = field(default_factory=list)
    calls_too: bool = False
    """Whether the operation may be that of a call."""
    used_ns: int = 0
    """CPU time of the search."""

    def views(self, host: Host, account: Account) -> list[PendingView]:
        """The operations with the id of the search that are still pending."""
        owners = [one.owner for one in self.holding if host.sessions.of_owner(one.owner.owner_id) is one]
        caller = host.unary_waits.account_of(self.operation_id) if self.calls_too else None
        if caller is not None and (caller is account or ADMIN in account.grants.everywhere):
            owners.append(host.unary_waits.owner_of(caller))
        views = (host.engine.inspection.describe(owner, self.operation_id) for owner in owners)
        return [view for view in views if view is not None]

    def session_fields(self, host: Host) -> list[dict[str, Any]]:
        """The first of the sessions that still exist."""
        alive = [one for one in self.sessions if host.sessions.of_owner(one.owner.owner_id) is one]
        return [session_fields(host, one) for one in alive[:SESSIONS_SHOWN]]


async def find_by_id(host: Host, account: Account, search: str) -> FoundById:
    """Search the account's own sessions; with the role admin on everything, all sessions. Ignores case."""
    text, sees_all = search.lower(), ADMIN in account.grants.everywhere
    found = FoundById()
    of_session, found.operation_id = _operation(text)
    found.calls_too = not of_session
    sessions, watched = list(host.sessions), host.holds.of("page")
    for first in range(0, len(sessions), SESSIONS_PER_SLICE):
        began_ns = time.thread_time_ns()
        with watched:
            for session in sessions[first : first + SESSIONS_PER_SLICE]:
                if not (sees_all or session.account is account):
                    continue
                session_id = session.session_id.lower()
                if text in session_id:
                    found.sessions.append(session)
                may_hold = found.operation_id and of_session in session_id and len(found.holding) < OPERATIONS_FOUND_MAX
                if may_hold and host.engine.inspection.describe(session.owner, found.operation_id):
                    found.holding.append(session)
        found.used_ns += time.thread_time_ns() - began_ns
        await next_loop_turn()
    return found


def _operation(text: str) -> tuple[str, int]:
    """Session and id of an operation as the page writes it: "checkout / 60", "call 17", or only its id. 0: no id."""
    session, _, number = text.rpartition("/")
    number = number.strip() if session else number.removeprefix("call ").strip()
    is_id = number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX
    return session.strip(), int(number) if is_id else 0


ROWS_SHOWN: Final = 50
RANKED_MAX: Final = 10 * ROWS_SHOWN
"""More operations are ranked than shown, because ranked ones may end before they are shown."""
NAMES_PER_SLICE: Final = 5_000
NAMES_SHOWN: Final = 50
AGAIN_S_MIN: Final = 1.0
LOAD: Final = 0.01
"""Maximum share of one processor for all rankings, divided among the accounts that display some: a single one that
took 50 ms is repeated after 5 s.
"""
KEPT_MAX: Final = 32
"""Maximum of different rankings with viewers."""
KEPT_S: Final = 3.0
"""A ranking that was not shown for this long has no viewers: it is dropped."""

ORDERS: Final = {"left": True, "-left": True, "waited": False, "-waited": False}
"""Whether each order is by the time left; a minus sign puts the largest first."""
NAME_ORDERS: Final = ("waits", "-waits", "name", "-name")
KINDS_BY_NAME: Final = {name: kind for kind, name in KIND_NAMES.items()}


@dataclass(frozen=True)
class WaitsQuery:
    """A selection of pending operations: by text, by kind, and by a name that they wait on; and their order."""

    search: str = ""
    """Part of a name as the command line spells it, or of a session's id, or an operation's id. Case is ignored."""
    kind: int = 0
    name: PartitionName | None = None
    order: str = "left"
    name_order: str = "-waits"

    @classmethod
    def of(cls, parameters: dict[str, str], partition: int) -> "WaitsQuery":
        """Raises `RpcError` for an unknown kind or order."""
        for name, known in (("kind", KINDS_BY_NAME), ("order", ORDERS), ("names", NAME_ORDERS)):
            if parameters.get(name) and parameters[name] not in known:
                raise invalid_argument(name, f"is not one of {', '.join(known)}")
        topic, key = parameters.get("topic", ""), parameters.get("key", "")
        return cls(
            plain_name(parameters.get("search", "")),
            KINDS_BY_NAME.get(parameters.get("kind", ""), 0),
            (topic, partition) if topic else (key, -1) if key else None,
            parameters.get("order") or "left",
            parameters.get("names") or "-waits",
        )

    @property
    def descending(self) -> bool:
        """As `PendingRanking` means it: the last deadline, or the last registration, first."""
        return self.order in ("-left", "waited")

    @property
    def selection(self) -> tuple[object, ...]:
        """Queries with the same selection share a ranking."""
        return (self.search, self.kind, self.name, self.name_order, self.descending)


class RankedWaits:
    """Rankings by account and selection. Computed on request only."""

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._kept: Final[dict[tuple[object, ...], _Kept]] = {}
        self._ranking: Final = asyncio.Lock()
        """One ranking at a time."""
        self._own_ranking: Final[WeakKeyDictionary[Account, asyncio.Lock]] = WeakKeyDictionary()

    async def show(self, account: Account, query: WaitsQuery) -> dict[str, Any]:
        """The account's own operations; with the role admin on everything, all operations."""
        sees_all = ADMIN in account.grants.everywhere
        kept = self._kept_for((None if sees_all else account.principal, *query.selection), account)
        await self._refresh(kept, account, query, is_due=time.monotonic() >= kept.again_s)
        rows = self._rows(kept, account, query)
        if len(rows) < min(ROWS_SHOWN, kept.ranking.operations):
            # Too many of the ranked operations have ended. Others have been registered since then, so rank again now.
            await self._refresh(kept, account, query, is_due=True)
            rows = self._rows(kept, account, query)
        with self._host.holds.of("page"):
            by_id = self._found_by_id(kept, account, query)
        topic_or_key = query.name[0] if query.name else ""
        administered = (
            account.grants.on_keys(ADMIN) if query.name and query.name[1] < 0 else account.grants.on_topics(ADMIN)
        )
        return {
            "operations": kept.ranking.operations + len(by_id),
            "names": kept.name_count,
            "names_are_cut": kept.ranking.is_cut,
            "matching": kept.matching,
            "sees_all": sees_all,
            "may_cancel": bool(topic_or_key) and topic_or_key in administered,
            "hot": [
                [topic, partition, waits]
                for (topic, partition), waits in self._exact(kept, account, query) + kept.names
            ],
            "rows": (by_id + rows)[:ROWS_SHOWN],
            "sessions": kept.found.session_fields(self._host),
            "session_count": len(kept.found.sessions),
        }

    def _kept_for(self, key: tuple[object, ...], account: Account) -> "_Kept":
        now_s = time.monotonic()
        kept = self._kept.pop(key, None)
        # Each ranking that is kept lets the others of its account wait longer.
        for old in [old for old, one in self._kept.items() if one.looking is None and now_s - one.shown_s > KEPT_S]:
            del self._kept[old]
        if kept is None:
            own = self._own(account)
            if not self._host.shares.may_add(account, KEPT_MAX, len(self._kept), own):
                message = f"{len(self._kept)} different searches and orders are on display, {own} of them are yours"
                raise resource_exhausted("page", f"{message}; close one, or try again later")
            kept = _Kept(account)
        self._kept[key], kept.shown_s = kept, now_s
        return kept

    def _own(self, account: Account) -> int:
        """Number of rankings that this account was the first to display."""
        return sum(one.account is account for one in self._kept.values())

    async def _refresh(self, kept: "_Kept", account: Account, query: WaitsQuery, *, is_due: bool) -> None:
        if kept.looking is None and is_due:
            kept.looking = asyncio.create_task(self._look(kept, account, query), name="page ranking")
        if kept.looking is not None:
            await asyncio.shield(kept.looking)  # continues for other viewers when one disconnects
            kept.shown_s = time.monotonic()

    async def _look(self, kept: "_Kept", account: Account, query: WaitsQuery) -> None:
        name = query.name or ("", -1)
        try:
            # Within its account first: the rankings of one account must not be in line before those of another.
            async with self._own_ranking.setdefault(kept.account, asyncio.Lock()), self._ranking:
                found = await find_by_id(self._host, account, query.search) if query.search else FoundById()
                ranking, used_ns = await rank_pending(
                    self._host,
                    account,
                    RANKED_MAX,
                    self._host.holds.of("page"),
                    next_loop_turn,
                    kind=query.kind,
                    partition=name if name[1] >= 0 else None,
                    key=name[0] if name[1] < 0 else "",
                    search=query.search,
                    search_owner_ids={one.owner.owner_id for one in found.sessions},
                    descending=query.descending,
                )
                names, matching = await self._names(ranking, query)
        finally:
            kept.looking = None
        kept.ranking, kept.found, kept.names, kept.matching = ranking, found, names, matching
        kept.name_count = len(ranking.waits)
        ranking.waits.clear()  # up to 30 MB
        used_s = (used_ns + found.used_ns) / 1e9
        accounts = len({one.account for one in self._kept.values()})
        kept.again_s = time.monotonic() + max(AGAIN_S_MIN, self._own(kept.account) * accounts * used_s / LOAD)

    async def _names(self, ranking: PendingRanking, query: WaitsQuery) -> tuple[list[tuple[PartitionName, int]], int]:
        """The first matching names in the order of the query, and the number of matching names."""
        found: list[tuple[PartitionName, int]] = []
        search, matching = query.search.lower(), 0
        names, watched = iter(ranking.waits.items()), self._host.holds.of("page")
        choose = heapq.nlargest if query.name_order.startswith("-") else heapq.nsmallest
        by_waits = query.name_order.endswith("waits")
        while True:
            with watched:
                part = list(islice(names, NAMES_PER_SLICE))
                rows = [one for one in part if not search or search in spelled(one[0]).lower()]
                matching += len(rows)
                found = choose(NAMES_SHOWN, found + rows, key=lambda one: (one[1], one[0]) if by_waits else one)
            if len(part) < NAMES_PER_SLICE:
                return found, matching
            await asyncio.sleep(0)

    def _exact(self, kept: "_Kept", account: Account, query: WaitsQuery) -> list[tuple[PartitionName, int]]:
        """The partition that the search spells exactly, if it is known and not among the first names already."""
        topic, _, number = query.search.rpartition("-")
        if not (topic and number.isascii() and number.isdigit() and len(number) < 10):
            return []
        name = (topic, int(number))
        if name in dict(kept.names) or topic not in account.grants.on_topics(OBSERVE):
            return []
        view = self._host.engine.inspection.partition_view(name)
        return [] if view is None else [(name, view.watched)]

    def _found_by_id(self, kept: "_Kept", account: Account, query: WaitsQuery) -> list[dict[str, Any]]:
        """The operations with the id that is searched for, except those that the ranking contains."""
        search, host = query.search.lower(), self._host
        sessions = set(map(id, kept.found.sessions))
        return [
            pending_fields(host, view)
            for view in kept.found.views(host, account)
            if query.kind in (0, view.kind)
            and id(host.sessions.of_owner(view.owner_id)) not in sessions
            and not any(search in spelled(item.name).lower() for item in view.items)
        ]

    def _rows(self, kept: "_Kept", account: Account, query: WaitsQuery) -> list[dict[str, Any]]:
        """The first pending operations in the order of the query."""
        host, ranking = self._host, kept.ranking
        ranked = ranking.soonest_expiring() if ORDERS[query.order] else ranking.longest_waiting()
        with host.holds.of("page"):
            # A list, because the engine's time must not go back: the fields are read at a later time than the views.
            views = list(islice(ranked_views(host, account, ranked), ROWS_SHOWN))
            return [pending_fields(host, view, name=query.name) for _, view, _ in views]


@dataclass(eq=False)
class _Kept:
    """One ranking, and the time at which it may be computed again."""

    account: Account
    """The account that was the first to display it."""
    ranking: PendingRanking = field(default_factory=lambda: PendingRanking(RANKED_MAX))
    found: FoundById = field(default_factory=FoundById)
    names: list[tuple[PartitionName, int]] = field(default_factory=list)
    """The first matching names, each with its waits."""
    matching: int = 0
    name_count: int = 0
    again_s: float = 0.0
    shown_s: float = 0.0
    looking: asyncio.Task[None] | None = None
    """The ranking in progress, if any; all viewers wait for the same one."""
