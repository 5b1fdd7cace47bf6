"""Where a Kafka cluster's topics end and what its consumer groups have committed, as marks of daemons."""

from pathlib import Path

from purgatory_sources.kafka.kafka_settings import KafkaSettings
from purgatory_sources.kafka.kafka_source import KafkaSource
from purgatory_sources.publisher.source import Source
from purgatory_sources.uri import SourceUri


def open_source(uri: SourceUri, state_dir: Path | None = None) -> Source:  # noqa: ARG001 - each kind is asked alike
    """The source of an address. Raises SourceRefused."""
    return KafkaSource(KafkaSettings.from_uri(uri))
