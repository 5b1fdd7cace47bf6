"""A source for Redis and Valkey: replication offsets of a primary and its replicas."""

from purgatory_connectors.redis.redis_source import RedisSource
from purgatory_connectors.uri import SourceUri


def open_source(uri: SourceUri) -> RedisSource:
    """Create the source for this address. Raises SourceRefused."""
    return RedisSource(uri)
