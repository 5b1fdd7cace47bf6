"""The judge of waits on Kafka finds wrong answers; a short run with real brokers has none."""

from pathlib import Path

import pytest

from tests.histories.worlds.kafka.judge import GONE, Answer, RecordedStep, wrong_answers, wrong_lineages

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
    """Wrong are: an answer before the write, from a mark that was reset or deleted, a missing answer although the mark
    was reached and visible, and an end although the mark existed.
    """
    [wrong] = wrong_answers(HISTORY, [answer], settle_s=3.0)
    assert wrong.why.startswith(why), wrong


@pytest.mark.parametrize(
    ("registered_s", "answered_s", "error_code", "is_right"),
    [(29.0, 31.0, 0, True), (29.0, 40.0, 0, False), (29.0, 31.0, 74, True), (12.0, 20.0, 74, False)],
)
def test_wait_that_names_an_epoch_ends_with_its_lineage(
    registered_s: float, answered_s: float, error_code: int, is_right: bool
) -> None:
    answer = ended(registered_s, answered_s, error_code)._replace(target=5, listed_s=registered_s - 0.1)
    wrong = list(wrong_lineages(HISTORY, [answer._replace(is_satisfied=not error_code)], 3.0))
    assert (wrong == []) is is_right


@pytest.mark.slow  # three brokers, and faults that take seconds each
def test_no_answer_is_wrong_under_faults(kafka_brokers: Path, tmp_path: Path) -> None:
    """Under commits, resets, deletions, transactions, rebalances, recreated topics, truncated logs, and kills of
    brokers, sources and the daemon, all answers are correct, by the record of the writers and by the brokers' logs.
    """
    pytest.importorskip("confluent_kafka")
    from tests.histories.worlds.kafka.world import KafkaWorld

    world = KafkaWorld(waits=2_500, seed=1)
    world.run(tmp_path, faults=("source", "topic", "broker", "partitions", "daemon"))
    assert world.is_right, (world.wrong[:5], world.wrong_marks[:5])
    assert world.figures["waits satisfied"] > 500, world.figures
    assert world.figures["waits expired"] > 50, world.figures
    assert any(figure.startswith("fault: ") for figure in world.figures), world.figures
