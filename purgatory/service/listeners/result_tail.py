"""Results for `tail` subscribers: a bounded sample, with a count of the operations left out.

Each subscriber is a listener of the host, so the tail costs nothing without subscribers.
"""

import asyncio
import time
from collections.abc import Collection
from itertools import accumulate, compress
from typing import Any, Final

from purgatory import sizes
from purgatory.engine.completions import Completions
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.errors import resource_exhausted
from purgatory.service.listeners.listener import Completed, Listener, Listeners
from purgatory.service.translate.result_slices import is_uniform
from purgatory.service.translate.views import ended_operation

SUBSCRIBERS_MAX: Final = 32
SUBSCRIBERS_PER_PRINCIPAL_MAX: Final = 8
ROW_BYTES: Final = 2_000

EndedOperation = Any
"""A message of the wire; only `translate` and the servicer know its type."""


class TailSubscriber(Listener):
    """One subscriber. It receives operations with one of `outcomes` (empty: any) and of `kind` (0: any)."""

    def __init__(self, account: Account, outcomes: Collection[int], kind: int) -> None:
        self.woken: Final = asyncio.Event()
        """Set when there are rows to take."""
        self._account: Final = account
        self._outcomes: Final = frozenset(outcomes)
        self._kind: Final = kind
        self._rows: list[EndedOperation] = []
        self._left_out = 0

    @property
    def principal(self) -> str:
        return self._account.principal

    def held_bytes(self) -> int:
        return len(self._rows) * ROW_BYTES

    def take(self) -> tuple[list[EndedOperation], int]:
        """Return the rows buffered since the last call, and the number of operations left out."""
        rows, left_out = self._rows, self._left_out
        self._rows, self._left_out = [], 0
        self.woken.clear()
        return rows, left_out

    def completed(self, event: Completed) -> None:
        """Buffer the operations that this subscriber wants and may see."""
        session, whose, completions = event.session, event.principal, event.completions
        places = self._wanted(completions) if len(completions) else []
        if whose != self._account.principal and ADMIN not in self._account.grants.everywhere:
            places = self._visible(completions, places[: sizes.TAIL_EXAMINED_MAX])
        # After the check of the grants: being woken, even for an empty message, would show that something has ended.
        if not places:
            return
        room = sizes.TAIL_ROWS_MAX - len(self._rows)
        self._left_out += max(0, len(places) - room)
        places = places[:room]
        if places:
            first_items = _first_items(completions, places[-1])
            session_id, now_s = "" if session is None else session.session_id, time.time()
            self._rows += [
                ended_operation(completions, place, first_items[place], session_id, whose, now_s) for place in places
            ]
        self.woken.set()

    def _wanted(self, completions: Completions) -> list[int]:
        """Positions of the operations that match the filter."""
        kinds, outcomes = completions.kinds, completions.outcomes
        # Compared as bytes: reading thousands of values one by one would create a Python number for each.
        if self._kind and is_uniform(bytes(kinds)):
            if kinds[0] != self._kind:
                return []
        elif self._kind:
            return [
                place
                for place, (kind, outcome) in enumerate(zip(kinds, outcomes, strict=True))
                if kind == self._kind and (not self._outcomes or outcome in self._outcomes)
            ]
        if not self._outcomes:
            return list(range(len(outcomes)))
        if is_uniform(bytes(outcomes)):
            return list(range(len(outcomes))) if outcomes[0] in self._outcomes else []
        return list(compress(range(len(outcomes)), [outcome in self._outcomes for outcome in outcomes]))

    def _visible(self, completions: Completions, places: list[int]) -> list[int]:
        """Positions of operations whose items are all covered by the role admin, as in `visibility.may_see`."""
        topics, keys = self._account.grants.on_topics(ADMIN), self._account.grants.on_keys(ADMIN)
        if not (topics or keys) or not places:
            return []
        first_items = _first_items(completions, places[-1])
        return [
            place
            for place in places
            if all(
                name in (keys if partition < 0 else topics)
                for name, partition in completions.item_partitions[
                    first_items[place] : first_items[place] + completions.item_counts[place]
                ]
            )
        ]


class ResultTail:
    def __init__(self, listeners: Listeners) -> None:
        """`listeners` are the host's; each subscriber is one of them until `unfollow`."""
        self._listeners: Final = listeners
        listeners.failures[TailSubscriber.__name__] = 0
        self._subscribers: Final[list[TailSubscriber]] = []

    def follow(self, account: Account, outcomes: Collection[int], kind: int) -> TailSubscriber:
        """Add a subscriber, until `unfollow`.

        Raises:
            RpcError: There are too many subscribers, in total or of this principal.
        """
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            raise resource_exhausted("followers", f"too many `tail` subscribers; the limit is {SUBSCRIBERS_MAX}", None)
        of_principal = sum(one.principal == account.principal for one in self._subscribers)
        if account.principal and of_principal >= SUBSCRIBERS_PER_PRINCIPAL_MAX:
            raise resource_exhausted(
                "followers",
                f"too many `tail` subscribers of this principal; the limit is {SUBSCRIBERS_PER_PRINCIPAL_MAX}",
                None,
            )
        subscriber = TailSubscriber(account, outcomes, kind)
        self._listeners.append(subscriber)
        self._subscribers.append(subscriber)
        return subscriber

    def unfollow(self, subscriber: TailSubscriber) -> None:
        self._subscribers.remove(subscriber)
        self._listeners.remove(subscriber)


def _first_items(completions: Completions, last: int) -> list[int]:
    """Index of the first item of each operation, up to position `last`."""
    return [0, *accumulate(completions.item_counts[:last])]
