"""A source for Kafka: ends of topics and committed offsets of consumer groups."""

from pathlib import Path

from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.kafka_source import KafkaSource
from purgatory_connectors.publisher.publisher import Source
from purgatory_connectors.uri import SourceUri


def open_source(uri: SourceUri, state_dir: Path | None = None) -> Source:  # noqa: ARG001 - each kind is asked alike
    """Create the source for this address. Raises SourceRefused."""
    return KafkaSource(KafkaSettings.from_uri(uri))
