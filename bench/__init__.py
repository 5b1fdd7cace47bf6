"""Measurements: `make bench` runs bench.engine. Each prints its own table; nothing here is imported by the product."""
