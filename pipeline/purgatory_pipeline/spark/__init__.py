"""The Spark session and its errors."""
