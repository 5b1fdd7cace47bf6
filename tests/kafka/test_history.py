"""The judge of the history check finds each kind of wrong answer, and a short run with real brokers has none."""

from pathlib import Path

import pytest

from tests.kafka.history_judge import GONE, Answer, RecordedStep, wrong_answers

MARK = ("kafka/billing/orders", 0)
HISTORY = [
    RecordedStep(MARK, 10, 1.0, 1.1),
    RecordedStep(MARK, 20, 10.0, 10.2),
    RecordedStep(MARK, 5, 30.0, 30.2),
    RecordedStep(MARK, 40, 60.0, None),
    RecordedStep(MARK, GONE, 80.0, 80.1),
]


def satisfied(target: int, registered_s: float, answered_s: float) -> Answer:
    return Answer(MARK, target, registered_s, registered_s + 0.1, 100.0, answered_s, True)


def expired(target: int, registered_s: float, timeout_s: float, is_stale: bool = False) -> Answer:
    end_s = registered_s + timeout_s
    return Answer(MARK, target, registered_s, registered_s + 0.1, timeout_s, end_s, False, is_stale)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (satisfied(20, 5.0, 9.9), "too early"),
        (satisfied(41, 5.0, 99.0), "too early"),
        (satisfied(20, 40.0, 41.0), "of a lineage that had ended"),
        (satisfied(5, 90.0, 91.0), "of a lineage that had ended"),
        (expired(20, 5.0, 20.0), "unanswered"),
        (expired(10, 3.0, 4.0), "unanswered"),
    ],
)
def test_wrong_answers_are_found(answer: Answer, why: str) -> None:
    """Answered before anybody wrote it, from a mark that had been set back or deleted, or not answered though true."""
    [wrong] = wrong_answers(HISTORY, [answer], settle_s=3.0)
    assert wrong.why.startswith(why), wrong


@pytest.mark.parametrize(
    "answer",
    [
        satisfied(20, 5.0, 10.1),  # visible before its writer had the acknowledgement
        satisfied(20, 32.0, 32.5),  # the source has not seen yet that it was set back
        satisfied(40, 60.5, 61.0),  # the commit failed for its writer, and had happened
        expired(20, 5.0, 7.0),  # written too shortly before its deadline
        expired(20, 5.0, 20.0, is_stale=True),  # nobody could see it, and the result says so
        expired(20, 28.0, 9.0),  # set back before it had to be answered
        expired(40, 59.0, 15.0),  # nobody knows whether it was written
    ],
)
def test_right_answers_are_not(answer: Answer) -> None:
    """What is right, or what nobody can call wrong, is not told."""
    assert wrong_answers(HISTORY, [answer], settle_s=3.0) == []


@pytest.mark.slow  # three brokers, and faults that take seconds each
def test_no_answer_is_wrong_under_faults(kafka_brokers: Path, tmp_path: Path) -> None:
    """Commits, set-backs, deletions, and kills of brokers, source and daemon: no wait is answered wrongly."""
    pytest.importorskip("confluent_kafka")
    from tests.kafka.history import run

    report = run(tmp_path, waits=20_000, seed=1)
    assert not report.wrong, report.wrong[:5]
    assert report.lost == 0, report
    assert report.satisfied > 1000, report
    assert report.expired > 100, report
    assert report.faults >= 1, report
