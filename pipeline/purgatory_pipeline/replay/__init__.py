"""What-if replays: the recorded history through the same engine, on executors, under other policies."""
