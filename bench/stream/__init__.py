"""Measures the purgatory as a Spark stream, and Spark as a reader of results: `make bench-stream`.

`__main__` describes the parts; `stream_load` makes the files, `timed_stream` runs a stream over them, `stream_latency`
measures between topics of a real broker, and `results_read` reads from a real daemon.
"""
