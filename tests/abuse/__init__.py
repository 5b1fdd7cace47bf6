"""Abuse of a real daemon: attacks, floods, fuzzed requests, hours of churn. Run by `make abuse`."""
