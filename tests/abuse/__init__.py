"""Abuse of a real daemon: attacks, floods, fuzzed requests, event loop stalls, hours of churn. Run by `make abuse`."""
