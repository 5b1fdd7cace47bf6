"""Spark itself: the session, its progress while it runs, and its failures."""
