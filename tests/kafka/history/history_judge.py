"""Which answers were wrong, given what the brokers really had. Pure functions of lists; they trust no daemon."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Mark = tuple[str, int]
GONE: Final = -1
UNKNOWN_PARTITION: Final = 3


class RecordedStep(NamedTuple):
    """An offset that a mark was given, in seconds of one clock. Changes of one mark come from one writer, in order.

    `acknowledged_s`: when the broker's answer was there; None: it failed or nobody knows, so it may have happened.
    """

    mark: Mark
    offset: int
    begun_s: float
    acknowledged_s: float | None


class Answer(NamedTuple):
    """A wait and its end.

    `registered_s`: just before it was sent. `accepted_s`: when the daemon had acknowledged it. `answered_s`: when it
    had ended at the latest. `stale_s`: for how long its mark could not be seen, by its result; None: it was seen.
    `error_code`: it has ended by itself. `listed_s`: just before the epoch that it names was read; None: it names none.
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
    """All answers that came before they were true, or not at all though they were, or told of an end that was none.

    `settle_s`: how long a source may take to see a change. Within it a wait may be answered, or not, by what the mark
    was before; what nobody had begun to write may never be answered.
    `down`: from when to when the daemon was not there. Deadlines that pass then, or before its sources are back, are as
    if they had passed when it went: only what it could have seen until then had to be answered.
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
    """Looks back from the answer: if the last offset that was enough had ended too early, so had all before it."""
    ended_s = None
    for change in history[_begun_by(history, answer.answered_s) :: -1]:
        if change.offset < answer.target:
            # What was surely written first after the last offset that was enough; later ones say nothing more.
            ended_s = change.acknowledged_s if change.acknowledged_s is not None else ended_s
        elif ended_s is None or ended_s + settle_s >= answer.registered_s:
            return ""
        else:
            return "of a lineage that had ended before the wait was registered"
    return "too early: nobody had begun to write so far"


def _unanswered(
    history: Sequence[RecordedStep], answer: Answer, settle_s: float, down: Sequence[tuple[float, float]]
) -> str:
    # What a result says was not seen at the end counts as not having been.
    deadline_s = answer.registered_s + answer.timeout_s - (answer.stale_s or 0.0)
    for from_s, to_s in down:
        deadline_s = from_s if from_s <= deadline_s <= to_s + settle_s else deadline_s
    lower_begun_s = math.inf
    for change in history[_begun_by(history, deadline_s) :: -1]:
        if change.offset < answer.target:
            lower_begun_s = change.begun_s
            if lower_begun_s <= answer.accepted_s + settle_s:
                return ""  # what was before need not have been seen
        elif change.acknowledged_s is not None:
            must_be_answered_s = max(change.acknowledged_s, answer.accepted_s) + settle_s
            if must_be_answered_s <= deadline_s and lower_begun_s > must_be_answered_s:
                return "unanswered: it had been true for long before its deadline"
    return ""


def _wrongly_ended(history: Sequence[RecordedStep], answer: Answer, settle_s: float) -> str:
    """A wait that names no epoch ends by itself only where its mark was not there. `lineage_judge` has the others."""
    if answer.listed_s is not None and answer.error_code != UNKNOWN_PARTITION:
        return ""
    if answer.error_code != UNKNOWN_PARTITION:
        return f"ended with error {answer.error_code}"
    there_since_s = math.inf
    for change in history[_begun_by(history, answer.answered_s) :: -1]:
        if change.offset == GONE:
            break  # if nothing was acknowledged since, it may still be gone
        if change.acknowledged_s is not None:
            there_since_s = change.acknowledged_s
            if there_since_s + settle_s < answer.registered_s:
                return "ended as unknown: its mark was there"
    return ""


def _begun_by(history: Sequence[RecordedStep], time_s: float) -> int:
    """The place of the last change begun by then; past the other end, so that nothing is left, where there is none."""
    place = bisect_right(history, time_s, key=lambda change: change.begun_s) - 1
    return place if place >= 0 else -len(history) - 1
