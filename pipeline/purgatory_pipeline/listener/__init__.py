"""Publishes the committed offsets of Spark's streaming queries as marks, so that operations can wait for them."""

from purgatory_pipeline.listener.query_listener import PurgatoryListener

__all__ = ["PurgatoryListener"]
