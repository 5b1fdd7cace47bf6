"""Whose turn it is, and which calls are refused before they are read."""
