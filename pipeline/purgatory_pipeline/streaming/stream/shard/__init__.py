"""One shard of the purgatory: an engine that plays rows in the order of their time. No Spark."""
