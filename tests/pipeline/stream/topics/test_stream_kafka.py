"""The stream between topics of a real broker."""

from pathlib import Path

import pytest

from examples.kafka_cluster import KafkaCluster
from tests.pipeline.stream.stream_folders import StreamFolders
from tests.pipeline.stream.topics.broker_outage import TopicsOfStream, answers_over_outage, expected, streaming, until
from tests.pipeline.stream.topics.history_records import TopicRecord, records_of, spaced_history
from tests.pipeline.stream.topics.spark_connector import connector_jars

DOWN_S = 2.0
PIECE_MS = 250
DELAY_MS = 300
"""Longer than a piece: its events may be read after the registrations of the next one."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


def test_records_of_the_wire_become_outcomes_in_a_topic_over_a_death_of_the_broker(tmp_path: Path) -> None:
    """Kafka's timestamp is the time, its key the caller; a record that is none of ours is set aside. While the broker
    is down the query waits, and goes on when it is back.
    """
    connector_jars()
    answers = answers_over_outage(tmp_path, DOWN_S)
    assert {answer["key"]: (answer["outcome"], answer["waited_ms"]) for answer in answers} == expected()
    assert "1 malformed" in (tmp_path / "log").read_text()


def test_a_history_between_topics_ends_as_by_the_engine(tmp_path: Path) -> None:
    """All kinds of operation and event as records of two topics, which come in pieces while four shards run: the
    same outcomes, times, codes and items, each once.
    """
    connector_jars()
    history = spaced_history(1, 700)
    records, begin_ms = records_of(history.rows), history.rows[0]["at_ms"]
    folders = StreamFolders(tmp_path)
    options = ["--shards", "4", "--delay", f"{DELAY_MS}ms", "--results", str(folders.results)]
    with KafkaCluster(tmp_path / "kafka") as cluster:
        topics = TopicsOfStream(cluster)
        with streaming(cluster, tmp_path, *options) as stream:
            for piece_ms in range(begin_ms, history.rows[-1]["at_ms"] + 1, PIECE_MS):
                answered = len(folders.outcomes())
                topics.send([record for record in records if piece_ms <= record.at_ms < piece_ms + PIECE_MS])
                if piece_ms > begin_ms:  # the first one lies within the delay
                    until(lambda before=answered: len(folders.outcomes()) > before, stream, tmp_path)  # type: ignore[misc]
            topics.send([TopicRecord("events", history.end_ms + DELAY_MS, "", b"")])  # a heartbeat
            until(lambda: len(folders.outcomes()) >= len(history.outcomes), stream, tmp_path)
    assert sorted(map(repr, folders.outcomes())) == sorted(map(repr, history.outcomes))
