"""Fair turns of callers, and calls that are refused before they are read."""
