"""Serialization of an engine's state."""
