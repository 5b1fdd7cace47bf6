"""A source for Kafka: ends of topics and committed offsets of consumer groups."""
