"""Reads the rows of a run from the archive's files, window by window."""
