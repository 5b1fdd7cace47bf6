"""Recently ended operations for the page, recorded only while there are viewers."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from purgatory.engine.codes import SATISFIED
from purgatory.engine.completions import RESULT_COLUMNS, RESULT_ITEM_COLUMNS, Completions
from purgatory.service.listeners.listener import Completed, Listener
from purgatory.service.translate.result_slices import Results

ENDS_MAX: Final = 300
"""Maximum of recorded operations."""
LOOKED_AT_MAX: Final = 64
"""Maximum of operations examined per batch, so that viewers do not slow down the hot path."""
ITEMS_MAX: Final = 8
"""Maximum of items recorded per operation."""
ENDS_PER_SECOND: Final = 50
FOLLOWED_MAX: Final = 1_000

FollowedOperation = tuple[str, str, int]
"""Principal, session id, operation id."""


@dataclass(frozen=True, slots=True)
class RecentEnd:
    """An operation that has ended. `items` holds the first of `item_count` items."""

    principal: str
    session_id: str
    ended_at_ms: int
    """On the wall clock, since the epoch."""
    values: dict[str, int]
    """Its result columns, by name."""
    items: list[dict[str, Any]]
    """The name and the result columns of each item."""

    @property
    def key(self) -> FollowedOperation:
        return (self.principal, self.session_id, self.values["operation_id"])


class RecentEnds(Listener):
    """Records a sample of ended operations while there are viewers.

    Within `ENDS_PER_SECOND`, expired and failed operations take precedence over satisfied ones. Followed operations are
    always recorded.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.viewers = 0
        self._now_ms: Final = now_ms
        self._ends: Final[deque[RecentEnd]] = deque(maxlen=ENDS_MAX)
        self._second = 0
        self._room = 0
        self._followed: Final[dict[FollowedOperation, int]] = {}
        """Number of viewers that follow each operation."""
        self._outcomes: Final[OrderedDict[FollowedOperation, RecentEnd]] = OrderedDict()

    def __iter__(self) -> Iterator[RecentEnd]:
        """Most recent first."""
        return reversed(self._ends)

    def follow(self, operation: FollowedOperation) -> None:
        """Record the end of this operation. Call `unfollow` later."""
        self._followed[operation] = self._followed.get(operation, 0) + 1

    def unfollow(self, operation: FollowedOperation) -> None:
        self._followed[operation] -= 1
        if not self._followed[operation]:
            del self._followed[operation]

    def outcome_of(self, operation: FollowedOperation) -> RecentEnd | None:
        """How an operation ended; None if it has not ended, or if its end was not recorded."""
        found = self._outcomes.get(operation)
        return found or next((one for one in self if one.key == operation), None)

    def completed(self, event: Completed) -> None:
        if not self.viewers:
            return
        session, who, completions = event.session, event.principal, event.completions
        session_id = "" if session is None else session.session_id
        wanted = {key[2] for key in self._followed if key[:2] == (who, session_id)}
        second = self._now_ms() // 1_000
        if self._second != second:
            self._second, self._room = second, ENDS_PER_SECOND
        if wanted:
            places = [place for place, operation_id in enumerate(completions.operation_ids) if operation_id in wanted]
            self._note(who, session_id, completions, places, followed=True)
        if self._room > 0:
            outcomes = completions.outcomes[: min(len(completions), LOOKED_AT_MAX)]
            bad = [place for place, outcome in enumerate(outcomes) if outcome != SATISFIED]
            good = [place for place, outcome in enumerate(outcomes) if outcome == SATISFIED][:2]
            # Failures get the space first. Sorted again, because `_note` adds up item counts from place to place.
            places = sorted((bad + good)[: self._room])
            self._room -= len(places)
            self._note(who, session_id, completions, places, followed=False)

    def _note(
        self, principal: str, session_id: str, completions: Completions, places: Sequence[int], *, followed: bool
    ) -> None:
        first_item = at = 0
        for place in places:
            first_item += sum(completions.item_counts[at:place])
            at = place
            end = recent_end(principal, session_id, completions, place, first_item)
            if not followed:
                self._ends.append(end)
                continue
            self._outcomes[end.key] = end
            if len(self._outcomes) > FOLLOWED_MAX:
                self._outcomes.popitem(last=False)


def wall_ms() -> int:
    """The wall clock, which the page shows: milliseconds since the epoch."""
    return round(time.time() * 1_000)


def recent_end(principal: str, session_id: str, completions: Results, place: int, first_item: int) -> RecentEnd:
    """The operation at `place` of its completions; `first_item` is the index of its first item."""
    values = {column.name: getattr(completions, column.attribute)[place] for column in RESULT_COLUMNS}
    items = [
        {"name": list(completions.item_partitions[item])}
        | {column.name: getattr(completions, column.attribute)[item] for column in RESULT_ITEM_COLUMNS}
        for item in range(first_item, first_item + min(values["item_count"], ITEMS_MAX))
    ]
    return RecentEnd(principal, session_id, wall_ms(), values, items)
