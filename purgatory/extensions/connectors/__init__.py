"""Connectors that the daemon runs itself: --source (docs/sources.md)."""
