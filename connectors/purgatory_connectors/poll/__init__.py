"""A source for any number that only rises, read from an HTTP server or with a query of a database."""

from purgatory.source_uri import SourceUri
from purgatory_connectors.poll.poll_source import PollSource


def open_source(uri: SourceUri) -> PollSource:
    """Create the source for this address. Raises SourceRefused, SourceUriInvalid."""
    return PollSource(uri)
