"""The stream between topics of a real broker, through the command and Spark's connector (`make stream-demo`)."""

from pathlib import Path

import pytest

from tests.pipeline.stream.topics.broker_outage import outcomes_over_outage
from tests.pipeline.stream.topics.spark_connector import connector_jars

DOWN_S = 1.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


def test_a_history_between_topics_ends_as_by_the_engine_over_a_death_of_the_broker(tmp_path: Path) -> None:
    """All kinds of operation and event as records of two topics, which come in two pieces: the same
    outcomes, times, codes and items are in a third topic. Kafka's timestamp is the time, its key the caller; a
    malformed record is set aside. While the broker is down the query waits, and goes on when it is back.
    """
    connector_jars()
    history, outcomes = outcomes_over_outage(tmp_path, DOWN_S)
    assert set(map(repr, outcomes)) == set(map(repr, history.outcomes))
    assert "1 malformed" in (tmp_path / "log").read_text()
