"""Turns rows of the archive or of a stream into calls of the engine; shared by replay and stream."""
