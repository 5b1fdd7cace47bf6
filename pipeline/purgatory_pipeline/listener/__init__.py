"""Spark's queries as something to wait for: what each has committed, told as marks."""

from purgatory_pipeline.listener.query_listener import PurgatoryListener

__all__ = ["PurgatoryListener"]
