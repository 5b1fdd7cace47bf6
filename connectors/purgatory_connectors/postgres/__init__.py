"""A source for PostgreSQL: write-ahead log positions of a primary and its replicas."""

from pathlib import Path

from purgatory_connectors.postgres.postgres_settings import PostgresSettings
from purgatory_connectors.postgres.postgres_source import PostgresSource
from purgatory_connectors.uri import SourceUri


def open_source(uri: SourceUri, state_dir: Path | None) -> PostgresSource:  # noqa: ARG001 - the publisher's lineages do
    """Create the source for this address. Raises SourceUriInvalid."""
    return PostgresSource(PostgresSettings.of_uri(uri))
