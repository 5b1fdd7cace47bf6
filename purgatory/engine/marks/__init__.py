"""The state of partitions and signal keys, and the rules by which marks move."""
