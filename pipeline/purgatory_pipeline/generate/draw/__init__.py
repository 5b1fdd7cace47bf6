"""Draws everything that happens in a generated run, before the engine is started."""
