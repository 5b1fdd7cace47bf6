"""What ends, told to those who look on: a sample of bounded size, and how much it leaves out.

Costs nothing while nobody looks on, for it is a listener of the host only as long as somebody does.
"""

import asyncio
import time
from collections.abc import Collection
from itertools import accumulate, compress
from typing import Final, NamedTuple

from purgatory.engine import codes
from purgatory.engine.completions import Completions
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ADMIN
from purgatory.service.errors import resource_exhausted
from purgatory.service.listeners.events import Completed
from purgatory.service.listeners.listener import Listener
from purgatory.service.translate.uniform_columns import is_uniform

FOLLOWERS_MAX: Final = 32
FOLLOWERS_PER_PRINCIPAL_MAX: Final = 8
ROWS_MAX: Final = 500
"""Operations that may wait to be told to one follower; further ones are left out."""
EXAMINED_MAX: Final = 500
"""Of one batch of others' operations, how many are looked at for one who may not see all."""
ITEMS_MAX: Final = 10
"""Items of an operation that are told."""
ROW_BYTES: Final = 2_000


class ToldItem(NamedTuple):
    """One partition, or key (key, -1), of an operation that has ended."""

    name: tuple[str, int]
    error_code: int
    required_offset: int
    reached_offset: int


class ToldOperation(NamedTuple):
    """An operation that has ended. `operation_id` is 0 and `session_id` empty for unary waits."""

    session_id: str
    principal: str
    operation_id: int
    kind: int
    outcome: int
    ended_s: float
    """Wall clock."""
    waited_ms: int
    lateness_ms: int
    items: list[ToldItem]
    items_left_out: int


class ResultFollower:
    """One who looks on. `outcomes` (none: all) and `kind` (0: all) are what it wants to see."""

    def __init__(self, account: Account, outcomes: Collection[int], kind: int) -> None:
        self.woken: Final = asyncio.Event()
        """There is something to tell."""
        self._account: Final = account
        self._outcomes: Final = frozenset(outcomes)
        self._kind: Final = kind
        self._rows: list[ToldOperation] = []
        self._left_out = 0

    @property
    def principal(self) -> str:
        """Who looks on."""
        return self._account.principal

    @property
    def held_bytes(self) -> int:
        """What waits to be told, estimated."""
        return len(self._rows) * ROW_BYTES

    def take(self) -> tuple[list[ToldOperation], int]:
        """What has ended since the last time, and how much was left out."""
        rows, left_out = self._rows, self._left_out
        self._rows, self._left_out = [], 0
        self.woken.clear()
        return rows, left_out

    def tell(self, event: Completed) -> None:
        """Operations of one owner have ended."""
        session, whose, completions = event.session, event.principal, event.completions
        places = self._wanted(completions)
        if not places:
            return
        if whose != self._account.principal and not self._account.grants.is_everywhere(ADMIN):
            places = self._visible(completions, places[:EXAMINED_MAX])
        room = ROWS_MAX - len(self._rows)
        self._left_out += max(0, len(places) - room)
        places = places[:room]
        if places:
            first_items = _first_items(completions, places[-1])
            session_id, now_s = "" if session is None else session.session_id, time.time()
            self._rows += [_row(completions, place, first_items[place], session_id, whose, now_s) for place in places]
        self.woken.set()

    def _wanted(self, completions: Completions) -> list[int]:
        """The places of the operations that this one wants to see."""
        kinds, outcomes = completions.kinds, completions.outcomes
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
        """Those that waited for nothing but what the account has the role admin on: as `visibility.may_see`."""
        topics, keys = self._account.grants.on_topics(ADMIN), self._account.grants.on_keys(ADMIN)
        if not (topics or keys) or not places:
            return []
        first_items = _first_items(completions, places[-1])
        return [
            place
            for place in places
            if all(
                name[0] in (keys if completions.kinds[place] == codes.SIGNAL else topics)
                for name in completions.item_partitions[
                    first_items[place] : first_items[place] + completions.item_counts[place]
                ]
            )
        ]


class ResultTail(Listener):
    """All who look on."""

    def __init__(self, listeners: list[Listener]) -> None:
        """`listeners` are the host's, to which this one belongs while it has followers."""
        self._listeners: Final = listeners
        self._followers: Final[list[ResultFollower]] = []

    def follow(self, account: Account, outcomes: Collection[int], kind: int) -> ResultFollower:
        """One more looks on, until `unfollow`. Raises `RpcError` when there are too many."""
        if len(self._followers) >= FOLLOWERS_MAX:
            raise resource_exhausted("followers", f"{FOLLOWERS_MAX} callers look on, the most allowed", None)
        of_principal = sum(one.principal == account.principal for one in self._followers)
        if account.principal and of_principal >= FOLLOWERS_PER_PRINCIPAL_MAX:
            raise resource_exhausted("followers", f"{of_principal} callers of this principal look on already", None)
        follower = ResultFollower(account, outcomes, kind)
        if not self._followers:
            self._listeners.append(self)
        self._followers.append(follower)
        return follower

    def unfollow(self, follower: ResultFollower) -> None:
        self._followers.remove(follower)
        if not self._followers:
            self._listeners.remove(self)

    def held_bytes(self) -> int:
        return sum(follower.held_bytes for follower in self._followers)

    def completed(self, event: Completed) -> None:
        if len(event.completions):
            for follower in self._followers:
                follower.tell(event)


def _first_items(completions: Completions, last: int) -> list[int]:
    """Where the items of each operation begin, up to the one at a place."""
    return [0, *accumulate(completions.item_counts[:last])]


def _row(
    completions: Completions, place: int, first: int, session_id: str, principal: str, ended_s: float
) -> ToldOperation:
    count = completions.item_counts[place]
    return ToldOperation(
        session_id,
        principal,
        completions.operation_ids[place] if session_id else 0,
        completions.kinds[place],
        completions.outcomes[place],
        ended_s,
        completions.waited_ms[place],
        completions.lateness_ms[place],
        [
            ToldItem(
                completions.item_partitions[item],
                completions.error_codes[item],
                completions.required_offsets[item],
                completions.reached_offsets[item],
            )
            for item in range(first, first + min(count, ITEMS_MAX))
        ],
        max(0, count - ITEMS_MAX),
    )
