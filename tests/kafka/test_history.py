"""The judge of waits on Kafka finds wrong answers; a short run with real brokers has none."""

from pathlib import Path
from typing import Any

import pytest

from tests.histories.history import History
from tests.histories.worlds.kafka.judge import GONE, Answer, RecordedStep, wrong_answers, wrong_lineages
from tests.kit.recorded import assert_values_recorded

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


ANSWERS = Path(__file__).with_name("answers.txt")


def test_wrong_answers_are_found_with_the_reason() -> None:
    """As in answers.txt. A wait that names an epoch ends with its lineage."""

    def judged(*found: Answer) -> str:
        return ", ".join(one.why for one in wrong_answers(HISTORY, found, settle_s=3.0)) or "right"

    def names_epoch(registered_s: float, answered_s: float, error_code: int) -> str:
        listed = {"listed_s": registered_s - 0.1, "is_satisfied": not error_code, "error_code": error_code}
        found = answer(5, registered_s, answered_s, **listed)
        return ", ".join(one.why for one in wrong_lineages(HISTORY, [found], 3.0)) or "right"

    assert_values_recorded(ANSWERS, {"judged": judged, "answer": answer, "names_epoch": names_epoch})


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
    assert not world.complaints, "\n".join(world.complaints[:5])
    assert world.figures["waits satisfied"] > 500, world.figures
    assert world.figures["waits expired"] > 50, world.figures
    assert any(figure.startswith("fault: ") for figure in world.figures), world.figures
