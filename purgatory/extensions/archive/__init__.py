"""History: every call and every outcome as Parquet files (docs/archive.md)."""
