"""The Spark format `purgatory`: results as a stream, events and registrations as a sink, pending waits as a table."""

from purgatory_pipeline.datasource.data_source import PurgatoryDataSource

__all__ = ["PurgatoryDataSource"]
