"""Metrics: counters, and their export to Prometheus."""
