"""Which answers were wrong, given what the brokers really had. A pure function of two lists; it trusts no daemon."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Mark = tuple[str, int]
GONE: Final = -1


class Change(NamedTuple):
    """An offset that a mark was given, in seconds of one clock. Changes of one mark come from one writer, in order.

    `acknowledged_s`: when the broker's answer was there; None: it failed or nobody knows, so it may have happened.
    """

    mark: Mark
    offset: int
    begun_s: float
    acknowledged_s: float | None


class Answer(NamedTuple):
    """A wait and its end. `registered_s`: just before it was sent; `accepted_s`: when the daemon had acknowledged it;
    `answered_s`: when its result was here. `is_stale`: the result says that its mark could not be seen.
    """

    mark: Mark
    target: int
    registered_s: float
    accepted_s: float
    timeout_s: float
    answered_s: float
    is_satisfied: bool
    is_stale: bool = False


class Wrong(NamedTuple):
    why: str
    answer: Answer


def wrong_answers(changes: Iterable[Change], answers: Iterable[Answer], settle_s: float) -> list[Wrong]:
    """All answers that came before they were true, or not at all though they were.

    `settle_s`: how long a source may take to see a change. Within it a wait may be answered, or not, by what the mark
    was before; what nobody had begun to write may never be answered.
    """
    by_mark: defaultdict[Mark, list[Change]] = defaultdict(list)
    for change in changes:
        by_mark[change.mark].append(change)
    for history in by_mark.values():
        history.sort(key=lambda change: change.begun_s)
    wrong = []
    for answer in answers:
        judged = _too_early if answer.is_satisfied else _unanswered
        why = judged(by_mark[answer.mark], answer, settle_s)
        if why:
            wrong.append(Wrong(why, answer))
    return wrong


def _too_early(history: Sequence[Change], answer: Answer, settle_s: float) -> str:
    reasons = "too early: nobody had begun to write so far"
    for place, change in enumerate(history):
        if change.begun_s > answer.answered_s:
            break
        if change.offset < answer.target:
            continue
        ended_s = _end_of(history, place, answer.target)
        if ended_s is None or ended_s + settle_s >= answer.registered_s:
            return ""
        reasons = "of a lineage that had ended before the wait was registered"
    return reasons


def _end_of(history: Sequence[Change], place: int, target: int) -> float | None:
    """When a lower offset was surely written after this change; None: never."""
    for later in history[place + 1 :]:
        if later.offset < target and later.acknowledged_s is not None:
            return later.acknowledged_s
    return None


def _unanswered(history: Sequence[Change], answer: Answer, settle_s: float) -> str:
    if answer.is_stale:
        return ""
    deadline_s = answer.registered_s + answer.timeout_s
    for place, change in enumerate(history):
        if change.offset < answer.target or change.acknowledged_s is None:
            continue
        must_be_answered_s = max(change.acknowledged_s, answer.accepted_s) + settle_s
        lower = next((later for later in history[place + 1 :] if later.offset < answer.target), None)
        if must_be_answered_s <= deadline_s and (lower is None or lower.begun_s > must_be_answered_s):
            return "unanswered: it had been true for long before its deadline"
    return ""
