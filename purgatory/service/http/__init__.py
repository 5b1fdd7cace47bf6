"""The HTTP site: probes, metrics, and calls over HTTP."""
