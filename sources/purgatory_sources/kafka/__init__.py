"""Where a Kafka cluster's topics end and what its consumer groups have committed, as marks of daemons."""
