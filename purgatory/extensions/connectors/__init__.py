"""Connectors that the daemon runs as child processes: --source (docs/sources.md)."""
