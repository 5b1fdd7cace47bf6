"""Measures the pipeline: the report compared with DuckDB, and the replay on one and two cores."""
