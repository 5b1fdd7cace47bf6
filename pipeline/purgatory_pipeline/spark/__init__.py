"""Spark itself: the session, what it says while it runs, and how it fails."""
