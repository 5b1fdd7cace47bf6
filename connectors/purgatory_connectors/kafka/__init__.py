"""A source for Kafka: ends of topics and committed offsets of consumer groups."""

from purgatory.source_uri import SourceUri
from purgatory_connectors.kafka.kafka_settings import KafkaSettings
from purgatory_connectors.kafka.kafka_source import KafkaSource


def open_source(uri: SourceUri) -> KafkaSource:
    """Create the source for this address. Raises SourceRefused, SourceUriInvalid."""
    return KafkaSource(KafkaSettings.from_uri(uri))
