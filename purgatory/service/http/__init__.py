"""The HTTP site: probes and metrics."""
