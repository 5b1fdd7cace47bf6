"""A source for PostgreSQL: write-ahead log positions of a primary and its replicas."""
