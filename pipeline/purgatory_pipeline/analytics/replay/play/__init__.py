"""Plays a run's windows through the engine, and compares and sums up the results."""
