"""The data pipeline: reports, what-if replays and generated histories, on Spark."""
