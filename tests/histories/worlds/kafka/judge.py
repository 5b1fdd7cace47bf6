"""Finds wrong answers by comparison with the brokers' true state. Pure functions of lists; no daemon is trusted."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

Mark = tuple[str, int]
GONE: Final = -1
UNKNOWN_PARTITION: Final = 3
FENCED: Final = 74
Down = Sequence[tuple[float, float]]
"""Periods without a daemon."""


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


class LineageBreak(NamedTuple):
    """A mark has moved back. `ended_s`: when that was certain; None: it is unknown whether it happened."""

    begun_s: float
    ended_s: float | None


def by_mark(steps: Iterable[RecordedStep]) -> defaultdict[Mark, list[RecordedStep]]:
    """The steps of each mark, in order of their beginning."""
    histories: defaultdict[Mark, list[RecordedStep]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: step.begun_s):
        histories[step.mark].append(step)
    return histories


def wrong_answers(
    steps: Iterable[RecordedStep], answers: Iterable[Answer], settle_s: float, down: Down = ()
) -> Iterator[Wrong]:
    """All answers that were given too early, missing although they were due, or that reported a false end.

    `settle_s`: how long a source may take to see a change. Within this time a wait may be answered from the previous
    mark; a value that was not yet being written is never a valid answer. A deadline in a period without a daemon, or
    before its sources are back, counts as if it had passed when the daemon went down: only values that it could see by
    then had to be answered.
    """
    histories = by_mark(steps)
    for answer in answers:
        history = histories[answer.mark]
        if answer.is_satisfied:
            why = _too_early(history, answer, settle_s)
        elif answer.error_code:
            why = _wrongly_ended(history, answer, settle_s)
        else:
            why = _unanswered(history, answer, settle_s, down)
        if why:
            yield Wrong(why, answer)


def _too_early(history: Sequence[RecordedStep], answer: Answer, settle_s: float) -> str:
    """Looks back from the answer: if the last sufficient offset had ended too early, so had all earlier ones."""
    ended_s = None
    for change in _begun_by(history, answer.answered_s):
        if change.offset < answer.target:
            # The first certain write after the last sufficient offset ends it; later ones add nothing.
            ended_s = change.acknowledged_s if change.acknowledged_s is not None else ended_s
        elif ended_s is None or ended_s + settle_s >= answer.registered_s:
            return ""
        else:
            return "of a lineage that had ended before the wait was registered"
    return "too early: nobody had begun to write so far"


def _unanswered(history: Sequence[RecordedStep], answer: Answer, settle_s: float, down: Down) -> str:
    # The stale time in a result is excluded from the time in which an answer was due.
    deadline_s = answer.registered_s + answer.timeout_s - (answer.stale_s or 0.0)
    for from_s, to_s in down:
        deadline_s = from_s if from_s <= deadline_s <= to_s + settle_s else deadline_s
    lower_begun_s = math.inf
    for change in _begun_by(history, deadline_s):
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
    """Whether a wait ended although its mark existed. `wrong_lineages` checks other errors of waits with an epoch."""
    if answer.error_code != UNKNOWN_PARTITION:
        return "" if answer.listed_s is not None else f"ended with error {answer.error_code}"
    for change in _begun_by(history, answer.answered_s):
        if change.offset == GONE:
            break  # without an acknowledged change since, the mark may still be gone
        if change.acknowledged_s is not None and change.acknowledged_s + settle_s < answer.registered_s:
            return "ended as unknown: its mark was there"
    return ""


def _begun_by(history: Sequence[RecordedStep], time_s: float) -> Iterator[RecordedStep]:
    """The changes begun by then, the last one first."""
    for place in range(bisect_right(history, time_s, key=lambda change: change.begun_s) - 1, -1, -1):
        yield history[place]


def wrong_lineages(
    steps: Iterable[RecordedStep], answers: Iterable[Answer], settle_s: float, down: Down = ()
) -> Iterator[Wrong]:
    """Waits with an epoch that were answered from another history, or ended although theirs continued.

    A result sent just after the daemon's return may have been decided before it went down.
    """
    breaks = {mark: _breaks_of(history) for mark, history in by_mark(steps).items()}
    for answer in answers:
        if answer.listed_s is None:
            continue
        of_mark = breaks.get(answer.mark, ())
        if answer.is_satisfied and not any(one <= answer.answered_s <= two + settle_s for one, two in down):
            if any(_is_passed(one, answer, settle_s) for one in of_mark):
                yield Wrong("answered from a history that began after its own had ended", answer)
        elif answer.error_code == FENCED:
            since_s = answer.listed_s - 2 * settle_s
            if not any(one.begun_s <= answer.answered_s and (one.ended_s or math.inf) >= since_s for one in of_mark):
                yield Wrong("ended with error 74: its history went on", answer)


def _breaks_of(history: Iterable[RecordedStep]) -> list[LineageBreak]:
    """The breaks of one mark, from the steps of its writers in order."""
    found: list[LineageBreak] = []
    certain, highest, lower_s = GONE, GONE, math.inf
    for step in history:
        if step.acknowledged_s is None:
            if step.offset < highest:
                found.append(LineageBreak(step.begun_s, None))
                lower_s = min(lower_s, step.begun_s)
            highest = max(highest, step.offset)
            continue
        if step.offset < certain:
            found.append(LineageBreak(min(lower_s, step.begun_s), step.acknowledged_s))
        elif step.offset < highest:
            found.append(LineageBreak(step.begun_s, None))
        certain = highest = step.offset
        lower_s = math.inf
    return found


def _is_passed(one: LineageBreak, answer: Answer, settle_s: float) -> bool:
    """Whether a break surely happened after the epoch of an answer was read, and was visible before the answer."""
    is_later = one.begun_s > answer.registered_s
    return is_later and one.ended_s is not None and one.ended_s + settle_s < answer.answered_s
