"""Spark's connector for Kafka, as `make stream-demo` fetches it."""

from pathlib import Path

from examples.kafka_cluster import ClusterUnavailable, kafka_jars
from examples.stream_demo import connector
from tests.kit.required import skip_unless_required


def connector_jars() -> list[Path]:
    """The jars. Where they, or Kafka's, cannot be had the test is skipped, or fails where Kafka is required."""
    try:
        kafka_jars()
        return connector.connector_jars()
    except ClusterUnavailable as missing:
        skip_unless_required("KAFKA", missing)
