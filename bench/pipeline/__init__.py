"""Measures the pipeline: the report beside DuckDB, the replay on one core and on two."""
