"""Tailing results as they arrive, and ranking names and operations by their waits."""
