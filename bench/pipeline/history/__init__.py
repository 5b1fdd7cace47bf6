"""A generated archive: realistic load on the real engine, for tests, benchmarks, screenshots and the notebook."""
