"""Lag in time: how old the positions of consumer groups and replicas are, from the ends of their logs over time."""
