"""Finds wrong answers by comparison with the brokers' true state. Pure functions of lists; no daemon is trusted."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Mark = tuple[str, int]
GONE: Final = -1
UNKNOWN_PARTITION: Final = 3


class RecordedStep(NamedTuple):
    """An offset given to a mark, in seconds of one clock. The changes of a mark have one writer and are in order.

    `acknowledged_s`: time of the broker's acknowledgement; None: it failed or is unknown, so the change may have
    happened.
    """

    mark: Mark
    offset: int
    begun_s: float
    acknowledged_s: float | None


class Answer(NamedTuple):
    """A wait and its result.

    `registered_s`: just before it was sent. `accepted_s`: when the daemon had acknowledged it. `answered_s`: the latest
    time at which it can have ended. `stale_s`: for how long its mark was stale, from its result; None: it was not.
    `error_code`: the error with which it ended. `listed_s`: just before its epoch was read; None: it names none.
    """

    mark: Mark
    target: int
    registered_s: float
    accepted_s: float
    timeout_s: float
    answered_s: float
    is_satisfied: bool
    stale_s: float | None = None
    error_code: int = 0
    listed_s: float | None = None


class Wrong(NamedTuple):
    why: str
    answer: Answer


def wrong_answers(
    changes: Iterable[RecordedStep],
    answers: Iterable[Answer],
    settle_s: float,
    down: Sequence[tuple[float, float]] = (),
) -> list[Wrong]:
    """All answers that were given too early, missing although they were due, or that reported a false end.

    `settle_s`: how long a source may take to see a change. Within this time a wait may be answered from the previous
    mark; a value that was not yet being written is never a valid answer. `down`: periods without a daemon. A deadline
    in such a period, or before its sources are back, counts as if it had passed when the daemon went down: only values
    that it could see by then had to be answered.
    """
    by_mark: defaultdict[Mark, list[RecordedStep]] = defaultdict(list)
    for change in changes:
        by_mark[change.mark].append(change)
    for history in by_mark.values():
        history.sort(key=lambda change: change.begun_s)
    wrong = []
    for answer in answers:
        history = by_mark[answer.mark]
        if answer.is_satisfied:
            why = _too_early(history, answer, settle_s)
        elif answer.error_code:
            why = _wrongly_ended(history, answer, settle_s)
        else:
            why = _unanswered(history, answer, settle_s, down)
        if why:
            wrong.append(Wrong(why, answer))
    return wrong


def _too_early(history: Sequence[RecordedStep], answer: Answer, settle_s: float) -> str:
    """Looks back from the answer: if the last sufficient offset had ended too early, so had all earlier ones."""
    ended_s = None
    for change in history[_begun_by(history, answer.answered_s) :: -1]:
        if change.offset < answer.target:
            # The first certain write after the last sufficient offset ends it; later ones add nothing.
            ended_s = change.acknowledged_s if change.acknowledged_s is not None else ended_s
        elif ended_s is None or ended_s + settle_s >= answer.registered_s:
            return ""
        else:
            return "of a lineage that had ended before the wait was registered"
    return "too early: nobody had begun to write so far"


def _unanswered(
    history: Sequence[RecordedStep], answer: Answer, settle_s: float, down: Sequence[tuple[float, float]]
) -> str:
    # The stale time in a result is excluded from the time in which an answer was due.
    deadline_s = answer.registered_s + answer.timeout_s - (answer.stale_s or 0.0)
    for from_s, to_s in down:
        deadline_s = from_s if from_s <= deadline_s <= to_s + settle_s else deadline_s
    lower_begun_s = math.inf
    for change in history[_begun_by(history, deadline_s) :: -1]:
        if change.offset < answer.target:
            lower_begun_s = change.begun_s
            if lower_begun_s <= answer.accepted_s + settle_s:
                return ""  # the earlier state need not have been seen
        elif change.acknowledged_s is not None:
            must_be_answered_s = max(change.acknowledged_s, answer.accepted_s) + settle_s
            if must_be_answered_s <= deadline_s and lower_begun_s > must_be_answered_s:
                return "unanswered: it had been true for long before its deadline"
    return ""


def _wrongly_ended(history: Sequence[RecordedStep], answer: Answer, settle_s: float) -> str:
    """Whether a wait without an epoch ended although its mark existed. `lineage_judge` checks waits with an epoch."""
    if answer.listed_s is not None and answer.error_code != UNKNOWN_PARTITION:
        return ""
    if answer.error_code != UNKNOWN_PARTITION:
        return f"ended with error {answer.error_code}"
    there_since_s = math.inf
    for change in history[_begun_by(history, answer.answered_s) :: -1]:
        if change.offset == GONE:
            break  # without an acknowledged change since, the mark may still be gone
        if change.acknowledged_s is not None:
            there_since_s = change.acknowledged_s
            if there_since_s + settle_s < answer.registered_s:
                return "ended as unknown: its mark was there"
    return ""


def _begun_by(history: Sequence[RecordedStep], time_s: float) -> int:
    """Index of the last change begun by then; without one, an index past the other end, so that a slice is empty."""
    place = bisect_right(history, time_s, key=lambda change: change.begun_s) - 1
    return place if place >= 0 else -len(history) - 1
