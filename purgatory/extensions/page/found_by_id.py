"""Searches for sessions and operations by id. Every session is examined, in slices."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

from purgatory.engine.views import PendingView
from purgatory.extensions.page.session_view import session_fields
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.fair_queue import next_loop_turn
from purgatory.service.host import Host
from purgatory.service.sessions.session import Session

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
