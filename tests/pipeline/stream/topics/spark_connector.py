"""Spark's connector for Kafka, as `make stream-demo` fetches it."""

import os
from pathlib import Path

import pytest

from examples.kafka_cluster import ClusterUnavailable, kafka_jars
from examples.stream_demo import connector


def connector_jars() -> list[Path]:
    """The jars. Where they, or Kafka's, cannot be had the test is skipped, or fails where Kafka is required."""
    try:
        kafka_jars()
        return connector.connector_jars()
    except ClusterUnavailable as missing:
        if os.environ.get("PURGATORY_REQUIRE_KAFKA") == "1":
            pytest.fail(f"PURGATORY_REQUIRE_KAFKA=1: {missing}")
        pytest.skip(str(missing))
