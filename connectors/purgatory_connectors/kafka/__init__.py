"""A source for Kafka: ends of topics and committed offsets of consumer groups."""

from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.kafka_source import KafkaSource
from purgatory_connectors.uri import SourceUri


def open_source(uri: SourceUri) -> KafkaSource:
    """Create the source for this address. Raises SourceRefused."""
    return KafkaSource(KafkaSettings.from_uri(uri))
