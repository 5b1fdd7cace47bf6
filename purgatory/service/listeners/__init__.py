"""Listeners of the host: metrics, the journal, the archive."""
