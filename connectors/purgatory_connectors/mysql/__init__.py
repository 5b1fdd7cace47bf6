"""A source for MySQL and MariaDB: executed transactions of a primary and its replicas."""
