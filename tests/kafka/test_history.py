"""The judge of waits on Kafka finds wrong answers; a short run with real brokers has none."""

from pathlib import Path
from typing import Any

import pytest

from tests.histories.history import History
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


def answer(target: int, registered_s: float, ended_s: float, timeout_s: float = 100.0, **result: Any) -> Answer:  # noqa: ANN401 - fields
    """An answer, which has expired unless `result` says otherwise."""
    given = {"is_satisfied": False, **result}
    return Answer(MARK, target, registered_s, registered_s + 0.1, timeout_s, ended_s, **given)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (answer(20, 5.0, 9.9, is_satisfied=True), "too early"),
        (answer(41, 5.0, 99.0, is_satisfied=True), "too early"),
        (answer(20, 40.0, 41.0, is_satisfied=True), "of a lineage that had ended"),
        (answer(5, 90.0, 91.0, is_satisfied=True), "of a lineage that had ended"),
        (answer(20, 5.0, 25.0, 20.0), "unanswered"),
        (answer(10, 3.0, 7.0, 4.0), "unanswered"),
        (answer(20, 5.0, 25.0, 20.0, stale_s=2.0), "unanswered"),
        (answer(99, 5.0, 6.0, error_code=3), "ended as unknown"),
        (answer(99, 70.0, 79.0, error_code=3), "ended as unknown"),
        (answer(99, 124.0, 125.0, error_code=3), "ended as unknown"),
        (answer(99, 90.0, 91.0, error_code=74), "ended with error 74"),
    ],
)
def test_wrong_answer_is_found_with_the_reason(found: Answer, why: str) -> None:
    [wrong] = wrong_answers(HISTORY, [found], settle_s=3.0)
    assert wrong.why.startswith(why), wrong


@pytest.mark.parametrize(
    ("registered_s", "answered_s", "error_code", "is_right"),
    [(29.0, 31.0, 0, True), (29.0, 40.0, 0, False), (29.0, 31.0, 74, True), (12.0, 20.0, 74, False)],
)
def test_wait_that_names_an_epoch_ends_with_its_lineage(
    registered_s: float, answered_s: float, error_code: int, is_right: bool
) -> None:
    listed_s = registered_s - 0.1
    found = answer(5, registered_s, answered_s, is_satisfied=not error_code, error_code=error_code, listed_s=listed_s)
    assert (list(wrong_lineages(HISTORY, [found], 3.0)) == []) is is_right


@pytest.mark.slow  # three brokers
def test_no_answer_is_wrong_under_faults(kafka_brokers: Path, tmp_path: Path) -> None:
    """By the record of the writers and by the brokers' logs. There are commits, resets, deletions, transactions,
    rebalances, recreated topics, and kills of sources and the daemon. What a source does while brokers are killed and
    hang is tested in test_source.py; the program kills them under this load too.
    """
    pytest.importorskip("confluent_kafka")
    from tests.histories.worlds.kafka.world import KafkaWorld

    world = KafkaWorld(2_500, History(1, frozenset({"kill"})))
    world.run(tmp_path, faults=("source", "topic", "partitions", "daemon"))
    assert world.complaints[:5] == []
    assert world.figures["waits satisfied"] > 500, world.figures
    assert world.figures["waits expired"] > 50, world.figures
    assert any(figure.startswith("fault: ") for figure in world.figures), world.figures
