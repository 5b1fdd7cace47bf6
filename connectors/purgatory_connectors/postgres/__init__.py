"""A source for PostgreSQL: write-ahead log positions of a primary and its replicas."""

from purgatory.source_uri import SourceUri
from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.postgres_source import PostgresSource


def open_source(uri: SourceUri) -> PostgresSource:
    """Create the source for this address. Raises SourceRefused, SourceUriInvalid."""
    return PostgresSource(PostgresSettings.of_uri(uri))
