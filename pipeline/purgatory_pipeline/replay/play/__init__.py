"""A run's windows through the engine, and what comes of it."""
