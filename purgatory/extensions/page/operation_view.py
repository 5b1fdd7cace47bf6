"""Fields of one operation on the page: its items, the reason why they are not satisfied, and its outcome."""

from typing import Any, Final

from purgatory.engine.codes import COMPOSITE, FETCH, KIND_NAMES, OUTCOME_NAMES, REQUEST_TIMED_OUT
from purgatory.engine.views import ItemView, PendingView
from purgatory.extensions.page.recent_ends import RecentEnd
from purgatory.service.host import Host
from purgatory.service.reasons import held_back_by

ITEMS_IN_LISTS: Final = 3
ITEMS_MAX: Final = 100
"""Maximum of items shown for one operation; each is looked up with its replicas."""


def pending_fields(host: Host, view: PendingView, slot: int, items_max: int = ITEMS_IN_LISTS) -> dict[str, Any]:
    """Fields of a pending operation. `slot` identifies an operation that belongs to no session."""
    session, now_ms = host.sessions.of_owner(view.owner_id), host.time.now_ms()
    account = session.account if session is not None else host.unary_waits.account_of(view.operation_id)
    return {
        "session": "" if session is None else session.session_id,
        "principal": "" if account is None else account.principal,
        "id": view.operation_id,
        "slot": slot,
        "kind": KIND_NAMES[view.kind],
        "waited_ms": now_ms - view.registered_ms,
        "left_ms": max(0, view.deadline_ms - now_ms),
        "min_bytes": view.min_bytes if view.kind == FETCH else None,
        "required_terms": view.required_terms if view.kind == COMPOSITE else None,
        "unless_count": view.unless_count if view.kind == COMPOSITE else 0,
        "item_count": len(view.items),
        "items": [_item_fields(item) for item in view.items[:items_max]],
    }


def detailed_fields(host: Host, view: PendingView, slot: int) -> dict[str, Any]:
    """The same fields, with the reason why each partition is not satisfied."""
    fields = pending_fields(host, view, slot, ITEMS_MAX)
    for shown, item in zip(fields["items"], view.items, strict=False):
        if item.error_code == REQUEST_TIMED_OUT:
            shown["held_back_by"] = held_back_by(host, view, item)
    return fields


def ended_fields(end: RecentEnd, now_ms: int) -> dict[str, Any]:
    """Fields of an operation that has ended."""
    return end.values | {
        "session": end.session_id,
        "principal": end.principal,
        "id": end.values["operation_id"],
        "kind": KIND_NAMES.get(end.values["kind"], ""),
        "outcome": OUTCOME_NAMES[end.values["outcome"]],
        "ago_ms": max(0, now_ms - end.ended_ms),
        "items": end.items,
    }


def _item_fields(item: ItemView) -> dict[str, Any]:
    names = ("error_code", "required_offset", "reached_offset")
    return {"name": list(item.name)} | {name: getattr(item, name) for name in names}
