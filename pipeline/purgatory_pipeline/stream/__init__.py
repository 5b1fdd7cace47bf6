"""The purgatory as a Spark stream."""
