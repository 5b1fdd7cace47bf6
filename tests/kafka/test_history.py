"""The judges of the history check find each kind of wrong answer, and a short run with real brokers has none."""

from pathlib import Path

import pytest
from purgatory_client.results import Outcome

from tests.kafka.history.history_judge import GONE, Answer, RecordedStep, wrong_answers
from tests.kafka.history.lineage_judge import wrong_lineages

MARK = ("kafka/billing/orders", 0)
HISTORY = [
    RecordedStep(MARK, 10, 1.0, 1.1),
    RecordedStep(MARK, 20, 10.0, 10.2),
    RecordedStep(MARK, 5, 30.0, 30.2),
    RecordedStep(MARK, 40, 60.0, None),
    RecordedStep(MARK, GONE, 80.0, 80.1),
    RecordedStep(MARK, 3, 120.0, 120.1),
]


def satisfied(target: int, registered_s: float, answered_s: float) -> Answer:
    return Answer(MARK, target, registered_s, registered_s + 0.1, 100.0, answered_s, True)


def expired(target: int, registered_s: float, timeout_s: float, stale_s: float | None = None) -> Answer:
    end_s = registered_s + timeout_s
    return Answer(MARK, target, registered_s, registered_s + 0.1, timeout_s, end_s, False, stale_s)


def ended(registered_s: float, answered_s: float, error_code: int = 3) -> Answer:
    return Answer(MARK, 99, registered_s, registered_s + 0.1, 100.0, answered_s, False, None, error_code)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (satisfied(20, 5.0, 9.9), "too early"),
        (satisfied(41, 5.0, 99.0), "too early"),
        (satisfied(20, 40.0, 41.0), "of a lineage that had ended"),
        (satisfied(5, 90.0, 91.0), "of a lineage that had ended"),
        (expired(20, 5.0, 20.0), "unanswered"),
        (expired(10, 3.0, 4.0), "unanswered"),
        (expired(20, 5.0, 20.0, stale_s=2.0), "unanswered"),
        (ended(5.0, 6.0), "ended as unknown"),
        (ended(70.0, 79.0), "ended as unknown"),
        (ended(124.0, 125.0), "ended as unknown"),
        (ended(90.0, 91.0, error_code=74), "ended with error 74"),
    ],
)
def test_wrong_answers_are_found(answer: Answer, why: str) -> None:
    """Answered before anybody wrote it, from a mark that had been set back or deleted, not answered though it was true
    and could be seen, or ended though its mark was there.
    """
    [wrong] = wrong_answers(HISTORY, [answer], settle_s=3.0)
    assert wrong.why.startswith(why), wrong


@pytest.mark.parametrize(
    "answer",
    [
        satisfied(20, 5.0, 10.1),  # visible before its writer had the acknowledgement
        satisfied(20, 32.0, 32.5),  # the source has not seen yet that it was set back
        satisfied(40, 60.5, 61.0),  # the commit failed for its writer, and had happened
        expired(20, 5.0, 7.0),  # written too shortly before its deadline
        expired(20, 5.0, 20.0, stale_s=15.0),  # nobody could see it, and the result says so
        expired(20, 28.0, 9.0),  # set back before it had to be answered
        expired(40, 59.0, 15.0),  # nobody knows whether it was written
        ended(0.5, 0.9),  # not there yet
        ended(70.0, 81.0),  # removed while it waited
        ended(90.0, 91.0),  # there no more
        ended(122.0, 123.0),  # the source has not seen yet that it is there again
    ],
)
def test_right_answers_are_not(answer: Answer) -> None:
    """What is right, or what nobody can call wrong, is not told."""
    assert wrong_answers(HISTORY, [answer], settle_s=3.0) == []


@pytest.mark.parametrize(("went_s", "is_wrong"), [(14.0, True), (12.0, False)])
def test_a_daemon_that_was_down_is_no_excuse_for_what_it_had_time_for(went_s: float, is_wrong: bool) -> None:
    """A deadline that passes while it is down is as if it had passed when it went."""
    wrong = wrong_answers(HISTORY, [expired(20, 5.0, 12.0)], 3.0, [(went_s, 16.0)])
    assert bool(wrong) is is_wrong


def with_epoch(registered_s: float, answered_s: float, error_code: int = 0) -> Answer:
    end = Answer(MARK, 5, registered_s, registered_s + 0.1, 100.0, answered_s, not error_code, None, error_code)
    return end._replace(listed_s=registered_s - 0.1)


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        (with_epoch(12.0, 20.0), True),
        (with_epoch(29.0, 31.0), True),  # the source has not seen yet that it was set back
        (with_epoch(29.0, 40.0), False),  # from the history that began then
        (with_epoch(31.0, 40.0), True),  # nobody knows which one it names
        (with_epoch(70.0, 125.0), False),  # removed, and there again
        (with_epoch(29.0, 31.0, error_code=74), True),
        (with_epoch(12.0, 20.0, error_code=74), False),  # its history went on
        (with_epoch(50.0, 61.0, error_code=74), False),
        (with_epoch(79.0, 125.0, error_code=74), True),
    ],
)
def test_waits_of_a_lineage_end_with_it(answer: Answer, is_right: bool) -> None:
    """Whoever names an epoch is neither answered from a later history nor told that its own is over while it is not."""
    assert (wrong_lineages(HISTORY, [answer], 3.0) == []) is is_right


def test_a_step_back_that_nobody_is_sure_of_is_a_break_for_nobody() -> None:
    """A wait may be answered over it, and may end by it."""
    history = [RecordedStep(MARK, 10, 1.0, 1.1), RecordedStep(MARK, 4, 5.0, None), RecordedStep(MARK, 12, 9.0, 9.1)]
    assert wrong_lineages(history, [with_epoch(2.0, 20.0), with_epoch(2.0, 6.0, error_code=74)], 3.0) == []


@pytest.mark.slow  # three brokers, and faults that take seconds each
def test_no_answer_is_wrong_under_faults(kafka_brokers: Path, tmp_path: Path) -> None:
    """Commits, set-backs, deletions, transactions, rebalances, topics made anew, logs cut, and kills of brokers,
    sources and daemon: no wait is answered wrongly, and the brokers' logs say the same as who has written them.
    """
    pytest.importorskip("confluent_kafka")
    from tests.kafka.history.history_check import run

    report = run(tmp_path, waits=8_000, seed=1, faults=("source", "topic", "broker", "partitions", "daemon"))
    assert report.is_right, (report.wrong[:5], report.wrong_marks[:5], report.contradictions[:5])
    assert report.outcomes[Outcome.SATISFIED] > 1000, report
    assert report.outcomes[Outcome.EXPIRED] > 100, report
    assert report.faults.total() >= 1, report
