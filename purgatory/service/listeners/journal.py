"""The journal as the host sees it: a listener that also says when what it heard is durable.

This one keeps nothing, for a daemon without a journal; `durable_journal` has the other. What leaves the daemon because
of a change is given to `when_durable`, or waits for `durable`, after the change was told.
"""

from collections.abc import Callable
from typing import Final

from purgatory.engine.batches import Refusal
from purgatory.service.listeners.listener import Listener
from purgatory.service.sessions.session import Session

NONE: Final = 1
SYNC: Final = 2
ASYNC: Final = 3
"""What a receipt is worth: kept in memory, on disk before it is answered, on disk soon after. As on the wire."""


class Journal(Listener):
    """Keeps everything in memory only: nothing is ever waited for."""

    durability = NONE
    """What a receipt is worth: NONE, SYNC or ASYNC."""

    keeps = False
    """Whether what is pending survives the daemon."""

    def why_closed(self) -> Refusal | None:
        """Why nothing may be admitted now; None: everything may. The refusal's index means nothing.

        Unlike with `reason_to_refuse`, refusals have no results then: nothing can be kept, so nothing is begun.
        """
        return None

    def changed(self, session: Session) -> None:
        """Something of a session has changed that the caller is going to wait for."""

    def when_durable(self, answer: Callable[[], None]) -> None:
        """Calls it once all that was told so far is durable; at once if there is nothing to wait for."""
        answer()

    async def durable(self) -> None:
        """Returns once all that was told so far is durable."""
