"""The Spark session, its progress display, and its errors."""
