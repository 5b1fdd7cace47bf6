"""A source for Redis and Valkey: replication offsets of a primary and its replicas."""
