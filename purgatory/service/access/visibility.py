"""Which pending operations an account may see."""

from purgatory.engine import codes
from purgatory.engine.views import PendingView
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN


def may_see(account: Account, owner: Account | None, view: PendingView) -> bool:
    """Its own operations, and those that wait for nothing but what it has the role admin on.

    `owner` is whose operation it is; None: the call that waited for it has just ended.
    """
    if account is owner:
        return True
    grants = account.grants
    if grants.is_everywhere(ADMIN):
        return True
    names = grants.on_keys(ADMIN) if view.kind == codes.SIGNAL else grants.on_topics(ADMIN)
    return all(item.name[0] in names for item in view.items)
