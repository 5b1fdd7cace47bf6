"""One session on the page: its state, its callback, its pending operations and its unacknowledged results."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from purgatory.extensions.page.operation_view import ended_fields, pending_fields
from purgatory.extensions.page.recent_ends import recent_end
from purgatory.service.access.account import Account
from purgatory.service.host import Host
from purgatory.service.sessions.session import Session

ROWS_SHOWN: Final = 50
LOOKED_AT_MAX: Final = 1_000
"""Maximum of ids looked up to find pending operations; each costs less than a microsecond if it has ended."""


def session_fields(host: Host, session: Session) -> dict[str, Any]:
    """Fields of a session in the list of sessions and on its own view."""
    now_ms, stream = host.time.now_ms(), session.stream
    return {
        "session": session.session_id,
        "principal": session.account.principal,
        "connected": stream is not None,
        "connected_ms": None if stream is None else now_ms - session.connected_ms,
        "idle_ms": None if stream is not None else now_ms - session.last_used_ms,
        "callback": None if session.callback is None else session.callback.url,
        "pending": int(session.owner.pending),
        "unacknowledged": session.outbox.unacknowledged,
        "held_bytes": session.outbox.held_bytes,
        "registered": int(session.owner.highest_operation_id),
        "results": session.outbox.last_sequence,
    }


def session_details(host: Host, session: Session, account: Account) -> dict[str, Any]:
    """The same fields for a viewer, with the newest pending operations and the oldest unacknowledged results."""
    return session_fields(host, session) | {
        "incarnation": session.incarnation,
        "is_own": session.account is account,
        "waits": list(islice(_pending(host, session), ROWS_SHOWN)),
        "unread": list(islice(_unacknowledged(session), ROWS_SHOWN)),
    }


def _pending(host: Host, session: Session) -> Iterator[dict[str, Any]]:
    ids = session.owner.ids
    for place in range(len(ids) - 1, max(-1, len(ids) - 1 - LOOKED_AT_MAX), -1):
        # At the present time, because the engine's time must not go back: the fields before this are read later.
        view = host.engine.inspection.describe(session.owner, ids[place])
        if view is not None:
            yield pending_fields(host, view)


def _unacknowledged(session: Session) -> Iterator[dict[str, Any]]:
    sequence = session.outbox.acknowledged_sequence
    for part in session.outbox:
        first_item = part.item_start
        for place in range(part.start, part.stop):
            sequence += 1
            end = recent_end(session.account.principal, session.session_id, part.completions, place, first_item)
            first_item += end.values["item_count"]
            yield ended_fields(end) | {"sequence": sequence}
