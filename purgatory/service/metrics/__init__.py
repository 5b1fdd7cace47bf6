"""Metrics: what is counted, and what Prometheus reads."""
