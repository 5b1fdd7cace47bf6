"""A source of marks from PostgreSQL: how far a primary and its replicas are in the write-ahead log."""

from pathlib import Path

from purgatory_sources.postgres.postgres_settings import PostgresSettings
from purgatory_sources.postgres.postgres_source import PostgresSource
from purgatory_sources.uri import SourceUri


def open_source(uri: SourceUri, state_dir: Path | None) -> PostgresSource:  # noqa: ARG001 - the publisher's lineages do
    """The source of this address. Raises SourceUriInvalid."""
    return PostgresSource(PostgresSettings.of_uri(uri))
