"""Spark streams: the purgatory as a stream, the data source, and the listener that reports the progress of queries."""
