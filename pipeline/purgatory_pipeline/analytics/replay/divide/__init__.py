"""Divides a run that is too large for one task into bins that can be replayed independently."""
