"""Finds waits with an epoch that were answered from another history, or ended although theirs continued."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tests.kafka.history.history_judge import GONE, Answer, Mark, RecordedStep, Wrong

FENCED: Final = 74


class LineageBreak(NamedTuple):
    """A mark has moved back. `ended_s`: when that was certain; None: it is unknown whether it happened."""

    begun_s: float
    ended_s: float | None


def breaks_of(history: Iterable[RecordedStep]) -> list[LineageBreak]:
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


def wrong_lineages(
    changes: Iterable[RecordedStep],
    answers: Iterable[Answer],
    settle_s: float,
    down: Sequence[tuple[float, float]] = (),
) -> list[Wrong]:
    """`settle_s`, `down`: as in `wrong_answers`. A result sent just after the daemon's return may have been decided
    before it went down.
    """
    by_mark: defaultdict[Mark, list[RecordedStep]] = defaultdict(list)
    for change in changes:
        by_mark[change.mark].append(change)
    breaks = {mark: breaks_of(sorted(steps, key=lambda step: step.begun_s)) for mark, steps in by_mark.items()}
    wrong = []
    for answer in answers:
        if answer.listed_s is None:
            continue
        of_mark = breaks.get(answer.mark, ())
        if answer.is_satisfied and not any(one <= answer.answered_s <= two + settle_s for one, two in down):
            if any(_is_passed(one, answer, settle_s) for one in of_mark):
                wrong.append(Wrong("answered from a history that began after its own had ended", answer))
        elif answer.error_code == FENCED:
            since_s = answer.listed_s - 2 * settle_s
            if not any(one.begun_s <= answer.answered_s and (one.ended_s or math.inf) >= since_s for one in of_mark):
                wrong.append(Wrong("ended with error 74: its history went on", answer))
    return wrong


def _is_passed(one: LineageBreak, answer: Answer, settle_s: float) -> bool:
    """Whether a break surely happened after the epoch of an answer was read, and was visible before the answer."""
    is_later = one.begun_s > answer.registered_s
    return is_later and one.ended_s is not None and one.ended_s + settle_s < answer.answered_s
