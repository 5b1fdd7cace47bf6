"""The stream between topics of a real broker."""

from pathlib import Path

import pytest

from tests.pipeline.stream.broker_outage import answers_over_outage, expected
from tests.pipeline.stream.spark_connector import connector_jars

DOWN_S = 2.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


def test_records_of_the_wire_become_outcomes_in_a_topic_over_a_death_of_the_broker(tmp_path: Path) -> None:
    """Kafka's timestamp is the time, its key the caller; a record that is none of ours is set aside. While the broker
    is down the query waits, and goes on when it is back.
    """
    connector_jars()
    answers = answers_over_outage(tmp_path, DOWN_S)
    assert {answer["key"]: (answer["outcome"], answer["waited_ms"]) for answer in answers} == expected()
    assert "1 malformed" in (tmp_path / "log").read_text()
