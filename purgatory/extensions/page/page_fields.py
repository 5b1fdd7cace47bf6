"""Operations and sessions as the page shows them: why an operation is pending or how it ended, what a session holds."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from purgatory.engine.batches import PartitionName
from purgatory.engine.codes import COMPOSITE, ERROR_NAMES, FETCH, KIND_NAMES, OUTCOME_NAMES, REQUEST_TIMED_OUT
from purgatory.engine.views import ItemView, PendingView
from purgatory.extensions.page.recent_ends import RecentEnd, recent_end, wall_ms
from purgatory.service.access.account import Account
from purgatory.service.host import Host
from purgatory.service.reasons import REASONS_MAX, awaited_item, held_back, held_back_by, plain_name, spelled
from purgatory.service.sessions.session import Session

ITEMS_IN_LISTS: Final = 3


def pending_fields(
    host: Host, view: PendingView, items_max: int = ITEMS_IN_LISTS, name: PartitionName | None = None
) -> dict[str, Any]:
    """Fields of a pending operation, with the reason why it is pending: that of the first item that is not reached, if
    possible of one with `name`.
    """
    session, now_ms, at_ms = host.sessions.of_owner(view.owner_id), host.time.now_ms(), wall_ms()
    account = session.account if session is not None else host.unary_waits.account_of(view.operation_id)
    awaited = awaited_item(view, name) or awaited_item(view, None)
    return {
        "session": "" if session is None else session.session_id,
        "principal": "" if account is None else account.principal,
        "id": view.operation_id,
        "kind": KIND_NAMES[view.kind],
        "waited_ms": now_ms - view.registered_ms,
        "left_ms": max(0, view.deadline_ms - now_ms),
        "registered_at_ms": at_ms + view.registered_ms - now_ms,
        "expires_at_ms": at_ms + view.deadline_ms - now_ms,
        "min_bytes": view.min_bytes if view.kind == FETCH else None,
        "required_terms": view.required_terms if view.kind == COMPOSITE else None,
        "unless_count": view.unless_count if view.kind == COMPOSITE else 0,
        "item_count": len(view.items),
        "items": [_item_fields(item) for item in view.items[:items_max]],
        "awaited": None if awaited is None else _item_fields(awaited),
        "held_back_by": "" if awaited is None else held_back_by(host, view, awaited),
    }


def detailed_fields(host: Host, view: PendingView) -> dict[str, Any]:
    """The same fields, with the reason for each item."""
    fields = pending_fields(host, view, REASONS_MAX)
    for shown, reason in zip(fields["items"], held_back(host, view), strict=False):
        shown["held_back_by"] = reason
    return fields


def ended_fields(end: RecentEnd) -> dict[str, Any]:
    return end.values | {
        "session": end.session_id,
        "principal": end.principal,
        "id": end.values["operation_id"],
        "kind": KIND_NAMES.get(end.values["kind"], ""),
        "outcome": OUTCOME_NAMES[end.values["outcome"]],
        "ended_at_ms": end.ended_at_ms,
        "items": [item | {"error": error_text(item)} for item in end.items],
    }


def matches(fields: Mapping[str, Any], asked: Mapping[str, str]) -> bool:
    """Whether an operation that has ended has the `outcome`, the `kind`, and an item whose name contains `search`."""
    text = plain_name(asked.get("search", "")).lower()
    names = (spelled((topic, partition)).lower() for topic, partition in (item["name"] for item in fields["items"]))
    is_named = not text or any(text in name for name in names)
    return is_named and all(asked.get(name, "") in ("", fields[name]) for name in ("outcome", "kind"))


def error_text(item: Mapping[str, Any]) -> str:
    """The error of a result as the command line prints it; empty if there is none."""
    code = item["error_code"]
    return f"error {code} {ERROR_NAMES.get(code, '')}".rstrip() if code else ""


def _item_fields(item: ItemView) -> dict[str, Any]:
    names = ("error_code", "required_offset", "reached_offset")
    fields = {"name": list(item.name)} | {name: getattr(item, name) for name in names}
    return fields | {"error": "" if item.error_code == REQUEST_TIMED_OUT else error_text(fields)}


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
        "acknowledged_ms": None if session.acknowledged_ms is None else now_ms - session.acknowledged_ms,
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
