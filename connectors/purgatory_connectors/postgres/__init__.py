"""A source for PostgreSQL: write-ahead log positions of a primary and its replicas."""

from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.postgres_source import PostgresSource
from purgatory_connectors.uri import SourceUri


def open_source(uri: SourceUri) -> PostgresSource:
    """Create the source for this address. Raises SourceRefused."""
    return PostgresSource(PostgresSettings.of_uri(uri))
