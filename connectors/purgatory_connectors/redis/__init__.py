"""A source for Redis and Valkey: replication offsets of a primary and its replicas."""

from purgatory.source_uri import SourceUri
from purgatory_connectors.redis.redis_source import RedisSource


def open_source(uri: SourceUri) -> RedisSource:
    """Create the source for this address. Raises SourceRefused, SourceUriInvalid."""
    return RedisSource(uri)
